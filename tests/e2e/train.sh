#!/bin/sh
# train.sh BUILD: `graft train`, `plan` and `eval` on the golden models, from outside: what they write, say, refuse and go on with.
. "$(dirname "$0")/../train_data.sh"
model=$golden/llama.gguf
common="-d $dir/data.jsonl -c 64 --batch-size 3 --lora-r 4 --val-split 0.2 --learning-rate 1e-3"
train() { output=$1; shift; "$graft" train -m "$model" $common -o "$output" "$@" >"$dir/json" 2>"$dir/err" </dev/null; }
field() { sed -n "s/.*\"$1\":\\([^,}]*\\).*/\\1/p"; }
says() { grep -aEq -- "$1" "$dir/err"; }

# ---- a run, and what it leaves ----
train "$dir/a.gguf" --max-steps 12 --save-steps 5 --eval-steps 4 --lora-dropout 0.1 -t 2 --json --report-to tensorboard
check "a run ends well" test $? -eq 0
check "it writes adapter, config and metrics, and no checkpoint is left" test "$(cd "$dir" && ls -d a.* | tr '\n' ' ')" = "a.gguf a.metrics.csv a.metrics.jsonl a.tensorboard a.yaml "
check "graft inspect takes the adapter" "$graft" inspect "$dir/a.gguf" --base "$model"
check "--json: a plan, 12 steps, 4 evaluations, 2 checkpoints, done" test "$(for e in plan step eval checkpoint done; do grep -c "^{\"event\":\"$e\"" "$dir/json"; done | tr '\n' ' ')" = "1 12 4 2 1 "
step='^\{"event":"step","step":[0-9]+,"epoch":[0-9.]+,"loss":[0-9.]+,"lr":[0-9.e-]+,"grad_norm":[0-9.]+,"tokens":[0-9]+,"tokens_total":[0-9]+,"tok_s":[0-9.e+]+\}$'
check "a step has its fields" test "$(grep -cE "$step" "$dir/json")" -eq 12
for f in loss_first loss_last loss_mean eval_loss seconds peak_bytes; do
  check "done has $f" test -n "$(tail -n 1 "$dir/json" | field $f)"
done
mean=$(grep '"event":"step"' "$dir/json" | field loss | tail -n 2 | awk '{s+=$1} END {printf "%.9f", s/NR}')
check "done's loss_mean is that of the last tenth of the steps" awk "BEGIN { d = $mean - $(tail -n 1 "$dir/json" | field loss_mean); exit !(d < 1e-6 && d > -1e-6) }"
check "done names the adapter" grep -q "\"adapter\":\"$dir/a.gguf\"" "$dir/json"
check "metrics.jsonl holds the step and eval events" sh -c "grep -E '\"event\":\"(step|eval)\"' $dir/json | cmp - $dir/a.metrics.jsonl"
check "metrics.csv: a header and a row an event" test "$(wc -l <"$dir/a.metrics.csv")" -eq 17
check "each row has the header's columns" test "$(awk -F, '{print NF}' "$dir/a.metrics.csv" | sort -u)" = 11
check "tokens add up" test "$(grep '"event":"step"' "$dir/json" | field tokens | awk '{s+=$1} END {print s}')" = "$(tail -n 1 "$dir/json" | field tokens_total)"

# ---- the same bits ----
same() { # NAME FILE ARGUMENTS...
  name=$1; shift
  rm -rf "$dir"/b.*
  if train "$dir/b.gguf" --max-steps 12 --save-steps 5 --eval-steps 4 --lora-dropout 0.1 "$@" && cmp -s "$dir/a.gguf" "$dir/b.gguf"; then ok "$name"
  else not_ok "$name" "$(tail -n 2 "$dir/err")"; fi
}
same "1 thread: the same adapter, bit for bit" -t 1
same "7 threads: the same adapter" -t 7
same "layers computed again for backward: the same adapter" -t 2 --gradient-checkpointing on
same "no checkpoints, no tensorboard: the same adapter" -t 3 --save-steps 0
rm -rf "$dir"/b.*
"$graft" train --config "$dir/a.yaml" -o "$dir/b.gguf" >/dev/null 2>"$dir/err"
check "the resolved config makes the same adapter" cmp "$dir/a.gguf" "$dir/b.gguf"
check "the resolved config is resolved" sh -c "grep -q '^window: 64$' $dir/a.yaml && grep -q '^micro_batch_size: 3$' $dir/a.yaml && grep -q '^warmup_steps: 1$' $dir/a.yaml && grep -q \"^gradient_checkpointing: 'off'$\" $dir/a.yaml"
rm -rf "$dir"/b.*
train "$dir/b.gguf" --max-steps 12 --save-steps 5 --eval-steps 4 --lora-dropout 0.1 --seed 43
check "another seed makes another adapter" sh -c "! cmp -s $dir/a.gguf $dir/b.gguf"

