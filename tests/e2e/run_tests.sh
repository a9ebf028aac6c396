#!/bin/sh
# tools/run-tests counts what programs of tests say, and what they leave unsaid. TAP on stdout.
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/tools" "$dir/build/tests/unit"; cp "$here/tools/run-tests" "$dir/tools/"
program=$dir/build/tests/unit/test_a n=0
counts() { # name, exit status, last line; the program's shell text is in the fourth
  n=$((n + 1)); printf '#!/bin/sh\n%s\n' "$4" >"$program"; chmod +x "$program"
  GR_TESTS_ONLY= GR_TESTS_LIMIT=1 "$dir/tools/run-tests" "$dir/build" unit >"$dir/out" 2>&1; rc=$?
  if [ $rc -eq "$2" ] && [ "$(tail -n 1 "$dir/out")" = "$3" ]; then echo "ok $n - $1"; else echo "not ok $n - $1 (exit $rc)"; cat "$dir/out"; fi
}
counts "what passes" 0 "2 passed, 0 failed, 0 skipped" 'echo "ok 1 - a"; echo "ok 2 - b"'
counts "what fails" 1 "1 passed, 1 failed, 0 skipped" 'echo "ok 1 - a"; echo "not ok 2 - b"; exit 1'
counts "a failure behind exit status 0" 1 "0 passed, 1 failed, 0 skipped" 'echo "not ok 1 - a"'
counts "a failure that speaks of skipping" 1 "0 passed, 1 failed, 0 skipped" 'echo "not ok 1 - a # SKIP"'
counts "what is skipped, as TAP and as cmocka say it" 0 "1 passed, 0 failed, 2 skipped" 'echo "ok 1 - a # skip no data"; echo "not ok 2 # SKIP b"; echo "ok 3 - c"'
counts "a program that dies after its tests" 1 "1 passed, 1 failed, 0 skipped" 'echo "ok 1 - a"; kill -SEGV $$'
counts "a program that says nothing" 1 "0 passed, 1 failed, 0 skipped" 'exit 0'
if command -v timeout >/dev/null 2>&1; then counts "a program that hangs" 1 "1 passed, 1 failed, 0 skipped" 'echo "ok 1 - a"; exec sleep 60'; fi
printf '#!/bin/sh\necho "ok 1 - a"\n' >"$program"
printf '#!/bin/sh\necho "ok 1 - b"; echo "ok 2 - b"\n' >"${program%a}b"; chmod +x "${program%a}b"
only() { # patterns, last line
  n=$((n + 1))
  (cd "$dir/build/tests/unit" && GR_TESTS_ONLY=$1 "$dir/tools/run-tests" "$dir/build" unit >"$dir/out" 2>&1)
  if [ "$(tail -n 1 "$dir/out")" = "$2" ]; then echo "ok $n - only '$1'"; else echo "not ok $n - only '$1'"; cat "$dir/out"; fi
}
only 'test_a' "1 passed, 0 failed, 0 skipped"
only 'test_b other' "2 passed, 0 failed, 0 skipped"
only 'test_[ab]' "3 passed, 0 failed, 0 skipped"
only '*_a *_b' "3 passed, 0 failed, 0 skipped"
only 'none' "0 passed, 0 failed, 0 skipped"
echo "1..$n"
