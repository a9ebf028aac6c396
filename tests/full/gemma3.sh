#!/bin/sh
# gemma3.sh BUILD: Gemma 3 270M learns: 16 short steps on grade-school problems, after which the held-out loss is better by more than three
# standard errors of the per-sample differences. TAP on stdout. The longer run is in docs/proofs.md.
here=$(cd "$(dirname "$0")/../.." && pwd)
model=${XDG_CACHE_HOME:-$HOME/.cache}/graft/models/gemma3-270m.gguf
data=$here/../shared/data/datasets/gsm8k-test-400.jsonl
skip() { echo "ok 1 - Gemma 3 learns # skip $1"; exit 0; }
[ -r "$data" ] || skip "the shared data is not here"
[ -r "$model" ] || skip "the model is not here: tools/fetch-model gemma3-270m brings it"
! grep -q '^GR_SANITIZE:.*=.' "$1/CMakeCache.txt" || skip "a sanitizer's build takes too long"
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
head -n 60 "$data" >"$dir/few.jsonl"
"$1/graft" train -m "$model" -d "$dir/few.jsonl" -o "$dir/gem.gguf" -c 128 --overlong drop --batch-size 1 --max-steps 16 --learning-rate 5e-4 --val-split 0.25 --json >"$dir/json" 2>"$dir/err" || {
  sed 's/^/# /' "$dir/err"; echo "not ok 1 - Gemma 3 trains"; exit 1; }
field() { tail -n 1 "$dir/json" | sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p"; }
gain=$(field improvement) se=$(field standard_error)
echo "# better by $gain a sample, standard error $se"
if awk "BEGIN { exit !(\"$gain\" + 0 > 3 * (\"$se\" + 0) && \"$se\" + 0 > 0) }"; then echo "ok 1 - Gemma 3 learns"; else echo "not ok 1 - Gemma 3 learns: $gain is not above three times $se"; exit 1; fi
