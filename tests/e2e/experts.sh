#!/bin/sh
# experts.sh BUILD: `graft train` on the golden models with experts, adapters on stacks, router, shared experts and head: from outside.
. "$(dirname "$0")/../train_data.sh"
common="-d $dir/data.jsonl -c 64 --batch-size 3 --lora-r 2 --val-split 0.2 --learning-rate 1e-3 --lora-dropout 0.1"
targets=all-linear,experts,router
train() { of=$1; output=$2; shift 2; "$graft" train -m "$golden/$of.gguf" $common --target-modules $targets -o "$output" "$@" >"$dir/json" 2>"$dir/err" </dev/null; }
field() { sed -n "s/.*\"$1\":\\([^,}]*\\).*/\\1/p"; }

# ---- what is said of them ----
check "inspect says how many experts there are" sh -c "'$graft' inspect $golden/qwen3moe.gguf | grep -q '^experts: *3 of 8 for each token, feed-forward 32; 0.09 million'"
check "and of a shared one" sh -c "'$graft' inspect $golden/granitemoe-shared.gguf | grep -q 'feed-forward 32, and a shared one of 40;'"
check "inspect --json too" sh -c "'$graft' inspect $golden/gpt-oss.gguf --json | grep -q '\"experts\":{\"count\":6,\"used\":2,\"ff\":32,\"shared_ff\":0,'"
check "inspect says which layers slide" sh -c "'$graft' inspect $golden/gemma3.gguf | grep -q '^window: *6 of 7 layers see 8 tokens back'"
check "an adapter's stacks are counted" sh -c "'$graft' inspect $golden/mixtral-lora.gguf | grep -q '14 matrices (6 of them stacks of experts), rank 2 to 3'"
check "a dense model has none" sh -c "! '$graft' inspect $golden/llama.gguf | grep -q '^experts'"
refused "a group that a model lacks: what it has" 2 "'mlp' matches nothing.*ffn_gate_inp or router, ffn_gate_exps, ffn_up_exps, ffn_down_exps" train -m "$golden/qwen3moe.gguf" $common --target-modules mlp -o "$dir/x.gguf"
refused "an adapter of another model of the same architecture" 1 "granitemoe-lora.gguf adapts '.*', which|is it another model's adapter" generate -m "$golden/granitemoe-shared.gguf" --lora "$golden/granitemoe-lora.gguf" -p x

# ---- every node of every architecture has a kernel ----
for of in llama qwen2 qwen3 granite gemma3 phi3 mistral3 qwen2moe qwen3moe qwen3moe-fused qwen3moe-wide mixtral olmoe granitemoe granitemoe-shared gpt-oss gpt-oss-wide; do
  case $of in *moe* | mixtral | gpt-oss*) targets=all-linear,experts,router ;; *) targets=all-linear ;; esac
  "$graft" plan -m "$golden/$of.gguf" $common --target-modules $targets -o "$dir/p.gguf" --json >"$dir/plan" 2>"$dir/err" </dev/null
  check "$of: no node without a kernel of the CPU" sh -c "grep -q '\"fallen\":\[\]' $dir/plan && grep -q '\"backend\":\"cpu\"' $dir/plan && ! grep -q '\"backend\":\"ref\"' $dir/plan"
done

# ---- runs ----
targets=all-linear,experts,router
for of in qwen2moe qwen3moe qwen3moe-fused mixtral olmoe granitemoe granitemoe-shared gpt-oss; do
  train $of "$dir/$of.gguf" --max-steps 6 -t 2 --json
  tail -n 1 "$dir/json" >"$dir/done"
  check "$of: trains, and the loss falls" awk "BEGIN { exit !($(field loss_last <"$dir/done") < $(field loss_first <"$dir/done")) }"
  check "$of: its adapter fits it" "$graft" inspect "$dir/$of.gguf" --base "$golden/$of.gguf"
  check "$of: and is used" "$graft" generate -m "$golden/$of.gguf" --lora "$dir/$of.gguf" -p 'the man' -n 4 --temp 0
done

# ---- one rank for tensors of which some are narrower ----
train qwen3moe "$dir/r16.gguf" --max-steps 3 --lora-r 16 -t 1
check "the router of 8 experts has rank 8 where others have 16, and it is said" sh -c "grep -aq 'rank 16 is more than 2 of the tensors allow: blk.0.ffn_gate_inp.weight, which is 64 x 8, has rank 8, and counts alpha / 8' $dir/err"
check "inspect shows both" sh -c "'$graft' inspect $dir/r16.gguf --base $golden/qwen3moe.gguf | grep -q 'rank 8 to 16'"
check "such an adapter is gone on with" train qwen3moe "$dir/r16b.gguf" --max-steps 3 --init-adapter "$dir/r16.gguf" -t 1
refused "a rank that no target allows" 2 "rank 16 is larger than blk.0.ffn_gate_inp.weight allows, which is 64 x 8: use --lora-r 8 or less" train -m "$golden/qwen3moe.gguf" $common --target-modules router --lora-r 16 -o "$dir/x.gguf"

# ---- the same bits ----
train qwen3moe "$dir/a.gguf" --max-steps 40 --save-steps 10 -t 2
same() { # NAME ARGUMENTS...
  name=$1; shift
  rm -rf "$dir"/b.*
  if train qwen3moe "$dir/b.gguf" --max-steps 40 --save-steps 10 "$@" && cmp -s "$dir/a.gguf" "$dir/b.gguf"; then ok "$name"
  else not_ok "$name" "$(tail -n 2 "$dir/err")"; fi
}
same "7 threads: the same adapter" -t 7
same "layers computed again for backward: the same adapter" -t 1 --gradient-checkpointing on
options="-m $golden/qwen3moe.gguf $common --target-modules $targets -o $dir/c.gguf --max-steps 40 --save-steps 10 -t 1"
"$graft" train $options >/dev/null 2>"$dir/first" & pid=$!
until_saved c $pid
kill -KILL $pid; wait $pid 2>/dev/null
check "a killed run left a checkpoint" sh -c "ls $dir/c.step-*.checkpoint"
"$graft" train $options --resume >/dev/null 2>"$dir/err"
check "resumed, it ends with the bits of a run that was not stopped" sh -c "grep -aq 'resumed from' $dir/err && cmp $dir/a.gguf $dir/c.gguf"
echo "1..$ran"