# ---- outputs that exist, interruptions, resuming ----
cp "$dir/a.gguf" "$dir/keep.gguf"
refused "an existing output is kept" 2 "a.gguf exists already.*--resume.*--overwrite" train -m "$model" $common -o "$dir/a.gguf" --max-steps 1
check "and it is as it was" cmp "$dir/a.gguf" "$dir/keep.gguf"
train "$dir/a.gguf" --max-steps 12 --save-steps 5 --eval-steps 4 --lora-dropout 0.1 --resume
check "--resume of a finished run does nothing and says so" sh -c "test $? -eq 0 && grep -aq 'this run is finished' $dir/err && cmp $dir/a.gguf $dir/keep.gguf"
refused "--resume of another run's adapter is refused, naming what differs" 1 "adapter of another run \(max_steps: 12 there, 13 here\).*--init-adapter .*a.gguf" train -m "$model" $common -o "$dir/a.gguf" --max-steps 13 --save-steps 5 --eval-steps 4 --lora-dropout 0.1 --resume

options="-m $model $common -o $dir/c.gguf --max-steps 600 --save-steps 10 -t 2"
"$graft" train $options >/dev/null 2>"$dir/first" & pid=$!
until_saved c $pid
refused "two runs into one output: the second is refused" 1 "another process is training into .*c.gguf" train $options --overwrite
kill -INT $pid; wait $pid; rc=$?
check "Ctrl-C: exit 1, saved, and how to go on" sh -c "test $rc -eq 1 && grep -aq 'stopped after step [0-9]* of 600 and saved' $dir/first && grep -aq '^go on    graft train .*--resume' $dir/first"
stopped=$(sed -n 's/.*stopped after step \([0-9]*\) of 600.*/\1/p' "$dir/first")
check "the checkpoint of that step is there" test -f "$(printf '%s/c.step-%06d.checkpoint' "$dir" "$stopped")"
sed -n 's/^go on    //p' "$dir/first" >"$dir/go"
refused "without --resume or --overwrite it is not begun anew" 2 "stopped after step $stopped.*--resume goes on" train $options
refused "resumed with another learning rate: says so" 1 "'learning_rate: 0.001', and this one has 'learning_rate: 0.01'" train $options --resume --learning-rate 0.01
refused "resumed with another window" 1 "'window: 64', and this one has 'window: 48'" train $options --resume -c 48
refused "resumed with another rank" 1 "'lora_r: 4', and this one has 'lora_r: 8'" train $options --resume --lora-r 8
refused "resumed with another length" 1 "a run of 600 steps, and this one has 601, .*: resume with the same options, or begin anew with --overwrite$" train $options --resume --max-steps 601
refused "resumed with another warmup" 1 "warms up over 18 steps, and this one does over 20: resume with the same options, or begin anew with --overwrite$" train $options --resume --warmup-steps 20
refused "resumed with other data" 1 "other data: 12 samples of [0-9]* tokens then, 24 samples .*: resume with the same data, or begin anew with --overwrite$" train $options --resume -d "$dir/data.jsonl"
refused "resumed on another model" 1 "another base model .*: name that one with -m, or begin anew with --overwrite$" train $options --resume -m "$golden/llama-scaled.gguf" --target-modules attention
refused "resumed from another adapter" 1 "began from another adapter: give the same --init-adapter, or begin anew with --overwrite$" train $options --resume --init-adapter "$golden/llama-lora.gguf"
PATH=$(dirname "$graft"):$PATH sh "$dir/go" >/dev/null 2>"$dir/err"
check "the command it printed goes on from there" sh -c "grep -aq 'resumed from .*, after step $stopped of 600' $dir/err && test -f $dir/c.gguf"
train "$dir/d.gguf" --max-steps 600 -t 1
check "and ends with the bits of a run that was not stopped" cmp "$dir/c.gguf" "$dir/d.gguf"
rm -f "$dir"/c.* "$dir"/d.*

