#!/bin/sh
# cli.sh BUILD: the commands as a user types them, on the embedded model: what they print, and one sentence for what is wrong. TAP.
graft=$1/graft
root=$(cd "$(dirname "$0")/../.." && pwd)
model=$root/models/tiny.gguf
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
count=0
ok() { count=$((count + 1)); echo "ok $count - $1"; }
not_ok() { count=$((count + 1)); echo "not ok $count - $1: $2"; }

# refused STATUS PATTERN NAME command...: that exit status, one sentence on stderr that matches, nothing on stdout.
refused() {
  want=$1 pattern=$2 name=$3; shift 3
  timeout 60 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; rc=$?
  if [ $rc -ne "$want" ]; then not_ok "$name" "exit $rc: $(head -c 200 "$tmp/err")"
  elif [ -s "$tmp/out" ]; then not_ok "$name" "wrote on stdout: $(head -c 100 "$tmp/out")"
  elif [ "$(grep -c '^graft: ' "$tmp/err")" -ne 1 ]; then not_ok "$name" "not one sentence: $(head -c 200 "$tmp/err")"
  elif ! grep -qE "$pattern" "$tmp/err"; then not_ok "$name" "says: $(head -c 200 "$tmp/err")"
  else ok "$name"; fi
}

# says PATTERN NAME command...: exit 0 and stdout matches.
says() {
  pattern=$1 name=$2; shift 2
  timeout 120 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; rc=$?
  if [ $rc -ne 0 ]; then not_ok "$name" "exit $rc: $(head -c 200 "$tmp/err")"
  elif ! grep -qE "$pattern" "$tmp/out"; then not_ok "$name" "printed: $(head -c 200 "$tmp/out")"
  else ok "$name"; fi
}

