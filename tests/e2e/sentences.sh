#!/bin/sh
# sentences.sh BUILD: what a user gets wrong is told in one sentence: what, where, what to do. Folders for files, outputs into no folder,
# files that are empty or cut off, adapters of another base, Ctrl-C, help. TAP on stdout.
. "$(dirname "$0")/../train_data.sh"
model=$golden/llama.gguf
tiny=$here/models/tiny.gguf
cd "$dir" || exit 1
mkdir folder
echo '[{"role": "user", "content": "x"}]' >one.json

# ---- a folder where a file is wanted ----
gguf="folder/? is a folder, and a model or adapter is a GGUF file: name the file in it, such as folder/model.gguf$"
refused "a folder for a model: generate" 1 "$gguf" generate -m folder -p x
refused "a folder for a model: train" 1 "$gguf" train -m folder/ -d data.jsonl -o x.gguf
refused "a folder for a model: tokenize" 1 "$gguf" tokenize -m folder -p x
refused "a folder for a model: data" 1 "$gguf" data -m folder -d data.jsonl
refused "a folder for a model: inspect" 1 "$gguf" inspect folder
refused "a folder for a model: quantize" 1 "$gguf" quantize folder x.gguf Q8_0
refused "a folder for an adapter: generate" 1 "$gguf" generate -m "$model" --lora folder -p x
refused "a folder for an adapter: train" 1 "$gguf" train -m "$model" -d data.jsonl -o x.gguf --init-adapter folder
data="folder/? is a folder, and data comes from files of JSONL, JSON or text: name each of them, such as folder/chats.jsonl$"
refused "a folder for data: train" 1 "$data" train -m "$model" -d folder -o x.gguf
refused "a folder for data: plan" 1 "$data" plan -m "$model" -d folder/
refused "a folder for data: data" 1 "$data" data -m "$tiny" -d folder
refused "a folder for data: eval" 1 "$data" eval -m "$model" -d folder
refused "a folder for held-out data" 1 "$data" train -m "$model" -d data.jsonl --val-file folder -o x.gguf
file="cannot read folder: it is a folder, and a file is wanted: name the file in it$"
refused "a folder for a prompt" 1 "$file" generate -m "$model" -f folder
refused "a folder for a text" 1 "$file" tokenize -m "$model" -f folder
refused "a folder for ids" 1 "$file" eval -m "$model" --ids folder
refused "a folder for messages" 1 "$file" render -m "$tiny" --messages folder
refused "a folder for a template" 1 "$file" render --template folder --messages one.json
refused "a folder for a config" 1 "$file" train --config folder

# ---- an output into a folder that is not there ----
refused "no folder for the output: train" 1 "cannot create no/such/x.gguf: there is no folder no/such: make it, or give another -o$" train -m "$model" -d data.jsonl -o no/such/x.gguf
refused "no folder for the output: plan" 1 "there is no folder no/such: make it, or give another -o$" plan -m "$model" -d data.jsonl -o no/such/x.gguf
refused "a file where the folder would be" 1 "there is no folder data.jsonl: make it, or give another -o$" train -m "$model" -d data.jsonl -o data.jsonl/x.gguf
refused "no folder for the output: quantize" 1 "cannot create no/such/x.gguf: there is no folder no/such: make it, or name another file$" quantize "$model" no/such/x.gguf Q8_0
refused "no folder for the output: ops record" 1 "there is no folder no/such: make it, or name another file$" ops record no/such/x.gguf -m "$model" -d data.jsonl -c 64 --batch-size 1
check "which is found before the step" sh -c "! grep -q '^note' err"
check "and nothing was made" test ! -e no

# ---- empty, cut off, more than one ----
: >empty.gguf
refused "an empty model" 1 "empty.gguf: the file is empty: copy or download it again$" inspect empty.gguf
refused "an empty adapter" 1 "empty.gguf: the file is empty" generate -m "$model" --lora empty.gguf -p x
{ head -n 3 data.jsonl; printf '{"text": "a record that was cut'; } >cut.jsonl
{ cat cut.jsonl; echo; tail -n 3 data.jsonl; } >cut-inside.jsonl
refused "data cut off at its end" 1 "cut.jsonl:4: the file ends inside this record, which was cut off: complete it, or leave it out$" data -m "$model" -d cut.jsonl
refused "data cut off inside" 1 "cut-inside.jsonl:4: the line ends inside this record, which was cut off: complete it, or leave it out$" train -m "$model" -d cut-inside.jsonl -o x.gguf
printf '{"role": "user", "content": "x"}\n{"role": "user", "content": "y"}\n' >turns.jsonl
refused "JSONL for messages" 1 "turns.jsonl:2: one JSON value is wanted and another follows it: give a file of one .*head -n 1" render -m "$tiny" --messages turns.jsonl

