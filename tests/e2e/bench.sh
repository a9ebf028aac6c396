#!/bin/sh
# bench.sh BUILD: graft bench gives its figures, all of them above 0, in both precisions, and refuses what cannot be measured. How large they
# are is not looked at, for this machine may be doing anything else; but nothing is above the limit of multiply-adds. TAP.
graft=$1/graft
root=$(cd "$(dirname "$0")/../.." && pwd)
model=$root/models/tiny.gguf
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
count=0
ok() { count=$((count + 1)); echo "ok $count - $1"; }
not_ok() { count=$((count + 1)); echo "not ok $count - $1: $2"; }

bench() { timeout 300 "$graft" bench -m "$model" -t 2 --prompt-tokens 24 --gen-tokens 3 --window 32 --rank 4 --runs 2 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; }

# figures TEXT NAME KEY...: each key is there, as often as the first, and everywhere above 0.
figures() {
  text=$1 name=$2; shift 2
  for key in "$@"; do
    values=$(printf '%s\n' "$text" | grep -o "\"$key\":[^,}]*" | cut -d: -f2)
    if [ -z "$values" ]; then not_ok "$name" "no $key"; return; fi
    for v in $values; do
      if ! awk -v v="$v" 'BEGIN { exit !(v > 0 && v < 1e300) }'; then not_ok "$name" "$key is $v"; return; fi
    done
  done
  ok "$name"
}

# part NAME: the object of that use.
part() { sed "s/.*\"$1\":{//; s/\"work\":\[.*//" "$tmp/out"; }

if bench --json; then ok 'bench --json'; else not_ok 'bench --json' "$(head -c 200 "$tmp/err")"; fi
figures "$(cat "$tmp/out")" 'limits of the machine' limit_gflop_s memory_gb_s threads
for use in prefill generation training; do
  figures "$(part $use)" "figures of $use" tokens runs tokens_s tokens_s_best tokens_s_processor gflop_s of_limit of_limit_processor gb_s of_memory
  part=$(grep -o "\"$use\":{.*" "$tmp/out" | sed 's/\]}.*//')
  for work in products attention head experts 'norms, rope, gates' 'rows and copies'; do
    case "$part" in *"\"work\":\"$work\""*) ok "$use: $work" ;; *) not_ok "$use: $work" 'is not there' ;; esac
  done
  shares=$(printf '%s\n' "$part" | grep -o '"share":[^,}]*' | cut -d: -f2 | awk '{ s += $1 } END { print (s > 0.999 && s < 1.001) }')
  over=$(printf '%s\n' "$part" | grep -o '"of_limit[a-z_]*":[^,}]*' | awk -F: '!($2 <= 1) { printf "%s ", $0 }')
  [ -z "$over" ] && ok "$use: nothing above the limit" || not_ok "$use: nothing above the limit" "$over"
  [ "$shares" = 1 ] && ok "$use: shares sum to 1" || not_ok "$use: shares sum to 1" "$part"
done
case "$part" in *'"phase":"optimizer"'*'"phase":"backward"'* | *'"phase":"backward"'*'"phase":"optimizer"'*) ok 'training has a backward and an optimizer' ;; *) not_ok 'training has a backward and an optimizer' "$part" ;; esac

if bench --json --precision bf16 && grep -q '"precision":"bf16"' "$tmp/out"; then ok 'in bf16'; else not_ok 'in bf16' "$(head -c 200 "$tmp/err" "$tmp/out")"; fi
figures "$(cat "$tmp/out")" 'limits in bf16' limit_gflop_s limit_bf16_gflop_s memory_gb_s
over=$(grep -o '"of_limit[a-z_]*":[^,}]*' "$tmp/out" | awk -F: '!($2 <= 1) { printf "%s ", $0 }')
[ -z "$over" ] && ok 'in bf16 nothing above the limit' || not_ok 'in bf16 nothing above the limit' "$over"
if bench --precision bf16 && grep -qE '^limits +[0-9.]+ GFLOP/s of F32 multiply-adds on registers, [0-9.]+ of those of bf16, ' "$tmp/out"; then ok 'both limits in words'
else not_ok 'both limits in words' "$(head -c 200 "$tmp/err" "$tmp/out")"; fi

if bench -d "$root/models/teach.jsonl" && [ "$(grep -cE '^(prefill|generation|training) +[0-9.]+ tokens/s' "$tmp/out")" -eq 3 ] && grep -qE '^limits +[0-9.]+ GFLOP/s' "$tmp/out"; then ok 'in words, on data'
else not_ok 'in words, on data' "$(head -c 200 "$tmp/err" "$tmp/out")"; fi
if bench --window 0 --gen-tokens 0 --json && ! grep -q '"training"\|"generation"' "$tmp/out" && grep -q '"prefill"' "$tmp/out"; then ok 'what is not asked for is left out'
else not_ok 'what is not asked for is left out' "$(head -c 200 "$tmp/err" "$tmp/out")"; fi

# refused PATTERN NAME options...
refused() {
  pattern=$1 name=$2; shift 2
  bench "$@"; rc=$?
  if [ $rc -eq 2 ] && [ ! -s "$tmp/out" ] && grep -qE "^graft: .*$pattern" "$tmp/err"; then ok "$name"; else not_ok "$name" "exit $rc: $(head -c 200 "$tmp/err")"; fi
}
refused 'there is nothing to measure' 'nothing to measure' --prompt-tokens 0 --gen-tokens 0 --window 0
refused 'generation goes on from a prompt' 'generation from nothing' --prompt-tokens 0
refused 'a window of one token has nothing to predict' 'a window of one token' --window 1
refused '--runs takes 1 to 64' 'no runs' --runs 0
refused 'take 0 \(none\) to' 'a negative prompt' --prompt-tokens -3
echo "1..$count"