# ---- what is learned ----
lr="--lr-scheduler constant --warmup-steps 0 --learning-rate 3e-2 --eval-steps 1"
train "$dir/e.gguf" $lr --max-steps 60 --early-stopping-patience 4 --json
best=$(tail -n 1 "$dir/json" | field best_step) last=$(tail -n 1 "$dir/json" | field steps)
check "it stops early, four evaluations after the best" test "$last" -eq $((best + 4))
check "and says so" says "stopped early: 4 evaluations in a row"
check "the best adapter is kept" says "the adapter is that of step $best"
check "done reports its held-out loss" test "$(tail -n 1 "$dir/json" | field eval_loss)" = "$(grep "\"event\":\"eval\",\"step\":$best," "$dir/e.metrics.jsonl" | field loss)"
train "$dir/f.gguf" $lr --max-steps "$best"
check "it has the bits of a run that ends there" cmp "$dir/e.gguf" "$dir/f.gguf"
train "$dir/g.gguf" --max-steps 2 --init-adapter "$dir/f.gguf" --json
check "--init-adapter goes on where the adapter was" test "$(grep '"event":"eval","step":0,' "$dir/json" | field loss)" = "$(grep "\"event\":\"eval\",\"step\":$best," "$dir/f.metrics.jsonl" | field loss)"
check "on the same base nothing is to be said of it" sh -c "! grep -q 'another base' $dir/err"
"$graft" quantize "$model" "$dir/q8.gguf" Q8_0 >/dev/null 2>&1
"$graft" train -m "$dir/q8.gguf" $common -o "$dir/gq.gguf" --max-steps 1 --init-adapter "$dir/f.gguf" >/dev/null 2>"$dir/err" </dev/null
check "--init-adapter on another base is noted" says "note +$dir/f.gguf was trained on another base than $dir/q8.gguf"
"$graft" eval -m "$dir/q8.gguf" --lora "$dir/f.gguf" -d "$dir/data.jsonl" >/dev/null 2>"$dir/err"
check "and so is evaluating it there" says "note +$dir/f.gguf was trained on another base than $dir/q8.gguf"
check "inspect --base tells the two apart" sh -c "$graft inspect $dir/f.gguf --base $dir/q8.gguf | grep -q '^base: *fits the model given, but was trained on another' && $graft inspect $dir/f.gguf --base $model | grep -q '^base: *fits the model given$'"
refused "with --strict it is refused: train" 1 "was trained on another base" train -m "$dir/q8.gguf" $common -o "$dir/x.gguf" -c 128 --strict --init-adapter "$dir/f.gguf"
refused "with --strict it is refused: eval" 1 "was trained on another base" eval -m "$dir/q8.gguf" --lora "$dir/f.gguf" -d "$dir/data.jsonl" --strict

# ---- numbers that are none ----
refused "a loss that is no number: step, samples, last good checkpoint" 1 "step [0-9]+: the loss is not a finite number \(samples? .*data.jsonl:[0-9]+.*the last good checkpoint is .*h.step-0000[0-9]+.checkpoint" \
  train -m "$model" $common -o "$dir/h.gguf" --max-steps 40 --save-steps 1 --learning-rate 1e6 --max-grad-norm 0 --lr-scheduler constant
check "no adapter is written then" test ! -e "$dir/h.gguf"

# ---- bad input ----
t="train -m $model $common -o $dir/x.gguf --max-steps 1"
refused "no model" 2 "give the model with -m" train $common -o "$dir/x.gguf"
refused "a missing model" 1 "cannot open /nowhere.gguf" $t -m /nowhere.gguf
refused "a model that is none" 1 "data.jsonl" $t -m "$dir/data.jsonl"
head -c 20000 "$model" >"$dir/short.gguf"
refused "a truncated model" 1 "short.gguf" $t -m "$dir/short.gguf"
LC_ALL=C sed 's/llama/lxama/g' "$model" >"$dir/other.gguf"
refused "an architecture that is not known" 1 "other.gguf.*'?lxama" $t -m "$dir/other.gguf"
refused "an adapter instead of a model" 1 "llama-lora.gguf" $t -m "$golden/llama-lora.gguf"
refused "an adapter of another model to begin from" 1 "qwen3-lora.gguf" $t --init-adapter "$golden/qwen3-lora.gguf"
refused "no data" 2 "give the training data with -d" train -m "$model" -o "$dir/x.gguf"
refused "missing data" 1 "cannot open /nowhere.jsonl" $t -d /nowhere.jsonl
echo '{"messages": [{"role": "user", "content": "nobody answers"}]}' >"$dir/mute.jsonl"
refused "data without a trained token" 1 "mute.jsonl.*nothing to learn" train -m "$model" -d "$dir/mute.jsonl" -o "$dir/x.gguf"
refused "an unknown target: the valid ones" 2 "'attn_x' matches nothing.*attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up, ffn_down, output or lm_head" $t --target-modules attn_q,attn_x
refused "rank 0" 2 "lora_r must be at least 1, not 0" $t --lora-r 0
refused "a rank larger than the matrix" 2 "rank 65 is larger than blk.0.attn_q.weight allows.*--lora-r (16|32|64)" $t --lora-r 65
refused "a window beyond the context, strictly" 2 "window of 1000 tokens is longer than the model's context of 256" $t -c 1000 --strict
train "$dir/y.gguf" --max-steps 1 -c 1000
check "a window beyond the context, otherwise: a warning" sh -c "test -f $dir/y.gguf && grep -aq 'longer than the model.s context of 256' $dir/err"
refused "an output in no folder" 1 "/nowhere/at/all" $t -o /nowhere/at/all/x.gguf
refused "an output that is a folder" 2 "is a folder: -o takes the file to write, such as .*/adapter.gguf" $t -o "$dir"
refused "an output that is no folder yet" 2 "is a folder: -o takes the file to write, such as .*later/adapter.gguf" $t -o "$dir/later/"
refused "an output that is a device" 2 "a device or pipe: -o takes the file" $t -o /dev/null
train "$dir/few.gguf" --overwrite --num-epochs 1
check "few steps: a note" says '^note .*only [1-9] optimizer steps* in all: lower --batch-size or -c, or raise --num-epochs'
train "$dir/few.gguf" --overwrite --max-steps 3
check "few steps that were asked for: none" sh -c "! grep -aq 'optimizer step.* in all:' $dir/err"
train "$dir/few.gguf" --overwrite --max-steps 3 --warmup-steps 3
check "warmup to the end: a note" says '^note .*rate rises over 3 steps and the run has 3'
train "$dir/few.gguf" --overwrite --max-steps 30 --warmup-ratio 0.5
check "warmup to the middle: a note" says '^note .*rate rises for 15 of the 30 steps'
head -n 1 "$dir/data.jsonl" >"$dir/one.jsonl"
"$graft" train -m "$model" -d "$dir/one.jsonl" -o "$dir/one.gguf" --val-split 0 --num-epochs 1 --micro-batch-size 4 2>"$dir/err"
check "one window is one window, at a time too" sh -c "grep -aq 'an epoch is 1 window of' $dir/err && grep -aq '; 1 window at a time' $dir/err"
refused "an unknown option: the nearest" 2 "no option '--lerning-rate'; did you mean '--learning-rate'" $t --lerning-rate 1
refused "a letter is near to nothing" 2 "no option '--q'; graft train --help" $t --q 1
for foreign in '--bf16|float32' '--load-in-4bit|quantized' '--optim adamw|AdamW is the only' '--output-dir x|-o FILE.gguf' '--eval-strategy steps|--eval-steps N' '--adapter qlora|LoRA is the only' '-ngl 99|on the CPU'; do
  refused "an option of another trainer: ${foreign%%|*}" 2 "there is no option '${foreign%%[ |]*}': .*${foreign##*|}" $t ${foreign%%|*}