# ---- numbers that an option does not take: named as they are typed ----
refused "train -c 1" 2 "^graft: -c \(window\) must be at least 2, not 1$" train -m "$model" -d data.jsonl -o x.gguf -c 1
refused "train -c x" 2 "^graft: -c \(window\) takes a whole number, not 'x'$" train -m "$model" -d data.jsonl -o x.gguf -c x
refused "train -t 5000" 2 "^graft: -t \(threads\) must be at most 1024" train -m "$model" -d data.jsonl -o x.gguf -t 5000
echo 'window: 1x' >run.yaml
refused "in a config by its key" 2 "^graft: run.yaml:1: window takes a whole number" train --config run.yaml
refused "data -c 1" 2 "window of 1 tokens is not possible: give at least 2 with -c$" data -m "$model" -d data.jsonl -c 1
refused "eval -c 1" 2 "window of 1 tokens is not possible: give at least 2 with -c$" eval -m "$model" -d data.jsonl -c 1
refused "bench -c 1" 2 "give at least 2 with -c" bench -m "$model" -c 1
refused "generate -c 1" 2 "-c" generate -m "$tiny" -c 1 -p 'one two three'

# ---- what is typed in other programs ----
for command in chat generate tokenize; do refused "a text without its option: $command" 2 "'hello' is one argument too many: a text is given with -p$" $command -m "$tiny" hello; done
refused "two words are not" 2 "'b.gguf' is one argument too many" inspect "$tiny" b.gguf
for word in version -V --version; do check "$word" sh -c "'$graft' $word | grep -q '^graft [0-9]'"; done
refused "a list of Python for targets" 2 "target_modules takes names with commas between them, as in q_proj,v_proj, not '\['q_proj', 'v_proj'\]'" train -m "$model" -d data.jsonl -o x.gguf --target-modules "['q_proj', 'v_proj']"
refused "blanks between targets" 2 "as in q_proj,v_proj, not 'q_proj v_proj'" train -m "$model" -d data.jsonl -o x.gguf --target-modules "q_proj v_proj"
check "blanks behind commas are fine" "$graft" plan -m "$model" -d data.jsonl --target-modules "q_proj, v_proj"
check "and so is any expression" "$graft" plan -m "$model" -d data.jsonl --target-modules "re:.*attn_[qv][.]weight"
refused "memory without a unit" 2 "a size is a number with K, M, G or T, as in 900M or 6G, not '6'" train -m "$model" -d data.jsonl -o x.gguf --max-memory 6
cp "$golden/llama-lora.gguf" scaled.gguf
refused "a scale behind --lora" 1 "cannot open scaled.gguf:0.5: .*: a scale is given as --lora-scaled scaled.gguf:0.5$" generate -m "$model" --lora scaled.gguf:0.5 -p x
refused "and no file behind it" 1 "cannot open nope.gguf:0.5: No such file or directory$" generate -m "$model" --lora nope.gguf:0.5 -p x
refused "a model that is no GGUF" 1 "data.jsonl: not a GGUF file, .*: convert the model to GGUF, or name another file$" inspect data.jsonl
for word in /quit /bye /exit; do check "chat ends on $word" test "$(printf '%s\nWho?\n' $word | "$graft" chat -m "$tiny" --temp 0 -n 4 --json 2>/dev/null | wc -l)" -eq 0; done
check "chat tells on /help" sh -c "printf '/help\n' | '$graft' chat -m $tiny --json 2>&1 | grep -q '^Ctrl-D or /exit ends the conversation'"

