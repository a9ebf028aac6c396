#!/bin/sh
# train_memory.sh BUILD: what a plan says of memory, held against the system's count. The model is SmolLM2 (tools/fetch-model), whose runs
# take hundreds of megabytes. The real peak is the most anonymous memory that /proc/PID/smaps_rollup showed while the run lasted: exact,
# unlike the counters of /proc/PID/status, and without the mapped base. Nothing is given back before the end, and the run is stopped
# while it writes its adapter, so no peak is missed.
. "$(dirname "$0")/../train_data.sh"
model=${XDG_CACHE_HOME:-$HOME/.cache}/graft/models/smollm2.gguf
if [ ! -f "$model" ]; then echo "ok 1 - memory # skip tools/fetch-model smollm2 has not been run"; exit 0; fi
if ! grep -q '^Anonymous:' /proc/self/smaps_rollup 2>/dev/null; then echo "ok 1 - memory # skip this system does not count anonymous memory"; exit 0; fi
if grep -q '^GR_SANITIZE:.*=.' "$1/CMakeCache.txt"; then echo "ok 1 - memory # skip a sanitizer has memory of its own"; exit 0; fi
words='BEGIN { split("the of and a to in is was that it he for on with as his they be at one have this from or had by hot but some what", w, " ") }
  function text(n, i, s) { for (i = 0; i < n; i++) s = s (i ? " " : "") w[1 + int(rand() * 30)]; return s }'
awk "$words BEGIN { srand(1); for (k = 0; k < 60; k++) printf \"{\\\"text\\\": \\\"%s.\\\"}\\n\", text(40 + int(rand() * 200)) }" >"$dir/text.jsonl"
awk "$words BEGIN { srand(2); for (k = 0; k < 60; k++) printf \"{\\\"prompt\\\": \\\"%s?\\\", \\\"completion\\\": \\\"%s.\\\"}\\n\", text(60 + int(rand() * 60)), text(20) }" >"$dir/long.jsonl"
awk "$words BEGIN { srand(3); for (k = 0; k < 24; k++) printf \"{\\\"text\\\": \\\"%s.\\\"}\\n\", text(k == 9 ? 360 : 30) }" >"$dir/uneven.jsonl"
awk 'BEGIN { for (k = 0; k < 300000; k++) printf "{\"text\": \"hi there %d\"}\n", k }' >"$dir/many.jsonl"
number() { sed -n "s/.*\"$1\":\\([0-9]*\\).*/\\1/p"; }
mega() { awk "BEGIN { printf \"%.1f\", $1 / 1e6 }"; }
within() { awk "BEGIN { d = 100 * ($1 / ($2 + 1e-9) - 1); printf \"%.1f\", d; exit !(d <= $3 && d >= -$3) }"; } # per cent; prints how many

# Runs graft train; its exit status into $rc, its real peak into $real.
go_on() {
  GRAFT_FAULT=io:1:stop GRAFT_FAULT_PATH=$dir/m.gguf.tmp LD_PRELOAD=$fault "$graft" train -m "$model" -o "$dir/m.gguf" --json "$@" >"$dir/json" 2>"$dir/err" </dev/null &
  pid=$! real=0
  while state=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) && # T: stopped, and so before the count
    now=$(sed -n 's/^Anonymous: *\([0-9]*\) kB/\1/p' "/proc/$pid/smaps_rollup" 2>/dev/null) && [ -n "$now" ]; do
    [ "$now" -le $real ] || real=$now
    case $state in T*) kill -CONT $pid ;; *) sleep 0.02 ;; esac
  done
  wait $pid; rc=$?
  real=$((real * 1024))
}
train() { rm -rf "$dir"/m.*; go_on "$@"; }

# as_planned NAME LEAST ARGUMENTS...: what has run took what graft plan says, and what it said itself; at least LEAST bytes.
as_planned() {
  name=$1 least=$2; shift 2
  plan=$("$graft" plan -m "$model" --json "$@" 2>/dev/null | number peak_bytes)
  said=$(grep '"event":"done"' "$dir/json" | number peak_bytes)
  if [ $rc -ne 0 ]; then not_ok "$name" "exit $rc" "$(tail -n 2 "$dir/err")"; return; fi
  if off=$(within "${plan:-0}" "$real" 10) && within "${said:-0}" "$real" 2 >"$dir/out" && [ "$real" -ge "$least" ]; then
    ok "$name: planned $(mega "$plan") MB, took $(mega "$real"): $off %"
  else
    not_ok "$name" "planned $(mega "${plan:-0}") MB, took $(mega "$real"): $off %; done says $(mega "${said:-0}") MB"
  fi
}
planned() { name=$1 least=$2; shift 2; train "$@"; as_planned "$name" "$least" "$@"; }
text="-d $dir/text.jsonl --max-steps 1 --batch-size 1"
M=1000000
planned "a window of 512, held-out data" $((400 * M)) $text -c 512 --val-split 0.2 --gradient-checkpointing off -t 2
planned "layers computed again, checkpoints, 1 thread" $((190 * M)) $text -c 512 --val-split 0.2 --gradient-checkpointing on --save-steps 1 --max-steps 2 -t 1
planned "what fits into 400M" $((190 * M)) $text -c 512 --max-memory 400M -t 2
planned "a window of 1024" $((200 * M)) $text -c 1024 --gradient-checkpointing on -t 2
planned "four windows of 256 at once" $((200 * M)) $text -c 256 --batch-size 4 --micro-batch-size 4 -t 2
planned "four samples at once, one of them long" $((200 * M)) -d "$dir/uneven.jsonl" -c 512 --no-packing --val-split 0 --num-epochs 1 --batch-size 4 --micro-batch-size 4 -t 2
planned "a rank of 64, nothing held out" $((200 * M)) $text -c 256 --lora-r 64 --val-split 0 --gradient-checkpointing on -t 2
planned "300,000 short samples" 0 -d "$dir/many.jsonl" --max-steps 30 --batch-size 1 -c 128 --no-packing --val-split 0 --lora-r 8 -t 2
planned "another file held out" 0 $text -c 128 --gradient-checkpointing on --val-file "$dir/long.jsonl" -t 2

