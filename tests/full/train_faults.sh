#!/bin/sh
# train_faults.sh BUILD: every file call and every allocation of a one-step run made to fail, one run each. A run either says one
# sentence and exits 1, or gets over it and writes the bits of the undisturbed run; it never dies, leaves no temporary file, keeps the
# adapter that was there before whole, and can be gone on with.
. "$(dirname "$0")/../train_data.sh"
[ -f "$fault" ] || { echo "ok 1 - failing calls # skip a sanitizer's build has no object to preload"; exit 0; }
echo "target_modules: [attn_q, mlp]" >"$dir/run.yaml"
options="--config $dir/run.yaml -m $golden/llama.gguf -d $dir/data.jsonl -c 64 --batch-size 2 --max-steps 1 --save-steps 1 --val-split 0.2 --lora-r 2 --report-to tensorboard -t 2"
"$graft" train $options -o "$dir/whole.gguf" >"$dir/log" 2>&1 || { not_ok "an undisturbed run" "$(tail -n 3 "$dir/log")"; exit 1; }
"$graft" train $options --seed 5 -o "$dir/old.gguf" >/dev/null 2>&1
mkdir "$dir/w"
w=$dir/w
run() { "$graft" train $options -o "$w/k.gguf" --overwrite "$@"; }

# One run with a fault. Prints what is wrong.
struck() { # kind, n, effect
  rm -rf "$w"/*; cp "$dir/old.gguf" "$w/k.gguf"
  rm -f "$dir/hit"
  GRAFT_FAULT=$1:$2:$3 GRAFT_FAULT_LOG=$dir/hit LD_PRELOAD=$fault timeout 60 "$graft" train $options -o "$w/k.gguf" --overwrite >"$dir/out" 2>"$dir/err" </dev/null
  rc=$?
  grep -q '^hit' "$dir/hit" || { echo "no call $2 of $1 was reached (exit $rc)"; return 1; }
  case $rc in
  0) cmp -s "$w/k.gguf" "$dir/whole.gguf" || { echo "exit 0 with another adapter"; return 1; } ;;
  1) [ "$(grep -c '^graft: ' "$dir/err")" -eq 1 ] || { echo "not one sentence: $(cat "$dir/err")"; return 1; }
     cmp -s "$w/k.gguf" "$dir/old.gguf" || cmp -s "$w/k.gguf" "$dir/whole.gguf" || { echo "the old adapter is gone"; return 1; } ;;
  *) echo "exit $rc: $(tail -n 2 "$dir/err")"; return 1 ;;
  esac
  left=$(find "$w" -name '*.tmp-*' -o -name '*.lock')
  [ -z "$left" ] || { echo "left behind: $left"; return 1; }
}

# All of them; what had failed is gone on with afterwards, every `often`-th time.
sweep() { # kind, effect, often
  GRAFT_FAULT=$1:0:$2 GRAFT_FAULT_LOG=$dir/count LD_PRELOAD=$fault run >/dev/null 2>&1
  calls=$(sed -n "s/^seen $1 //p" "$dir/count" | tail -n 1); rm -f "$dir/count"
  n=0 failed=0 bad=""
  while [ $n -lt "${calls:-0}" ]; do
    n=$((n + 1))
    why=$(struck "$1" $n "$2") || { bad="$bad
call $n ($(sed -n 's/^hit [a-z]* [0-9]* //p' "$dir/hit" | head -n 1)): $why"; continue; }
    grep -q '^graft: ' "$dir/err" || continue
    failed=$((failed + 1))
    [ $((failed % $3)) -eq 0 ] || continue
    again= # what had come to a checkpoint goes on from it; the rest begins anew
    [ -n "$(find "$w" -name '*.checkpoint')" ] && again='--resume --no-overwrite'
    run $again >"$dir/log" 2>&1 && cmp -s "$w/k.gguf" "$dir/whole.gguf" || bad="$bad
after call $n: $(tail -n 1 "$dir/log")"
  done
  if [ -z "$bad" ] && [ $failed -gt 10 ]; then ok "each of $n calls of $1 fails with $2 in turn: $failed runs said why, all could be gone on with"
  else not_ok "failing calls of $1 with $2, $failed of $n" "$(echo "$bad" | head -n 12)"; fi
}
sweep io EIO 1
sweep io ENOSPC+ 1
sweep alloc ENOMEM 20
sweep alloc ENOMEM+ 50
echo "1..$ran"