done
refused "true behind a flag" 2 "flag is given as --packing or --packing=true, and as --no-packing" $t --packing true
refused "data without its option" 2 "'more.jsonl' is one argument too many: data is given with -d" $t more.jsonl
refused "a config without its option" 2 "'run.yaml' is one argument too many: a config is given with --config" train run.yaml
for flag in 'no-packing=true|false' 'no_packing|false' 'packing=off|false' 'no-packing=false|true'; do
  train "$dir/flag.gguf" --max-steps 1 --overwrite -r3 "--${flag%%|*}"
  check "--${flag%%|*}: packing is ${flag##*|}; -r3 is -r 3" sh -c "grep -q '^packing: ${flag##*|}$' $dir/flag.yaml && grep -q '^lora_r: 3$' $dir/flag.yaml"
done
printf 'no_packing: true\n' >"$dir/flag.yaml.in"
train "$dir/flag.gguf" --max-steps 1 --overwrite --config "$dir/flag.yaml.in" --lr-scheduler-type constant_with_warmup
check "no_packing: true in a config" grep -q '^packing: false$' "$dir/flag.yaml"
refused "a value that is no number" 2 "max_steps takes a whole number, not 'many'" $t --max-steps many
printf 'model: %s\nlora_rnk: 8\n' "$model" >"$dir/bad.yaml"
refused "an unknown config key: line and nearest" 2 "bad.yaml:2: there is no option 'lora_rnk'; did you mean 'lora_r'" train --config "$dir/bad.yaml"
printf 'lora_r: [1, 2]\n' >"$dir/bad.yaml"
refused "a list where one value is wanted" 2 "bad.yaml:1: lora_r takes a single value" train --config "$dir/bad.yaml"
printf 'lora_r: 8\n  x: "\n' >"$dir/bad.yaml"
refused "a config that is not YAML" 1 "bad.yaml:[0-9]+: not YAML" train --config "$dir/bad.yaml"
refused "early stopping with nothing held out" 2 "early stopping needs held-out data" $t --val-split 0 --early-stopping-patience 2
refused "a schedule that is none" 2 "'wavy' is not one of cosine, linear, constant" $t --lr-scheduler wavy
printf 'lora_r: 2\nlearning_rate: 0.5\ntarget_modules: [attn_q, attn_k]\nval-split: 0\n' >"$dir/good.yaml"
"$graft" train --config "$dir/good.yaml" -m "$model" -d "$dir/data.jsonl" -o "$dir/z.gguf" --max-steps 1 --lr 0.25 --target-modules attn_v --json >"$dir/json" 2>"$dir/err"
check "flags win over the config, lists of flags replace the config's" sh -c "grep -q '^learning_rate: 0.25$' $dir/z.yaml && grep -q '^lora_r: 2$' $dir/z.yaml && grep -q \"^target_modules: \\['attn_v'\\]\" $dir/z.yaml"
check "with nothing held out the loss is absent, not 0" grep -q '"eval_loss":null' "$dir/json"
for broken in 'packing: true
no_packing: true|bad.yaml:2: packing is set already in line 1' 'load_in_4bit: true|bad.yaml:1: there is no option .load_in_4bit.: the base is trained on as' 'lora_r: 4
lr: 1e-3
learning_rate: 1e-4|bad.yaml:3: learning_rate is set already in line 2' 'lora_r: &r 4
batch_size: *r|bad.yaml:2: an alias' 'lora_r: 4
---
lora_r: 8|bad.yaml:2: a second document begins' 'lora:
  r: 8|bad.yaml:1: .lora. holds a mapping, and options do not nest' 'target_modules: []|bad.yaml:1: target_modules names nothing'; do
  printf '%s\n' "${broken%%|*}" >"$dir/bad.yaml"
  refused "a config with a fault: ${broken##*|}" 2 "${broken##*|}" train --config "$dir/bad.yaml"