# ---- help of each command, however it is asked for ----
for command in $("$graft" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
  check "help $command" sh -c "'$graft' $command --help >whole 2>&1 && '$graft' help $command >asked && cmp whole asked && '$graft' --help $command | cmp whole -"
done
check "help of help is help" sh -c "'$graft' --help >whole && '$graft' help help | cmp whole - && '$graft' help --json | cmp whole -"
refused "help of a command that is none" 2 "no command 'trian'; did you mean 'train'" help trian

# ---- an adapter that was trained on another base of the same shapes ----
train() { "$graft" train -m "$model" -d data.jsonl -c 64 --batch-size 3 --max-steps 1 --val-split 0 "$@" >out 2>err </dev/null; }
pages=$(($(wc -c <"$model") / 4096))
cp "$model" other.gguf
dd if="$model" of=other.gguf bs=4096 skip=$((pages - 40)) seek=$((pages - 20)) count=20 conv=notrunc 2>/dev/null # other weights, of the same kind
cp "$model" touched.gguf
printf '\001' | dd of=touched.gguf bs=1 seek=$(($(wc -c <"$model") - 2000)) conv=notrunc 2>/dev/null # one byte
check "other bases" sh -c "! cmp -s $model other.gguf && '$graft' inspect other.gguf && ! cmp -s $model touched.gguf && '$graft' inspect touched.gguf"
train -o a.gguf --lora-r 2
check "an adapter holds hash and sample of its base" sh -c "'$graft' inspect a.gguf --metadata | grep -q 'graft.base.hash  .*\"[0-9a-f]\{32\}\"' && '$graft' inspect a.gguf --metadata | grep -q 'graft.base.sample  .*\"[0-9a-f]\{32\}\"'"
other="a.gguf was trained on another base than other.gguf: it fits, but what it learned may not hold here; give the model that it was trained on, if you have it$"
noted() { name=$1; shift; if "$graft" "$@" >out 2>err </dev/null && [ "$(grep -cE "^note     $other" err)" -eq 1 ]; then ok "$name"; else not_ok "$name" "$(tail -n 3 err)"; fi; }
silent() { name=$1; shift; if "$graft" "$@" >out 2>err </dev/null && ! grep -q 'another base' err out; then ok "$name"; else not_ok "$name" "$(tail -n 3 err)"; fi; }
noted "another base: generate" generate -m other.gguf --lora a.gguf -p x -n 1
noted "another base: chat" chat -m other.gguf --lora-scaled a.gguf:0.5 -p x -n 1
noted "another base: eval" eval -m other.gguf --lora a.gguf -d data.jsonl
noted "another base: train" train -m other.gguf -d data.jsonl -c 64 --max-steps 1 --val-split 0 --init-adapter a.gguf -o b.gguf
check "another base: inspect" sh -c "'$graft' inspect a.gguf --base other.gguf | grep -q '^base: .*fits the model given, but was trained on another'"
check "a base that differs in one byte: eval reads it whole" sh -c "'$graft' eval -m touched.gguf --lora a.gguf -d data.jsonl 2>&1 | grep -q '^note     a.gguf was trained on another base than touched.gguf'"
refused "another base: eval --strict" 1 "$other" eval -m other.gguf --lora a.gguf -d data.jsonl --strict
for command in "generate -p x -n 1" "chat -p x -n 1" "eval -d data.jsonl"; do silent "its own base: ${command%% *}" $command -m "$model" --lora a.gguf; done
silent "another quantization is another base, and an adapter without a word of it none: generate" generate -m other.gguf --lora "$golden/llama-lora.gguf" -p x -n 1
silent "and eval" eval -m other.gguf --lora "$golden/llama-lora.gguf" -d data.jsonl
silent "and train" train -m other.gguf -d data.jsonl -c 64 --max-steps 1 --val-split 0 --init-adapter "$golden/llama-lora.gguf" -o c.gguf

# ---- Ctrl-C ----
# pressed TIMES COMMAND...: so many SIGINT once it writes, and what came of it in $rc and out
pressed() {
  times=$1; shift
  rm -f out err # what stood there would be taken for what it writes
  "$graft" "$@" >out 2>err </dev/null & pid=$!
  while [ ! -s out ] && kill -0 $pid 2>/dev/null; do sleep 0.02; done
  while [ "$times" -gt 0 ]; do kill -INT $pid 2>/dev/null; times=$((times - 1)); done
  wait $pid; rc=$?
}
pressed 1 generate -m "$golden/qwen2.gguf" -c 100000 -n 90000 --temp 0 -p x
check "generate ends cleanly on the first Ctrl-C" sh -c "test $rc -eq 0 && grep -q 'generated, .*tok/s\]$' err"
awk 'BEGIN { for (i = 0; i < 12000; i++) printf "a b "; }' >long.txt # a prompt that takes its time: nothing asks for Ctrl-C meanwhile
twice() { # COMMAND...: pressed once, and then again
  command=$1
  rm -f out err
  "$graft" "$@" -m "$golden/qwen2.gguf" -n 1 -c 60000 -t 1 >out 2>err </dev/null & pid=$!
  until [ -s err ] || ! kill -0 $pid 2>/dev/null; do sleep 0.02; done # it notes that the context is a long one, and begins
  kill -INT $pid; sleep 0.2
  check "a first Ctrl-C waits for what is being computed: $command" kill -0 $pid
  kill -INT $pid; wait $pid; rc=$?
  check "a second one does not: $command" test $rc -eq 130
}
twice generate -f long.txt
twice chat -p "$(cat long.txt)"
"$graft" train -m "$model" -d data.jsonl -c 64 --batch-size 3 --max-steps 3000 --save-steps 100 -t 1 -o twice.gguf >out 2>err </dev/null & pid=$!
until_saved twice $pid
kill -INT $pid; kill -INT $pid; wait $pid; rc=$?
check "train, pressed twice, leaves what can be gone on with" sh -c "test $rc -eq 130 -o $rc -eq 1 && ! ls twice*tmp* 2>/dev/null && '$graft' plan -m $model -d data.jsonl -c 64 --batch-size 3 --max-steps 3000 && ls twice.step-*.checkpoint"
python3 - big.gguf <<'END' # 64 tensors of zeros, 256 MB that take no place
import struct, sys
text = lambda s: struct.pack('<Q', len(s)) + s.encode()
head = b'GGUF' + struct.pack('<IQQ', 3, 64, 1) + text('general.architecture') + struct.pack('<I', 8) + text('llama')
for i in range(64): head += text('blk.%d.ffn_up.weight' % i) + struct.pack('<IQQIQ', 2, 1024, 1024, 0, i << 22)
with open(sys.argv[1], 'wb') as f:
    f.write(head + bytes(-len(head) % 32))
    f.truncate(f.tell() + (64 << 22))
END
pressed 1 quantize big.gguf quantized.gguf Q4_K --json -t 1
check "quantize stops at the first Ctrl-C" sh -c "test $rc -eq 1 && grep -q \"^graft: stopped at tensor 'blk.[0-9]*.ffn_up.weight': nothing is written\" err"
check "and leaves no half of a file" sh -c "! ls quantized* 2>/dev/null"

# ---- what else was said to nobody ----
cp "$model" nan.gguf
printf '\377\377\377\377' | dd of=nan.gguf bs=1 seek=$(($(wc -c <"$model") - 64)) conv=notrunc 2>/dev/null
refused "inspect fails on weights that are no numbers" 1 "nan.gguf: tensor '.*' holds NaN or infinity, first at .*: download or convert the model again" inspect nan.gguf
check "and describes the file all the same" grep -q '^model: ' out
refused "with --json too" 1 "holds NaN or infinity" inspect nan.gguf --json
check "in its notes" grep -q '"notes":\[".*holds NaN' out
train -o emu.gguf -b emu
check "a training step leaves no node to the CPU on the emulated GPU" sh -c "! grep -q 'no kernel' err"
echo '1 2 3 4' >ids
"$graft" eval -d data.jsonl -m "$model" -b emu >out 2>err </dev/null
check "nor does an evaluation" sh -c "! grep -q 'no kernel' err"
for command in "generate -p x -n 1" "chat -p x -n 1" "eval --ids ids"; do
  "$graft" $command -m "$model" -b emu >out 2>err </dev/null
  check "$command says what the wanted backend has no kernel for: caches stay on the host" grep -qE '^note     [0-9]+ of [0-9]+ launches of a run have no kernel on emu and run on cpu: ([a-z_]+ [0-9]+, )*[a-z_]+ [0-9]+$' err
  "$graft" $command -m "$model" >out 2>err </dev/null
  check "which says nothing where there is nothing" sh -c "! grep -q 'no kernel' err"
done
train -o cpu.gguf
check "and nothing when there is nothing" sh -c "! grep -q 'no kernel' err"
echo "1..$ran"
