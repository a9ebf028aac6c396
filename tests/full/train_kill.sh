#!/bin/sh
# train_kill.sh BUILD: a run with checkpoints is killed (SIGKILL) at 50 instants, 20 of them inside the writing of a checkpoint: the
# preloaded object strikes at the open, in the middle of a write, at the fsync or at the rename of a checkpoint's temporary file.
# Every resume starts past step 0, with 1, 2 or 3 threads, and ends with the bits of the uninterrupted run.
. "$(dirname "$0")/../train_data.sh"
[ -f "$fault" ] || { echo "ok 1 - killing runs # skip a sanitizer's build has no object to preload"; exit 0; }
seed=${GRAFT_KILL_SEED:-$$}
echo "# seed $seed (GRAFT_KILL_SEED repeats it)"
random() { seed=$(((seed * 1103515245 + 12345) % 2147483648)); drawn=$((seed / 1024 % $1)); } # 0 .. $1-1, into $drawn
steps=60
options="-m $golden/qwen3.gguf -d $dir/data.jsonl -c 64 --batch-size 3 --max-steps $steps --save-steps 3 --eval-steps 5 --val-split 0.2 --lora-r 4 --lora-dropout 0.1 --learning-rate 1e-3"
train() { output=$1; shift; "$graft" train $options -o "$output" "$@"; }

train "$dir/whole.gguf" -t 2 >"$dir/whole.log" 2>&1 || { not_ok "an uninterrupted run" "$(tail -n 3 "$dir/whole.log")"; exit 1; }
GRAFT_FAULT=io:0:kill GRAFT_FAULT_PATH=.checkpoint.tmp GRAFT_FAULT_LOG=$dir/count LD_PRELOAD=$fault "$graft" train $options -o "$dir/count.gguf" -t 2 >/dev/null 2>&1
calls=$(sed -n 's/^seen io //p' "$dir/count"); saves=$(((steps - 1) / 3)); each=$((calls / saves))
echo "# $calls calls write $saves checkpoints"
[ "$each" -ge 4 ] && [ $((each * saves)) -eq "$calls" ] && ok "each checkpoint is opened, written, synchronised and renamed" || not_ok "calls of a checkpoint" "$calls for $saves"

metrics() { cut -d, -f1-7,9- "$1"; } # all but the speed
resumed_right() { # after a kill of $dir/k.gguf
  [ ! -e "$dir/k.gguf" ] || { echo "the adapter was there before the end"; return 1; }
  train "$dir/k.gguf" -t $((1 + i % 3)) --resume >"$dir/log" 2>&1 || { tail -n 2 "$dir/log"; return 1; }
  from=$(sed -n 's/.*resumed from .* after step \([0-9]*\) of .*/\1/p' "$dir/log")
  [ "${from:-0}" -gt 0 ] || { echo "the resume did not start past step 0"; return 1; }
  cmp "$dir/k.gguf" "$dir/whole.gguf" || return 1
  metrics "$dir/k.metrics.csv" >"$dir/a"; metrics "$dir/whole.metrics.csv" >"$dir/b"
  cmp "$dir/a" "$dir/b" || return 1
  left=$(ls "$dir" | grep '^k\.' | grep -v -e '^k\.gguf$' -e '^k\.yaml$' -e '^k\.metrics\.' )
  [ -z "$left" ] || { echo "left behind: $left"; return 1; }
}

inside=0 i=0
while [ $i -lt 20 ]; do
  i=$((i + 1)); rm -rf "$dir"/k.*
  random $((calls - each)); at=$((each + 1 + drawn)) # past the first checkpoint
  rm -f "$dir/hit"
  GRAFT_FAULT=io:$at:kill GRAFT_FAULT_PATH=.checkpoint.tmp GRAFT_FAULT_LOG=$dir/hit LD_PRELOAD=$fault "$graft" train $options -o "$dir/k.gguf" -t 2 >/dev/null 2>&1
  rc=$?
  half=$(ls "$dir" | grep '^k\..*checkpoint\.tmp' | wc -l) # what it was writing
  where=$(sed -n 's/^hit io [0-9]* \([a-z]*\) .*/\1/p' "$dir/hit")
  if [ $rc -ne 137 ] || [ "$half" -ne 1 ]; then not_ok "killed inside a checkpoint, at its call $at" "exit $rc, $half unfinished files"; continue; fi
  inside=$((inside + 1))
  if why=$(resumed_right); then ok "killed inside a checkpoint, in $where (call $at), and resumed"; else not_ok "killed in $where, call $at" "$why"; fi
done
[ $inside -ge 10 ] && ok "$inside kills were inside the writing of a checkpoint" || not_ok "kills inside a checkpoint" "$inside"

i=0 tries=0 span=800 # milliseconds after the first checkpoint, in which it dies; fewer when the machine is faster than that
while [ $i -lt 30 ] && [ $tries -lt 300 ]; do
  tries=$((tries + 1)); rm -rf "$dir"/k.*
  "$graft" train $options -o "$dir/k.gguf" -t 2 >/dev/null 2>&1 &
  pid=$!
  while [ ! -e "$dir/k.step-000003.checkpoint" ] && [ ! -e "$dir/k.step-000006.checkpoint" ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
  random $span; sleep "$(printf '0.%03d' "$drawn")"
  kill -9 $pid 2>/dev/null
  wait $pid 2>/dev/null
  if [ $? -ne 137 ] || [ -e "$dir/k.gguf" ]; then span=$((span - span / 8)); continue; fi # it had come to its end, or was about to
  i=$((i + 1))
  step=$(tail -n 1 "$dir/k.metrics.csv" | cut -d, -f1)
  if why=$(resumed_right); then ok "killed by the clock, at step $step, and resumed"; else not_ok "killed by the clock, at step $step" "$why"; fi
done
[ $i -eq 30 ] && ok "30 kills by the clock" || not_ok "kills by the clock" "$i of $tries"
echo "1..$ran"