# ---- resuming ----
options="$text -c 256 --gradient-checkpointing on --max-steps 3 --save-steps 1 -t 2"
rm -rf "$dir"/m.*
GRAFT_FAULT=io:1:kill GRAFT_FAULT_PATH=000002.checkpoint.tmp LD_PRELOAD=$fault "$graft" train -m "$model" -o "$dir/m.gguf" $options >/dev/null 2>&1
go_on $options --resume
check "a run goes on from a checkpoint" grep -aq 'resumed from .* after step 1 of 3' "$dir/err"
as_planned "and takes what it would have taken" 0 $options

# ---- the base is mapped ----
size=$(wc -c <"$model")
train $text -c 32 --lora-r 1 --gradient-checkpointing on -t 2
check "a small run takes $(mega "$real") MB, less than half of the base's $(mega "$size")" test $rc -eq 0 -a $((2 * real)) -lt "$size" -a "$real" -gt 0

# ---- refusals, and what they suggest ----
# suggested NAME LIMIT WORDS ARGUMENTS...: refused above LIMIT (M), with settings that hold WORDS, run, and stay below it.
suggested() {
  name=$1 limit=$2 wanted=$3; shift 3
  train "$@" --max-memory "${limit}M"
  settings=$(sed -n 's/^graft: .* it fits, in [0-9]* MB.*, with: //p' "$dir/err")
  if [ $rc -ne 1 ] || ! echo "$settings" | grep -Eq -- "$wanted"; then
    not_ok "$name" "exit $rc, suggests '$settings'" "$(tail -n 1 "$dir/err")"; return
  fi
  train "$@" $settings --max-memory "${limit}M"
  if [ $rc -eq 0 ] && [ "$real" -le $((limit * 1048576)) ] && [ -f "$dir/m.gguf" ]; then
    ok "$name: $settings took $(mega "$real") MB of $(mega $((limit * 1048576)))"
  else
    not_ok "$name" "$settings: exit $rc, $(mega "$real") MB of $(mega $((limit * 1048576)))" "$(tail -n 1 "$dir/err")"
  fi
}
long="-d $dir/long.jsonl --max-steps 1 --batch-size 1"
# The least limit that is given a suggestion at all; how much that is moves with the kernels' scratch.
little=36
while [ $little -lt 80 ]; do
  train $long -c 512 -t 2 --max-memory ${little}M
  if grep -q 'it fits' "$dir/err"; then break; fi
  little=$((little + 1))
done
suggested "without recompute" 300 "--gradient-checkpointing on" $text -c 512 --gradient-checkpointing off -t 2
suggested "a micro-batch that was asked for" 230 "--micro-batch-size 1" $text -c 512 --batch-size 4 --micro-batch-size 4 -t 2
suggested "a long window" 220 "^-c [4-9][0-9][0-9] " $text -c 2048 -t 2
suggested "a smaller rank" 120 "--lora-r (1|2|4|8)$" $text -c 512 -t 2
suggested "a window in which the answers are" 60 "^-c 1[0-9][0-9] .*--lora-r [124]$" $long -c 512 -t 2
suggested "as little as learns anything, ${little}M" $little "^-c [1-9][0-9]+ .*--lora-r [12]$" $long -c 512 -t 2
train $long -c 512 -t 2 --max-memory $((little - 1))M
check "$((little - 1))M: what fits would leave nothing to learn, and it says so" sh -c "test $rc -eq 1 && grep -Eq '^graft: .* takes [0-9]+ MB, and leaves nothing to learn: allow more' $dir/err"
for limit in 16 1; do
  train $text -c 512 -t 2 --max-memory ${limit}M
  check "${limit}M: nothing fits, and it says so" sh -c "test $rc -eq 1 && grep -Eq '^graft: .* even a window of [0-9]+ with the lowest rank takes [0-9]+ MB: allow more with --max-memory' $dir/err && ! grep -q 'it fits' $dir/err"
done
echo "1..$ran"