says '^graft [0-9]' 'version' "$graft" --version
says 'train +' 'help lists the commands' "$graft" --help
for command in $("$graft" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do says 'graft' "$command --help" "$graft" "$command" --help; done
refused 2 "did you mean 'train'" 'a mistyped command' "$graft" trian
refused 2 'did you mean --temp' 'a mistyped option' "$graft" generate -m "$model" --tmp 0 -p x
refused 2 'whole number' 'a number that is none' "$graft" generate -m "$model" -n ten -p x
refused 2 'needs a value' 'a missing value' "$graft" generate -m
refused 2 'give the model' 'no model' "$graft" generate -p x
refused 2 'give the prompt' 'no prompt' "$graft" generate -m "$model"
refused 2 'no backend' 'an unknown backend' "$graft" generate -m "$model" -p x -b cuda9
refused 2 "no backend 'cuda' in this build, which computes on the CPU.*emu an emulated GPU, for tests" 'a GPU where there is none' "$graft" generate -m "$model" -p x -b cuda
for option in -ngl --n-gpu-layers --device; do
  refused 2 "no option $option: this build computes on the CPU" "$option" "$graft" generate -m "$model" -p x $option 99
done
refused 2 'no option --q; --help lists' 'one letter is near to nothing' "$graft" generate -m "$model" --q x
refused 2 'flag is given as --json or --json=true, and as --no-json or --json=false' 'a word behind a flag' "$graft" inspect "$model" --json true
refused 2 "'x.jsonl' is one argument too many: data is given with -d" 'data without its option' "$graft" data -m "$model" x.jsonl
refused 2 "'x.gguf' is one argument too many: a model is given with -m" 'a model without its option' "$graft" chat x.gguf
refused 2 'no-control takes true or false' 'a flag that is neither' "$graft" tokenize -m "$model" --no-control=perhaps -p x
refused 1 'nowhere.gguf.*No such file' 'a missing model' "$graft" inspect "$tmp/nowhere.gguf"
refused 1 'is a folder' 'a folder for a model' "$graft" inspect "$tmp"

head -c 100000 "$model" >"$tmp/cut.gguf"
refused 1 'cut.gguf' 'a truncated model' "$graft" generate -m "$tmp/cut.gguf" -p x
echo "not a model" >"$tmp/text.gguf"
refused 1 'text.gguf' 'a text for a model' "$graft" inspect "$tmp/text.gguf"
adapter=$root/tests/golden/qwen2-lora.gguf
refused 1 'adapter.*--lora' 'an adapter for a model' "$graft" generate -m "$adapter" -p x
refused 1 'qwen2' 'an adapter of another architecture' "$graft" generate -m "$model" --lora "$adapter" -p x
refused 1 'tiny.gguf' 'a model for an adapter' "$graft" generate -m "$model" --lora "$model" -p x
refused 2 'FILE:SCALE' 'a scale that is none' "$graft" generate -m "$model" --lora-scaled "$adapter:much" -p x
refused 2 'context' 'a prompt longer than the context' "$graft" generate -m "$model" -c 4 -p 'one two three four five six seven'
refused 2 'tokens' 'a negative length' "$graft" generate -m "$model" -n -5 -p x
refused 2 'top-p' 'a sampling option out of range' "$graft" generate -m "$model" --top-p 3 -p x

for command in 'plan -d x' 'train -d x -o y' 'tokenize -p x' 'generate -p x'; do
  refused 1 'Qwen/Qwen3-0.6B is no file here, .* name on the Hugging Face Hub: .*GGUF' "a name of the hub for a model: ${command%% *}" "$graft" $command -m Qwen/Qwen3-0.6B
done
says '^model: +qwen3moe' 'inspect a model' "$graft" inspect "$model"
says '"architecture":"qwen3moe"' 'inspect --json' "$graft" inspect "$model" --json
says 'blk.0.attn_q.weight +Q8_0' 'inspect --tensors' "$graft" inspect "$model" --tensors
says '"fits_base":null' 'inspect --json of an adapter without a base' "$graft" inspect "$adapter" --json
says '"fits_base":true' 'and with one' "$graft" inspect "$adapter" --json --base "$root/tests/golden/qwen2.gguf"
says 'LoRA for qwen2' 'inspect an adapter' "$graft" inspect "$adapter"
refused 1 'architecture' 'inspect an adapter against another base' "$graft" inspect "$adapter" --base "$model"

text='Where does Bram Tuckett live? <|im_end|> 42'
ids=$("$graft" tokenize -m "$model" -p "$text")
[ "$("$graft" tokenize -m "$model" -d -p "$ids")" = "$text" ] && ok 'tokens come back as the text' || not_ok 'tokens come back as the text' "$ids"
[ "$("$graft" tokenize -m "$model" -p '<|im_end|>' | wc -w)" -eq 1 ] && ok 'a control token is one token' || not_ok 'a control token is one token' ''
[ "$("$graft" tokenize -m "$model" --no-control -p '<|im_end|>' | wc -w)" -gt 1 ] && ok 'or its letters' || not_ok 'or its letters' ''
for flag in --no-control=true --no_control --control=false; do
  [ "$("$graft" tokenize -m "$model" $flag -p '<|im_end|>' | wc -w)" -gt 1 ] && ok "or so with $flag" || not_ok "or so with $flag" ''
done
[ "$("$graft" tokenize -m "$model" --no-control=false -p '<|im_end|>' | wc -w)" -eq 1 ] && ok 'not so with --no-control=false' || not_ok 'not so with --no-control=false' ''
refused 2 'token id' 'an id outside the vocabulary' "$graft" tokenize -m "$model" -d -p '99999'
echo 99999 >"$tmp/ids"
refused 1 "'99999.*is not a token id" 'or in a file, which is data' "$graft" tokenize -m "$model" -d -f "$tmp/ids"
refused 2 'with -p TEXT or with -f FILE, not with both' 'two texts' "$graft" tokenize -m "$model" -f "$tmp/ids" -p 1
refused 1 'is an adapter and has no vocabulary: give the model it is for with -m' 'an adapter for a vocabulary' "$graft" tokenize -m "$adapter" -p x
data=$root/models/teach.jsonl
refused 1 'is an adapter and has no vocabulary' 'an adapter for the vocabulary of data' "$graft" data -m "$adapter" -d "$data"
refused 2 'a window of 0 tokens is not possible' 'data in a window of nothing' "$graft" data -m "$model" -d "$data" -c 0
refused 2 "window of 9999 tokens is longer than the model's context of [0-9]" 'data --strict' "$graft" data -m "$model" -d "$data" -c 9999 --strict
refused 2 '0 \(one a processor\) to 1024 threads, not -1' 'threads below none' "$graft" generate -m "$model" -t -1 -p x
refused 2 "0 \\(one a processor\\) to 1024 threads, not '-1'" 'threads below none, of ops' "$graft" ops perf -t -1
refused 2 "there is no op 'nosuch'" 'an op that is none' "$graft" ops test -o nosuch
says 'calls, one of each kind; 0 too large' 'a step recorded' "$graft" ops record "$tmp/step.gguf" -m "$model" -d "$data" -c 64 --batch-size 1
says '^test: [1-9].* 0 failures' 'and replayed' "$graft" ops test --replay "$tmp/step.gguf" -o scale,rope -b cpu
refused 2 'give the file to write' 'a recording without a file' "$graft" ops record -m "$model" -d "$data"
refused 2 'is no recording: it is not written over' 'a recording over something else' "$graft" ops record "$tmp/ids" -m "$model" -d "$data" -c 64 --batch-size 1
refused 2 'replay is for ops test' 'a replay in another mode' "$graft" ops grad --replay "$tmp/step.gguf"
refused 1 "'graft.calls' is missing" 'a replay of what is no recording' "$graft" ops test --replay "$model"
refused 2 "0 \(one a processor\) to 1024 threads, not 4294967297" 'threads beyond 32 bits' "$graft" quantize x y Q8_0 -t 4294967297

# A model without a chat template, whose vocabulary has no <|im_end|>: EOS ends the assistant's turns, and data says so.
golden=$root/tests/golden/llama.gguf
head -n 1 "$data" >"$tmp/one.jsonl"
LC_ALL=C sed 's/<|im_end|>/<|finish|>/g; s/tokenizer.chat_template/tokenizer.chat_templatX/' "$golden" >"$tmp/bare.gguf"
says '^\[\[.*<[|]finish[|]>\]\]$' 'turns end with EOS where nothing else ends them' "$graft" data -m "$tmp/bare.gguf" -d "$tmp/one.jsonl" --show 1
grep -q 'no chat template: conversations are written by the built-in ChatML template with EOS' "$tmp/err" && ok 'data says so' || not_ok 'data says so' "$(cat "$tmp/err")"
says '^chat template: none .*with EOS' 'and so does inspect' "$graft" inspect "$tmp/bare.gguf"

# What cannot be written or read is no success.
lost() { # NAME PATTERN command...: exit 1 and one sentence
  name=$1 pattern=$2; shift 2
  timeout 60 "$@" >/dev/full 2>"$tmp/err" </dev/null; rc=$?
  if [ $rc -eq 1 ] && [ "$(grep -cE "^graft: $pattern" "$tmp/err")" -eq 1 ]; then ok "$name"; else not_ok "$name" "exit $rc: $(head -c 200 "$tmp/err")"; fi
}
if [ -c /dev/full ]; then
  lost 'inspect to a full disk' 'cannot write standard output: No space left' "$graft" inspect "$model"
  lost 'inspect --json to a full disk' 'cannot write standard output: No space left' "$graft" inspect "$model" --json
  lost 'help to a full disk' 'cannot write standard output: No space left' "$graft" --help
  lost 'generate to a full disk' 'cannot write standard output: No space left' "$graft" generate -m "$model" -n 3 -p x
fi
"$graft" inspect "$model" >&- 2>"$tmp/err"; rc=$?
[ $rc -eq 1 ] && grep -q '^graft: cannot write standard output' "$tmp/err" && ok 'a closed standard output' || not_ok 'a closed standard output' "exit $rc: $(cat "$tmp/err")"
timeout 60 "$graft" chat -m "$model" <&- >"$tmp/out" 2>"$tmp/err"; rc=$?
[ $rc -eq 1 ] && grep -q '^graft: cannot read standard input' "$tmp/err" && ok 'chat with standard input closed' || not_ok 'chat with standard input closed' "exit $rc: $(cat "$tmp/err")"

says '"notes":\[\]' 'inspect --json has no notes where there are none' "$graft" inspect "$model" --json

says '^Bram Tuckett lives' 'chat answers' "$graft" chat -m "$model" --temp 0 -n 20 -p 'Where does Bram Tuckett live?'
says '"stop":"end"' 'chat --json stops at the end of the turn' "$graft" chat -m "$model" --temp 0 -n 40 --json -p 'Where does Bram Tuckett live?'
says '"tokens":3' '-n3 is -n 3' "$graft" generate -m "$model" --temp 0 -t1 -n3 --ignore-eos --json -p 'Bram Tuckett'
a=$("$graft" generate -m "$model" --temp 0.9 -s 7 -n 24 -p 'Bram Tuckett' -t 1 2>/dev/null)
b=$("$graft" generate -m "$model" --temp 0.9 -s 7 -n 24 -p 'Bram Tuckett' -t 2 2>/dev/null)
[ -n "$a" ] && [ "$a" = "$b" ] && ok 'a seed gives one text, on 1 thread and on 2' || not_ok 'a seed gives one text' "$a | $b"
"$graft" generate -m "$model" --temp 0 --ignore-eos -c 8 -n 100 -p 'Bram Tuckett' >/dev/null 2>"$tmp/err"
grep -q '^note .*the context of 8 tokens is full' "$tmp/err" && ok 'a text that the context ends: said so' || not_ok 'a text that the context ends' "$(cat "$tmp/err")"
c=$(printf 'Where does Bram Tuckett live?\nThank you.\nWhere does Bram Tuckett live?\n' | "$graft" chat -m "$model" --temp 0 -n 30 2>/dev/null)
[ "$(printf '%s\n' "$c" | wc -l)" -ge 3 ] && ok 'a conversation goes on' || not_ok 'a conversation goes on' "$c"

# What the context cannot hold any more is forgotten, oldest first; /clear and /exit.
for i in 1 2 3 4 5 6; do echo 'Where does Bram Tuckett live?'; done | "$graft" chat -m "$model" --temp 0 -c 64 -n 12 --json >"$tmp/out" 2>"$tmp/err"; rc=$?
[ $rc -eq 0 ] && [ "$(wc -l <"$tmp/out")" -eq 6 ] && grep -q '^note .*context of 64 tokens is full: the oldest [0-9]* turns* .*forgotten; /clear' "$tmp/err" &&
  ok 'a conversation longer than the context forgets its beginning, and says so' || not_ok 'a conversation longer than the context' "exit $rc: $(cat "$tmp/err")"
printf 'Where does Bram Tuckett live?\n/clear\nWhere does Bram Tuckett live?\n/exit\nWho?\n' | "$graft" chat -m "$model" --temp 0 -n 20 --json >"$tmp/out" 2>"$tmp/err"; rc=$?
[ $rc -eq 0 ] && [ "$(wc -l <"$tmp/out")" -eq 2 ] && [ "$(sort -u "$tmp/out" | wc -l)" -eq 1 ] && ok '/clear begins anew, /exit ends' || not_ok '/clear, /exit' "exit $rc: $(cat "$tmp/out" "$tmp/err")"
refused 2 'the message has [0-9]* tokens .*context holds 8: shorten it' 'a message longer than the context' "$graft" chat -m "$model" -c 8 -p 'Where does Bram Tuckett live, and who are the neighbours?'
"$graft" generate -m "$model" -c 99999 -n 1 -p x >/dev/null 2>"$tmp/err"
grep -q "^note .*context of 99999 tokens is longer than the model's of [0-9]" "$tmp/err" && ok "a context beyond the model's: said so" || not_ok "a context beyond the model's" "$(cat "$tmp/err")"

# At a terminal, Ctrl-C ends answers, as many as there are, and at the prompt gives a fresh one, then the end.
cat >"$tmp/terminal.py" <<'END'
import os, pty, select, sys, time
pid, fd = pty.fork()
if pid == 0: os.execv(sys.argv[1], sys.argv[1:])
seen = b''
def wait(for_what, what):
    global seen
    end = time.time() + 100
    while for_what not in seen:
        if not select.select([fd], [], [], max(0, end - time.time()))[0]: sys.exit('no %s: %r' % (what, seen[-300:]))
        try: seen += os.read(fd, 4096)
        except OSError: sys.exit('ended before %s: %r' % (what, seen[-300:]))
    seen = seen[seen.index(for_what) + len(for_what):]
wait(b'> ', 'prompt')
for turn in (1, 2, 3):
    os.write(fd, b'Count.\n')
    wait(b'Count.\r\n', 'echo')
    if not select.select([fd], [], [], 100)[0]: sys.exit('no answer')
    os.write(fd, b'\x03')
    wait(b'> ', 'prompt after answer %d' % turn)
os.write(fd, b'\x03')
wait(b'another Ctrl-C ends', 'word on Ctrl-C'); wait(b'> ', 'fresh prompt')
os.write(fd, b'Hello.\n'); wait(b'Hello.\r\n', 'echo'); select.select([fd], [], [], 100)
os.write(fd, b'\x03'); wait(b'> ', 'prompt after all'); os.write(fd, b'\x03'); wait(b'> ', 'fresh prompt again'); os.write(fd, b'\x03')
try:
    while True:
        seen += os.read(fd, 4096)
except OSError: pass
status = os.waitpid(pid, 0)[1]
sys.exit(0 if status == 0 else 'ended with status %d: %r' % (status, seen[-300:]))
END
# By the likeliest token this model never ends an answer by itself, so that it is Ctrl-C that does, however slow the machine.
said=$(timeout 300 python3 "$tmp/terminal.py" "$graft" chat -m "$root/tests/golden/qwen2.gguf" -c 100000 -n 90000 --temp 0 2>&1)
[ $? -eq 0 ] && ok 'Ctrl-C at a terminal: every answer, then the prompt, then the end' || not_ok 'Ctrl-C at a terminal' "$said"

"$graft" quantize "$root/tests/golden/llama.gguf" "$tmp/q8.gguf" Q8_0 2>/dev/null && says 'Q8_0' 'quantize' "$graft" inspect "$tmp/q8.gguf" || not_ok 'quantize' ''
refused 2 'exists already: --overwrite' 'quantize keeps what exists' "$graft" quantize "$root/tests/golden/llama.gguf" "$tmp/q8.gguf" Q8_0
refused 1 'cannot create /nowhere/x.gguf' 'quantize into no folder' "$graft" quantize "$root/tests/golden/llama.gguf" /nowhere/x.gguf Q8_0
grep -q '^\[' "$tmp/err" && not_ok 'which is found before the work' "$(head -n 1 "$tmp/err")" || ok 'which is found before the work'
refused 2 'type' 'quantize to a type without an encoder' "$graft" quantize "$root/tests/golden/llama.gguf" "$tmp/x.gguf" IQ4_NL
refused 1 'quantized already' 'quantize a quantized model' "$graft" quantize "$model" "$tmp/x.gguf" Q4_0
[ ! -e "$tmp/x.gguf" ] && ok 'a refused quantize leaves no file' || not_ok 'a refused quantize leaves no file' ''
