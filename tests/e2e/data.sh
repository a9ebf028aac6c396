#!/bin/sh
# data.sh BUILD: `graft data`, `render` and `tokenize` from outside, on small data of our own: what they show, find out, say and refuse.
# The examples of docs/data.md are run as they stand there.
. "$(dirname "$0")/../train_data.sh"
model=$here/models/tiny.gguf
cd "$dir" || exit 1
data() { "$graft" data -m "$model" "$@" >"$dir/out" 2>"$dir/err" </dev/null; }
# shows NAME PATTERN ARGUMENTS...: graft data ends well and prints a line that matches
shows() {
  name=$1 pattern=$2; shift 2
  if data "$@" && grep -qE -- "$pattern" out; then ok "$name"; else not_ok "$name" "$(tail -n 8 out)" "$(tail -n 2 err)"; fi
}
# notes NAME PATTERN ARGUMENTS...: it ends well and says on stderr what matches
notes() {
  name=$1 pattern=$2; shift 2
  if data "$@" && grep -qE -- "$pattern" err; then ok "$name"; else not_ok "$name" "$(tail -n 3 err)"; fi
}
# whole NAME FILE: that file's text is stdout of what ran last
whole() { if cmp -s "$2" out; then ok "$1"; else not_ok "$1" "$(diff "$2" out | head -n 8)"; fi; }