done
refused "no target at all" 2 "target_modules names nothing to adapt" $t --target-modules ''
refused "an expression that is none" 2 "'\(' is not a regular expression \(POSIX extended\)" $t --target-modules 're:('
refused "--resume with --overwrite" 2 "--resume goes on .*--overwrite begins it anew" $t --resume --overwrite
refused "a warmup below nothing: the least" 2 "warmup_steps must be at least 0, not -2" $t --warmup-steps -2
refused "an empty output name" 2 "give the adapter to write with -o" $t -o ''
refused "an output name that is not UTF-8" 2 "is not UTF-8: give another -o" $t -o "$dir/$(printf 'n\351')"
[ -z "$(ls "$dir" | grep -e '^x\.' -e '\.tmp-')" ] && ok "refused runs leave nothing" || not_ok "refused runs leave nothing" "$(ls "$dir" | grep -e '^x\.' -e '\.tmp-')"

# ---- what would be written over ----
cp "$model" "$dir/base.gguf"
cp "$dir/data.jsonl" "$dir/own.metrics.jsonl"
printf 'max_steps: 1\n' >"$dir/conf.yaml"
refused "the model is no output" 2 "base.gguf is the model of this run and would be written over: give another -o" $t -m "$dir/base.gguf" -o "$dir/base.gguf" --overwrite
check "and is as it was" cmp "$model" "$dir/base.gguf"
refused "nor under another name" 2 "is the model of this run" $t -m "$dir/base.gguf" -o "$dir/./base.gguf" --overwrite
refused "nor is the config" 2 "conf.yaml is the config of this run" train --config "$dir/conf.yaml" -m "$model" $common -o "$dir/conf.gguf" --overwrite
check "which is as it was" test "$(cat "$dir/conf.yaml")" = 'max_steps: 1'
refused "nor is the data" 2 "own.metrics.jsonl is the training data of this run" $t -d "$dir/own.metrics.jsonl" -o "$dir/own.gguf" --overwrite
refused "nor is what is held out" 2 "own.metrics.jsonl is the held-out data of this run" $t --val-file "$dir/own.metrics.jsonl" -o "$dir/own.gguf" --resume
check "which are as they were" cmp "$dir/data.jsonl" "$dir/own.metrics.jsonl"
cp "$dir/f.gguf" "$dir/begun.gguf"
refused "nor is the adapter that it begins from" 2 "begun.gguf is the initial adapter of this run" $t --init-adapter "$dir/begun.gguf" -o "$dir/begun.gguf" --overwrite
check "which is as it was too" cmp "$dir/f.gguf" "$dir/begun.gguf"
refused "a file that stands where the run's own will is kept" 2 "own.metrics.jsonl exists already: give another -o, --resume.*--overwrite" $t -o "$dir/own.gguf"
mkfifo "$dir/fifo.gguf"
refused "an output that is a pipe" 2 "is a device or pipe: -o takes the file" $t -o "$dir/fifo.gguf" --overwrite
train "$dir/real.gguf" --max-steps 1
ln -s real.gguf "$dir/link.gguf"
train "$dir/link.gguf" --max-steps 2 --overwrite
check "an output that is a link to a file stays one, and the file is written" sh -c "test -h $dir/link.gguf && ! test -h $dir/real.gguf && $graft inspect $dir/link.gguf && ! cmp -s $dir/real.gguf $dir/a.gguf && test $(find "$dir/real.gguf" -newer "$dir/real.yaml" | wc -l) -eq 1"
mkdir "$dir/side.yaml"
refused "a folder where the config would go" 1 "cannot write .*side.yaml: it is a folder" $t -o "$dir/side.gguf" --overwrite
rm -rf "$dir"/base.* "$dir"/own.* "$dir"/conf.* "$dir"/side.* "$dir"/fifo.* "$dir"/real.* "$dir"/link.*

