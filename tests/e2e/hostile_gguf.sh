#!/bin/sh
# hostile_gguf.sh BUILD: `graft inspect` on every file of shared/data/hostile-gguf. What the index wants accepted exits 0; what it
# wants rejected exits 1 with one sentence that names the file; "either" may do either. Nothing takes 10 seconds, or 1 GB of
# address space (sanitizers need more than that for themselves: with them only the time is limited). TAP on stdout.
graft=$1/graft
data=$(cd "$(dirname "$0")/../../.." && pwd)/shared/data/hostile-gguf
if [ ! -f "$data/index.json" ]; then echo "ok 1 - hostile files # skip the shared data is not here"; exit 0; fi
err=$(mktemp) out=$(mktemp); trap 'rm -f "$err" "$out"' EXIT
grep -q __asan_init "$graft" || ulimit -v 1048576
count=0

# Adapters are held against the base that they are made for; a base given means that the file must be an adapter.
inspect() {
  case $1 in
  adapter-* | base-as-adapter.gguf) timeout -k 1 10 "$graft" inspect "$data/$1" --base "$data/ok-base.gguf" ;;
  *) timeout -k 1 10 "$graft" inspect "$data/$1" ;;
  esac >"$out" 2>"$err"
}

answer() { # file, expect
  inspect "$1"; rc=$?
  case $2-$rc in accept-0 | reject-1 | either-0 | either-1) ;; *) echo "exit $rc: $(head -c 300 "$err")"; return 1 ;; esac
  if [ $rc -eq 0 ]; then [ -s "$out" ] || { echo "accepted without a word"; return 1; }; return 0; fi
  [ "$(wc -l <"$err")" -eq 1 ] && grep -q "^graft: .*$1" "$err" || { echo "not one sentence naming the file: $(head -c 300 "$err")"; return 1; }
}

while IFS='|' read -r file expect; do
  count=$((count + 1))
  if why=$(answer "$file" "$expect"); then echo "ok $count - $file: $expect"; else echo "not ok $count - $file: $expect, $why"; fi
done <<END
$(sed -n 's/^{"file": "\([^"]*\)", "expect": "\([^"]*\)".*/\1|\2/p' "$data/index.json")
END
[ $count -eq 115 ] || echo "not ok $((count + 1)) - the index has $count files, not 115"