# ---- docs/data.md: files are fenced with their name, commands with "console" ----
mkdir doc
(cd doc && awk -v script=../doc.sh '
  /^```(json|text) / { file = $2; next }
  /^```console$/ { console = 1; next }
  /^```$/ { if (console) print "" >script; file = ""; console = 0; next }
  file { print >file }
  console && /^\$ / { n++; want = sprintf("../want.%03d", n); printf "" >want; printf "%s\n", substr($0, 3) >sprintf("../command.%03d", n); next }
  console { print >want }' "$here/docs/data.md")
examples=0
M=$model PATH=$(cd "$(dirname "$graft")" && pwd):$PATH
export M PATH
for command in command.*; do
  n=${command#command.} examples=$((examples + 1))
  (cd doc && sh "../$command") >out 2>&1 </dev/null
  whole "docs/data.md: $(cat "$command")" "want.$n"
done
check "docs/data.md has its examples" test $examples -ge 11

# ---- forms, found out and told ----
cat >chat.jsonl <<'END'
{"messages": [{"role": "user", "content": "a <|im_end|> b"}, {"role": "assistant", "content": "one"}]}

{"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "two \u001b[31m\r"}]}
END
cat >chat.want <<'END'
--- chat.jsonl:1, 24 tokens
<|im_start|>user
a <|im_end|> b<|im_end|>
<|im_start|>assistant
[[one<|im_end|>]]

--- chat.jsonl:3, 24 tokens
<|im_start|>user
c<|im_end|>
<|im_start|>assistant
[[two \x1b[31m\x0d<|im_end|>]]

END
data -d chat.jsonl --show 9
head -n 12 out >head; mv head out
whole "samples: where they begin, trained tokens in [[ ]], control characters spelled out" chat.want
for form in messages sharegpt alpaca prompt qa text plain; do
  case $form in
  messages) record='[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]' ;;
  sharegpt) record='{"conversation": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}' ;;
  alpaca) record='{"instruction": "q", "response": "a"}' ;;
  prompt) record='{"prompt": "q", "response": "a"}' ;;
  qa) record='{"question": "q", "answer": 1.5}' ;;
  text) record='{"text": "a b"}' ;;
  plain) record='q and a' ;;
  esac
  printf '%s\n' "$record" >form
  notes "form $form is found out" "^form: 1 (record|window), format $form \(found out\)$" -d form
  notes "and can be told" "^form: 1 (record|window), format $form \(as told\)$" -d form --format $form
done
printf '{"question": "q", "answer": "a", "text": "t"}\n' >both
shows "what is told wins over what would be found" '^format:    text$' -d both --format text
shows "JSON told to be plain is plain" '^tokens: +[0-9]+, [0-9]+ of them trained \(9' -d both --format plain
printf '\357\273\277{"question": "q", "answer": "a"}\r\n\r\n{"question": "r", "answer": "b"}\r\n' >bom.jsonl
shows "a byte-order mark, CR LF and blank lines" '^records: +2$' -d bom.jsonl
printf '{"question": "q",\n "answer": "a"}\n' >one.json
shows "one record over several lines" '^records: +1$' -d one.json
mkfifo pipe; cat bom.jsonl >pipe & writer=$!
shows "a pipe is read" '^records: +2$' -d pipe
kill $writer 2>/dev/null
"$graft" data -m "$model" -d - -d one.json <bom.jsonl >out 2>err
check "standard input is read, and named" grep -q '^standard input: 2 records, format qa (found out)$' err
shows "several files add up" '^samples: +3$' -d bom.jsonl -d one.json

# ---- what is trained ----
trained() { sed -n 's/^tokens: *[0-9]*, \([0-9]*\) of.*/\1/p' out; }
data -d chat.jsonl; few=$(trained)
data -d chat.jsonl --train-on-inputs; check "--train-on-inputs trains more" test "$(trained)" -gt "$few"
printf '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x", "weight": 2}, {"role": "assistant", "content": "y", "train": false}]}\n' >weight.jsonl
shows "weights stand before what they weigh" '^\[\[2:x<\|im_end\|>\]\]$' -d weight.jsonl --show 1
shows "what is not to be trained is not" '^y<\|im_end\|>$' -d weight.jsonl --show 1
data -d chat.jsonl --show 1 --color always
check "--color always colours instead" sh -c "grep -q '$(printf '\033')\\[30;42mone<|im_end|>$(printf '\033')\\[0m' out && ! grep -q '\\[\\[' out"
terminal() { python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])' "$@" </dev/null >out 2>&1; grep -q "$(printf '\033')\\[30;42mone" out; }
check "on a terminal there is colour" terminal "$graft" data -m "$model" -d chat.jsonl --show 1
uncoloured() { ! terminal "$@" && grep -q '\[\[one' out; }
check "but not with NO_COLOR" uncoloured env NO_COLOR=1 "$graft" data -m "$model" -d chat.jsonl --show 1
check "nor with --color never" uncoloured "$graft" data -m "$model" -d chat.jsonl --show 1 --color never
check "without a terminal there is no colour" sh -c "$graft data -m $model -d chat.jsonl --show 1 2>/dev/null | grep -q '\\[\\[one'"
shows "--no-packing" '^unpacked:  2 windows of 512 tokens' -d chat.jsonl --no-packing
shows "packed" '^packing:   1 window of 512 tokens' -d chat.jsonl
shows "the window" '^packing: +[0-9]+ windows? of 30 tokens' -d chat.jsonl -c 30
notes "a window beyond the context is said" 'window of 1000 tokens is longer than the model.s context of 512' -d chat.jsonl -c 1000

# ---- lints ----
lint() { # NAME PATTERN RECORDS ARGUMENTS...
  name=$1 pattern=$2; printf '%s\n' "$3" '{"question": "fine", "answer": "yes"}' >lint.jsonl; shift 3
  notes "lint: $name" "$pattern.*the first: lint.jsonl:[0-9]" -d lint.jsonl "$@"
}
turn='{"role": "user", "content": "q"}, {"role": "assistant", "content": '
lint duplicates '^1 sample is the same as an earlier one \(50.0 %' '{"question": "fine", "answer": "yes"}'
lint truncation '^1 record was cut at the window of 20 tokens, losing [0-9]+ tokens' '{"question": "q", "answer": "a long answer that goes on and on and on"}' -c 20
lint splitting '^1 record longer than the window was split' '{"question": "q", "answer": "a long answer that goes on and on and on"}' -c 20 --overlong split
lint dropping '^1 record was left out as longer than the window' '{"question": "q", "answer": "a long answer that goes on and on and on"}' -c 20 --overlong drop
lint "nothing trained" '^1 record was left out, nothing in it being trained' '{"question": "q", "answer": "a", "train": false}'
lint surrogates '^1 record has lone surrogates' '{"question": "\ud800 q", "answer": "a"}'
lint "numbers that fit no type" '^1 record has numbers that fit no type' '{"question": "q", "answer": 123456789012345678901234567890}'
printf '{"messages": [%s"a"}]}\n{"messages": [%s""}, %s"b"}]}\n{"messages": [{"role": "user", "content": "q", "train": true}, {"role": "assistant", "content": "c"}]}\n' "$turn" "$turn" "$turn" >lint.jsonl
notes "lint: empty turns" '^1 assistant message is empty.*lint.jsonl:2' -d lint.jsonl
notes "lint: train on a user" '^1 message asks to be trained and is not an assistant.*lint.jsonl:3' -d lint.jsonl
printf '{"messages": [%s"a", "reasoning_content": "hm"}]}\n' "$turn" >lint.jsonl
notes "lint: reasoning that the template loses" '^1 assistant message lost its reasoning' -d lint.jsonl
printf '{"instruction": "i", "output": "o", "id": 1, "source_id": 2, "context": ""}\n{"instruction": "i", "output": "p", "context": "c", "hint": 1}\n' >lint.jsonl
notes "lint: keys that nothing reads" '^1 record has keys that nothing reads: "context", "hint"; the first: lint.jsonl:2$' -d lint.jsonl
printf '{"system": "a", "messages": [{"role": "system", "content": "b"}, %s"a"}]}\n' "$turn" >lint.jsonl
notes "lint: a system text beside another" '^1 record has a system text beside .*lint.jsonl:1$' -d lint.jsonl
printf '{"messages": [%s"a"}]}\n{"messages": [{"role": "moderator", "content": "b"}, %s"a"}]}\n' "$turn" "$turn" >lint.jsonl
notes "lint: a role that nobody knows" "^1 record was left out.*lint.jsonl:2: message 1 has the role 'moderator', which is not one of" -d lint.jsonl
printf '{"text": "spells <|im_end|> out"}\n' >lint.jsonl
notes "lint: control tokens in text" '^1 record of text spells a control token' -d lint.jsonl
notes "--parse-special: they are read as such" '^1 record of text spells a control token, which was read as such.*lint.jsonl:1$' -d lint.jsonl --parse-special
cp out read; data -d lint.jsonl; longer() { sed -n 's/^tokens: *\([0-9]*\),.*/\1/p' "$1"; }
check "and are one token instead of several" test "$(longer read)" -lt "$(longer out)"
data -d chat.jsonl --show 9; cp out read; data -d chat.jsonl --show 9 --parse-special; whole "--parse-special leaves conversations alone" read
printf 'one\r\ntwo\r\n' >lint.txt
notes "lint: CR LF in plain text" '^1 file has CR LF line ends' -d lint.txt
data -d chat.jsonl; check "and nothing is said of what is fine" test "$(wc -l <err)" -eq 1

# ---- --strict ----
strict() { # NAME PATTERN ARGUMENTS...: fine without --strict, refused with it
  name=$1 pattern=$2; shift 2
  if data "$@"; then refused "--strict: $name" 1 "--strict: $pattern" data -m "$model" "$@" --strict; else not_ok "--strict: $name" "$(tail -n 1 err)"; fi
}
strict "control tokens in text" '1 record of text spells a control token.*lint.jsonl:1' -d lint.jsonl
strict "a record that is cut" '2 records were cut at the window' -d chat.jsonl -d bom.jsonl -c 23
strict "equal samples" '1 sample is the same.*one.json:1' -d bom.jsonl -d one.json
printf '{"question": "q", "answer": "a", "train": false}\n{"question": "q", "answer": "a"}\n' >lint.jsonl
strict "a record left out" '1 record was left out.*lint.jsonl:1' -d lint.jsonl
printf '{"question": "q", "answer": "a", "hint": "b"}\n' >lint.jsonl
strict "keys that nothing reads" '1 record has keys.*"hint"' -d lint.jsonl
data -d lint.txt -d chat.jsonl --strict; check "--strict: what loses nothing is fine" grep -q 'CR LF' err
data -d lint.jsonl --strict; check "and the counts are shown all the same" grep -q '^records: *1$' out

# ---- what is held out ----
plan() { "$graft" plan -m "$model" -c 64 -r 2 -o a.gguf "$@" >out 2>err </dev/null; }
plan -d chat.jsonl --val-file bom.jsonl; check "held-out data of its own" sh -c '! grep -q "training data too" err'
plan -d chat.jsonl -d bom.jsonl --val-file bom.jsonl; check "held-out samples that are trained on" grep -q '2 of the 2 held-out samples are in the training data too' err
refused "--strict: held-out samples that are trained on" 1 "--strict: 2 of the 2 held-out" plan -m "$model" -d chat.jsonl --val-file chat.jsonl -o a.gguf --strict

# ---- --json ----
data -d chat.jsonl -d bom.jsonl --show 2 --json
check "--json: every line is an object" python3 -c 'import json,sys; [json.loads(line)["event"] for line in open("out")]'
check "two samples, then the data" test "$(sed 's/^{"event":"\([a-z]*\)".*/\1/' out | tr '\n' ' ')" = "sample sample data "
check "a sample's ids and weights are as many, the first weighs 0" python3 -c '
import json
for line in list(open("out"))[:2]:
    s = json.loads(line)
    assert len(s["ids"]) == len(s["weights"]) and s["weights"][0] == 0 and set(s["weights"]) == {0, 1}, s
    assert s["file"] == "chat.jsonl" and s["line"] in (1, 3)'
check "the counts agree with the samples" python3 -c '
import json
*samples, data = map(json.loads, open("out"))
assert (data["records"], data["samples"], data["format"], data["fatal"]) == (4, 4, "messages", None)
assert len(data["events"]) == 24 and not any(data["events"].values()) and len(data["notes"]) == 2
assert data["lengths"]["p0"] <= data["lengths"]["p50"] <= data["lengths"]["p100"] <= data["window"]'

# ---- refusals ----
d="data -m $model"
refused "no model" 2 "give the model with -m" data -d chat.jsonl
refused "no data" 2 "give the data with -d" $d
refused "missing data" 1 "nowhere.jsonl.*No such file" $d -d nowhere.jsonl
refused "a folder for data" 1 "is a folder" $d -d doc
: >empty.jsonl; refused "an empty file" 1 "empty.jsonl is empty" $d -d empty.jsonl
printf '{"question": "q", "answer": "a"}\n{"question": "q", answer: "a"}\n' >bad.jsonl
refused "broken JSON: file and line" 1 "bad.jsonl:2: not JSON" $d -d bad.jsonl
printf '{"question": "q", "answer": "a"} {"question": "q", "answer": "a"}\n' >bad.jsonl
refused "two records on a line" 1 "bad.jsonl:1: something follows the record" $d -d bad.jsonl
printf '{"question": "q"}\n' >bad.jsonl
refused "a missing key" 1 'bad.jsonl:1: the key "answer" is missing' $d -d bad.jsonl
printf '{"ask": "q", "reply": "a"}\n' >bad.jsonl
refused "unknown keys: the known ones" 1 'none of the keys that Graft knows: messages, conversations' $d -d bad.jsonl
printf '{"conversations": [{"from": "narrator", "value": "q"}]}\n' >bad.jsonl
refused "an unknown speaker" 1 "bad.jsonl:1: message 1 is from 'narrator'" $d -d bad.jsonl
printf '{"question": "q", "answer": "a", "weight": -1}\n' >bad.jsonl
refused "a negative weight" 1 'bad.jsonl:1: "weight" must be a number from 0' $d -d bad.jsonl
printf '\377\376{\0"\0' >bad.jsonl; refused "UTF-16" 1 "bad.jsonl is UTF-16: save it as UTF-8" $d -d bad.jsonl
printf 'a\0b' >bad.txt; refused "NUL bytes" 1 "bad.txt holds NUL bytes" $d -d bad.txt
printf '\303\050 x' >bad.txt; refused "what is no text" 1 "neither JSON nor UTF-8" $d -d bad.txt
printf 'question,answer\nq,a\n' >table.csv
refused "a table" 1 "table.csv is a table \(.csv\).*convert it to JSONL" $d -d table.csv
shows "a table told to be text" '^format:    plain$' -d table.csv --format plain
printf '{"prompt": "q", "chosen": "a", "rejected": "b"}\n' >bad.jsonl
refused "preference data" 1 'bad.jsonl:1: this is preference data .*"completion" beside "prompt"' $d -d bad.jsonl
printf '{"messages": [{"role": "user", "content": "q"}]}\n' >bad.jsonl
refused "nothing to learn" 1 "bad.jsonl holds nothing to learn" $d -d bad.jsonl
refused "an unknown form" 2 "--format takes auto, messages, .*not 'csv'" $d -d chat.jsonl --format csv
refused "an unknown policy" 2 "--overlong takes truncate, drop or split, not 'cut'" $d -d chat.jsonl --overlong cut
refused "an unknown colour" 2 "--color takes auto, always or never, not 'red'" $d -d chat.jsonl --color red
refused "a negative number of samples" 2 "--show takes a number of samples" $d -d chat.jsonl --show -1
refused "a window of one token" 2 "window of 1 tokens" $d -d chat.jsonl -c 1

# ---- render ----
render() { "$graft" render "$@" >out 2>err </dev/null; }
cat >talk.json <<'END'
{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Orla."}]}
END
printf '<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nOrla.<|im_end|>\n' >want
render -m "$model" --messages talk.json; whole "render: as the model's template writes it" want
printf '<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n[[Orla.<|im_end|>]]\n' >want
render -m "$model" --messages talk.json --spans; whole "--spans: what is trained" want
printf '[{"role": "user", "content": "Who?"}]' >ask.json
printf '<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n' >want
render -m "$model" --messages ask.json --add-generation-prompt; whole "--add-generation-prompt, and a bare list" want
cat >own.jinja <<'END'
{{ bos_token }}{% for t in tools or [] %}({{ t.function.name }}){% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}{{ mood }}{% if add_generation_prompt %}<assistant>{% endif %}
END
echo '[{"type": "function", "function": {"name": "tide"}}, {"type": "function", "function": {"name": "wind"}}]' >tools.json
echo '{"mood": "!"}' >vars.json
printf '<s>(tide)(wind)<user>Who?</s>!<assistant>' >want
render --template own.jinja --messages ask.json --tools tools.json --variables vars.json --bos-token '<s>' --eos-token '</s>' --add-generation-prompt
whole "a template from a file, with tools, variables and tokens" want
printf '<user>Who?</s><assistant>[[Orla.</s>]]' >want
render --template own.jinja --messages talk.json --eos-token '</s>' --spans; whole "and its spans" want
render -m "$model" --template own.jinja --messages ask.json
printf '<|endoftext|><user>Who?<|im_end|>' >want; whole "the file's template with the model's tokens" want
render -m "$model" --messages talk.json --spans --json
check "render --json: text and spans" python3 -c '
import json
r = json.load(open("out"))
s, = r["spans"]
assert r["text"].encode()[s["start"]:s["end"]] == b"Orla.<|im_end|>" and s["message"] == 1 and s["closed"] is True, r'
check "render reads standard input" sh -c "$graft render -m $model --messages - <ask.json | grep -q '^Who?'"
refused "render: no template" 2 "give a model with -m FILE, or a template" render --messages talk.json
refused "render: no conversation" 2 "give the conversation with --messages" render -m "$model"
refused "render: no such variant" 2 "no chat template named 'tool_use'" render -m "$model" --messages talk.json --variant tool_use
refused "render: a variant of a file" 2 "not with --template" render --template own.jinja --messages talk.json --variant x
printf '{%% for m in messages %%}\n{{ m.content | nonsense }}{%% endfor %%}' >bad.jinja
refused "render: an error names the template's line" 1 "bad.jinja:2|line 2" render --template bad.jinja --messages talk.json
printf '{%% if %%}' >bad.jinja; refused "render: a template that is none" 1 "bad.jinja" render --template bad.jinja --messages talk.json
printf '{%% for m in messages %%}{{ raise_exception("only tea") }}{%% endfor %%}' >bad.jinja
refused "render: a template's own refusal" 1 "only tea" render --template bad.jinja --messages talk.json
echo '{"role": "user"}' >bad.json; refused "render: not a conversation" 1 "must hold a list of messages" render -m "$model" --messages bad.json
echo '[1]' >bad.json; refused "render: a message that is none" 1 "message 1 is not an object" render -m "$model" --messages bad.json
echo '[' >bad.json; refused "render: broken JSON" 1 "bad.json:[0-9]+: not JSON" render -m "$model" --messages bad.json
echo '{}' >bad.json; refused "render: tools that are no list" 1 "tools must be a list" render -m "$model" --messages talk.json --tools bad.json

# ---- tokenize: what cli.sh does not ask ----
printf 'Orla bakes.\n' >text
"$graft" tokenize -m "$model" -f text >ids
check "tokenize: a file and standard input alike" sh -c "$graft tokenize -m $model <text | cmp - ids"
check "and back" sh -c "$graft tokenize -m $model -d -f ids | cmp - text"
check "tokenize --json" sh -c "$graft tokenize -m $model -f text --json | python3 -c 'import json,sys; assert json.load(sys.stdin)[\"ids\"] == [int(i) for i in open(\"ids\").read().split()]'"
check "tokenize --pieces: a line a token" sh -c "test \$($graft tokenize -m $model -f text --pieces | wc -l) -eq \$(wc -w <ids)"
refused "tokenize: a missing file" 1 "nowhere.*No such file" tokenize -m "$model" -f nowhere
refused "tokenize: a word for an id" 2 "'x' is not a token id" tokenize -m "$model" -d -p "1 x"
echo "1..$ran"