# ---- signals, pipes, leftovers ----
(trap '' HUP; exec "$graft" train -m "$model" $common -o "$dir/hup.gguf" --max-steps 150 --save-steps 10 -t 2 >/dev/null 2>"$dir/err") & pid=$!
until_saved hup $pid
kill -HUP $pid; wait $pid; rc=$?
check "a run begun under nohup goes on when the terminal goes" test $rc -eq 0 -a -f "$dir/hup.gguf"
"$graft" train -m "$model" $common -o "$dir/pipe.gguf" --max-steps 6 --json 2>"$dir/err" | head -n 1 >/dev/null
check "nor does it end because nobody reads its events" test -f "$dir/pipe.gguf"
"$graft" train -m "$model" $common -o "$dir/k.gguf" --max-steps 1500 --save-steps 5 --save-total-limit 3 -t 2 >/dev/null 2>&1 & pid=$!
while [ "$(ls "$dir" | grep -c '^k.step-.*checkpoint$')" -lt 2 ] && kill -0 $pid 2>/dev/null; do :; done
kill -KILL $pid; wait $pid 2>/dev/null
check "a killed run leaves its lock and checkpoints" sh -c "test -f $dir/k.lock && test $(ls "$dir" | grep -c '^k.step-') -ge 2"
newest=$(ls "$dir"/k.step-*.checkpoint | tail -n 1) before=$(ls "$dir"/k.step-*.checkpoint | tail -n 2 | head -n 1 | sed 's/.*step-0*\([0-9]*\).checkpoint/\1/')
head -c 3000 "$newest" >"$dir/cut"; mv "$dir/cut" "$newest"
again="train -m $model $common -o $dir/k.gguf --max-steps 1500 --save-steps 5 --save-total-limit 3"
refused "a truncated checkpoint: what to do" 1 "$(basename "$newest").*; delete .*$(basename "$newest"), and --resume goes on from the checkpoint of step $before" $again --resume
rm "$newest"
"$graft" $again --resume >/dev/null 2>"$dir/err"
check "and that does, whoever held the lock" sh -c "grep -aq 'after step $before of 1500' $dir/err && test -f $dir/k.gguf && ! test -e $dir/k.lock"
"$graft" train -m "$model" $common -o "$dir/q.gguf" --max-steps 1000000 --save-steps 5 -t 2 --overwrite >/dev/null 2>"$dir/first" & pid=$!
until_saved q $pid
kill -TERM $pid; wait $pid
check "how to go on does not say --overwrite" sh -c "grep -a '^go on ' $dir/first | grep -qv -e --overwrite"
check "nor does the config that repeats the run" grep -q '^overwrite: false$' "$dir/q.yaml"
cp "$dir/a.gguf" "$dir/early.gguf"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do # until the stop comes before the first step
  rm -f "$dir"/early.step-*
  "$graft" train -m "$model" $common --val-split 0 -o "$dir/early.gguf" --max-steps 1000000 -t 2 --overwrite >/dev/null 2>"$dir/first" & pid=$!
  while [ ! -e "$dir/early.lock" ] && kill -0 $pid 2>/dev/null; do :; done
  kill -TERM $pid; wait $pid
  ls "$dir"/early.step-* >/dev/null 2>&1 || break
done
check "stopped before there was anything to save: the same command begins anew" sh -c "grep -a '^go on ' $dir/first | grep -e --overwrite | grep -qv -e --resume && cmp -s $dir/a.gguf $dir/early.gguf"
printf 'overwrite: true\n' >"$dir/over.yaml"
"$graft" train --config "$dir/over.yaml" -m "$model" $common -o "$dir/q.gguf" --max-steps 1000000 --save-steps 5 --resume >/dev/null 2>"$dir/err" & pid=$!
while ! says "resumed from" && kill -0 $pid 2>/dev/null; do sleep 0.02; done
kill -KILL $pid; wait $pid 2>/dev/null
check "--resume wins over a config that overwrites" says "resumed from"
cp "$dir/data.jsonl" "$dir/$(printf 'd\351.jsonl')"; echo '{"text": ""}' >>"$dir/$(printf 'd\351.jsonl')"
"$graft" train -m "$model" -d "$dir/$(printf 'd\351.jsonl')" -c 64 -o "$dir/u.gguf" --max-steps 1 --json >"$dir/json" 2>"$dir/err"
check "--json is JSON whatever files are called" sh -c "test $? -eq 0 && iconv -f UTF-8 -t UTF-8 $dir/json >/dev/null && grep -q \"^{.event.:.note.*d$(printf '\357\277\275').jsonl\" $dir/json && ! grep -aq 'out of memory' $dir/err"
rm -f "$dir"/hup.* "$dir"/early.* "$dir"/pipe.* "$dir"/k.* "$dir"/q.*

if [ "$(id -u)" -ne 0 ]; then
  mkdir "$dir/locked"; chmod 555 "$dir/locked"
  refused "a folder that cannot be written" 1 "cannot create .*locked" $t -o "$dir/locked/x.gguf"
elif [ -d /proc/1 ]; then
  refused "a folder that cannot be written" 1 "/proc/" $t -o /proc/x.gguf
