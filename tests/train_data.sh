# Sourced by the scripts that train: small data of our own, and what they share. $1 is the build folder.
set -- "$(cd "$1" && pwd)" # whole: some scripts go elsewhere
graft=$1/graft
here=$(cd "$(dirname "$0")/../.." && pwd)
golden=$here/tests/golden
fault=$1/tests/fault/graft_fault.so
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
ran=0
ok() { ran=$((ran + 1)); echo "ok $ran - $1"; }
not_ok() { ran=$((ran + 1)); echo "not ok $ran - $1"; shift; printf '# %s\n' "$@"; }
# check NAME COMMAND...: ok when the command succeeds; its output is shown when it does not.
check() {
  name=$1; shift
  if out=$("$@" 2>&1); then ok "$name"; else not_ok "$name" "$*" "$(printf '%s' "$out" | tail -n 5)"; fi
}
# refused NAME STATUS PATTERN ARGUMENTS...: graft exits so, with exactly one sentence on stderr besides notes, which matches.
refused() {
  name=$1; status=$2; pattern=$3; shift 3
  timeout 60 "$graft" "$@" >"$dir/out" 2>"$dir/err" </dev/null; rc=$?
  grep -a '^graft: ' "$dir/err" >"$dir/sentence"
  if [ $rc -eq "$status" ] && [ "$(wc -l <"$dir/sentence")" -eq 1 ] && grep -aEq -- "$pattern" "$dir/sentence"; then ok "$name"
  else not_ok "$name" "exit $rc, wanted $status and /$pattern/" "$(tail -n 3 "$dir/err")"; fi
}
# until_saved NAME PID: until the run has a checkpoint, whichever: the oldest go, so that a certain one may never be seen
until_saved() { while ! ls "$dir/$1".step-*.checkpoint >/dev/null 2>&1 && kill -0 "$2" 2>/dev/null; do :; done; }
cat >"$dir/data.jsonl" <<'END'
{"text": "the cat sat on the mat and then it ran away from here."}
{"text": "a dog barks at the moon in the middle of the night."}
{"text": "hello world, this is a small test of the trainer."}
{"text": "one two three four five six seven eight nine ten."}
{"text": "abc abc abc abc abc abc abc abc abc."}
{"text": "the quick brown fox jumps over the lazy dog again and again."}
{"text": "some more text to train on, as if it were needed."}
{"text": "who asks for more gets more, or less, or nothing at all."}
{"text": "rain falls on hills and on houses, on the just and the unjust."}
{"text": "nine times out of ten it is the tenth that counts."}
{"text": "a b c d e f g h i j k l m n o p q r s t u v w x y z"}
{"text": "good days come late, bad days come early, and nights come between."}
END