fi
if [ -f "$fault" ]; then
  train "$dir/full.gguf" --max-steps 9 --save-steps 3 # the undisturbed run
  cp "$dir/full.gguf" "$dir/full.bits"; rm -f "$dir"/full.[gym]*
  GRAFT_FAULT=io:8:ENOSPC+ GRAFT_FAULT_PATH=.checkpoint.tmp LD_PRELOAD=$fault "$graft" train -m "$model" $common -o "$dir/full.gguf" --max-steps 9 --save-steps 3 >/dev/null 2>"$dir/err"
  rc=$?
  check "no room for a checkpoint: exit 1, said so, the one before is whole" sh -c "test $rc -eq 1 && grep -aq '^graft: cannot write .*step-000006.*No space left' $dir/err && test -f $dir/full.step-000003.checkpoint && ! ls $dir | grep -q tmp-"
  train "$dir/full.gguf" --max-steps 9 --save-steps 3 --resume
  check "and with room again it is gone on with, to the same bits" sh -c "grep -aq 'after step 3 of 9' $dir/err && cmp $dir/full.gguf $dir/full.bits"
  rm -f "$dir"/full.[gym]*
  GRAFT_FAULT=io:3:ENOSPC+ GRAFT_FAULT_PATH=full.gguf.tmp LD_PRELOAD=$fault "$graft" train -m "$model" $common -o "$dir/full.gguf" --max-steps 9 >/dev/null 2>"$dir/err"
  rc=$?
  check "no room for the adapter: a checkpoint keeps what was learned" sh -c "test $rc -eq 1 && grep -aq '^graft: .*a checkpoint keeps it; make room, then --resume.*No space left' $dir/err && test -f $dir/full.step-000009.checkpoint && test ! -e $dir/full.gguf"
  train "$dir/full.gguf" --max-steps 9 --resume
  check "and with room again it is written, to the same bits" cmp "$dir/full.gguf" "$dir/full.bits"
  GRAFT_FAULT=io:1:EACCES+ GRAFT_FAULT_PATH=shut.gguf LD_PRELOAD=$fault "$graft" train -m "$model" $common -o "$dir/shut.gguf" --max-steps 9 >/dev/null 2>"$dir/err"
  rc=$?
  check "an output that may not be written: said before the first step" sh -c "test $rc -eq 1 && grep -aq '^graft: cannot create .*shut.gguf: Permission denied' $dir/err && ! grep -aq '^step' $dir/err"
fi

# ---- plan ----
"$graft" plan -m "$model" $common --max-steps 12 --json >"$dir/json" 2>"$dir/err"
check "plan: one line, with memory, time and placement" sh -c "test $(grep -c '"event":"plan"' "$dir/json") -eq 1 && grep -q '\"steps\":12' $dir/json && grep -q '\"peak_bytes\":[1-9]' $dir/json && grep -q '\"seconds\":' $dir/json && grep -q '\"placement\":\\[{\"backend\":\"cpu\"' $dir/json && grep -q '\"fallen\":\\[\\]' $dir/json"
check "plan says the same to people" sh -c "$graft plan -m $model $common --max-steps 12 2>/dev/null | grep -q '12 optimizer steps'"
# Many short samples: what attention costs goes by their lengths, and not by how many lie side by side.
awk 'BEGIN { for (i = 0; i < 1200; i++) printf "{\"text\": \"sample %d of many short ones, which are about as long as this\"}\n", i }' >"$dir/many.jsonl"
tiny=$here/models/tiny.gguf
took() { "$graft" plan -m "$tiny" -d "$dir/many.jsonl" --val-split 0 -t 1 --json "$@" 2>"$dir/err" | field seconds; }
one=$(took -c 64 --batch-size 256 --micro-batch-size 8 --num-epochs 1) many=$(took -c 64 --batch-size 1200 --micro-batch-size 1200 --num-epochs 1)
check "plan: as many tokens take as long, side by side or not ($one s, $many s)" awk "BEGIN { exit !($many < 6 * $one && $one < 6 * $many) }"
tenth=$(took -c 64 --batch-size 8 --num-epochs 10)
"$graft" plan -m "$model" $common --max-steps 1 -t 1000 >/dev/null 2>"$dir/err"
check "more threads than processors: a note" says "^note     1000 threads on [0-9]+ processors?: this is slower than -t [0-9]+, and changes no result"
check "plan: ten epochs take longer than a few steps" awk "BEGIN { exit !($tenth > 20 * $(took -c 64 --batch-size 8 --max-steps 5)) }"
if ! grep -q "^GR_SANITIZE:.*=." "$1/CMakeCache.txt"; then # a sanitizer takes more addresses than any limit
  (ulimit -v 900000; "$graft" plan -m "$tiny" -d "$dir/many.jsonl" --val-split 0 -c 64 --batch-size 1200 --micro-batch-size 1200 --max-memory 100G -t 1 --json >"$dir/json" 2>"$dir/err")
  check "plan allocates nothing of what it plans" sh -c "grep -q '\"peak_bytes\":' $dir/json"
fi
refused "plan refuses what cannot fit, and says the limit as it was typed" 1 "needs [0-9]+ MB and --max-memory 1M allows 1.0 MB" plan -m "$model" $common --max-memory 1M
refused "a size that is none is refused before anything is opened" 2 "a size is a number with K, M, G or T.*'much'" plan -m /nowhere.gguf $common --max-memory much
refused "the reference is no backend for runs" 2 "ref is the slow double reference.*--allow-ref" train -m "$model" $common -b ref -o "$dir/x.gguf"
refused "nor for generating" 2 "ref is the slow double reference.*--allow-ref" generate -m "$model" -b ref -p cat -n 1
check "unless it is allowed" "$graft" generate -m "$model" -b ref --allow-ref -p cat -n 1

# ---- eval ----
train "$dir/v.gguf" --max-steps 6 --val-file "$dir/data.jsonl" --json
"$graft" eval -m "$model" --lora "$dir/v.gguf" -d "$dir/data.jsonl" -c 64 --json >"$dir/eval" 2>/dev/null
want=$(grep '"event":"eval","step":6,' "$dir/json" | field loss)
check "eval gives the loss that training ended with" test "$(field loss <"$dir/eval")" = "$want" -a -n "$want"
"$graft" eval -m "$model" -d "$dir/data.jsonl" -c 64 --json >"$dir/eval" 2>/dev/null
check "and the base's is the one it began with" test "$(field loss <"$dir/eval")" = "$(grep '"event":"eval","step":0,' "$dir/json" | field loss)"
printf '5 17 42 8 9 60 61\n\n12 13 14\n7\n' >"$dir/ids"
ids() { "$graft" eval -m "$model" --ids "$dir/ids" --per-token --json "$@" 2>"$dir/err"; }
ids >"$dir/base.ids"
check "eval --ids: a line a sequence, n-1 losses and n choices" test "$(grep '"nll"' "$dir/base.ids" | awk -F'[][]' '{print split($2, a, ",") ":" split($4, b, ",")}' | tr '\n' ' ')" = "6:7 2:3 0:1 "
ids --lora "$dir/v.gguf" >"$dir/lora.ids"
check "an adapter moves them" sh -c "! cmp -s $dir/base.ids $dir/lora.ids"
ids --lora-scaled "$dir/v.gguf:0" >"$dir/zero.ids"
check "scaled by 0 it does not, to the bit" cmp "$dir/base.ids" "$dir/zero.ids"
train "$dir/fresh.gguf" --max-steps 1 --learning-rate 0
ids --lora "$dir/fresh.gguf" >"$dir/fresh.ids"
check "nor does a fresh adapter" cmp "$dir/base.ids" "$dir/fresh.ids"
refused "eval without data" 2 "give the data with -d FILE, or token ids" eval -m "$model"
echo '1 2 x' >"$dir/bad.ids"
refused "ids that are none: file and line" 1 "bad.ids: line 1: 'x' is not a token id" eval -m "$model" --ids "$dir/bad.ids"
echo '1 2 100000' >"$dir/bad.ids"
refused "an id outside the vocabulary" 1 "bad.ids: line 1: token id 100000 is outside the vocabulary of 112" eval -m "$model" --ids "$dir/bad.ids"
echo 7 >"$dir/bad.ids"
refused "ids with nothing to predict" 1 "bad.ids: there is nothing to predict: no line has two tokens" eval -m "$model" --ids "$dir/bad.ids"
"$graft" eval -m "$model" --ids "$dir/bad.ids" --per-token --json >"$dir/eval" 2>/dev/null
check "with --per-token there is no loss either" sh -c "grep -q '\"greedy\"' $dir/eval && grep -q '\"loss\":null,\"perplexity\":null' $dir/eval"
refused "a window of nothing" 2 "a window of 0 tokens is not possible: give at least 2 with -c" eval -m "$model" -d "$dir/data.jsonl" -c 0
refused "eval of data without a sample" 1 "mute.jsonl.*nothing to learn" eval -m "$model" -d "$dir/mute.jsonl"
refused "an adapter beyond all scale" 2 "--lora-scaled takes FILE:SCALE with a finite scale, not '1e39'" eval -m "$model" --lora-scaled "$dir/v.gguf:1e39" -d "$dir/data.jsonl" -c 64
"$graft" eval -m "$model" --lora-scaled "$dir/v.gguf:3e38" -d "$dir/data.jsonl" -c 64 >/dev/null 2>"$dir/err"
check "a loss that is no number in eval: exit 1, one sentence" sh -c "test $? -eq 1 && grep -aEq '^graft: .*finite' $dir/err"

# ---- docs/training.md ----
sed -n '/^    # run.yaml/,/^$/s/^    //p' "$here/docs/training.md" >"$dir/run.yaml"
(cd "$here" && "$graft" train --config "$dir/run.yaml" -o "$dir/doc.gguf" --max-steps 2 -t 2) >/dev/null 2>"$dir/err"
check "the config of docs/training.md runs" grep -aq '^adapter  .*doc.gguf' "$dir/err"
(cd "$here" && "$graft" train --config "$dir/doc.yaml" -o "$dir/again.gguf") >/dev/null 2>"$dir/err"
check "and what it resolved to makes the same adapter" cmp "$dir/doc.gguf" "$dir/again.gguf"
"$graft" train --help >"$dir/help"
unknown=$(grep -o -e '`--[a-z-]*' "$here/docs/training.md" | sed 's/^`//; s/^--no-/--/' | sort -u | while read -r o; do grep -q -e "$o" "$dir/help" || echo "$o"; done)
check "each option that it names exists" test -z "$unknown"
echo "1..$ran"
