#!/bin/sh
# The GPU kernels are in the dialect in every reading that can be checked on this machine, and tests/kernels/bad, each wrong in the one way
# that its first line names, are refused for that reason.
here=$(cd "$(dirname "$0")/../.." && pwd)
n=0
report() { n=$((n + 1)); if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi; }
if ! command -v "${CLANGXX:-clang++}" >/dev/null 2>&1; then
  echo "ok 1 - kernels are in the dialect # skip clang is not installed"
  exit 0
fi
out=$("$here/tools/lint-kernels" 2>&1); rc=$?
[ $rc -eq 0 ] || printf '%s\n' "$out"
report $rc "kernels are in the dialect; $(printf '%s\n' "$out" | tail -n 1)"
for f in "$here"/tests/kernels/bad/*.gk.h; do
  reason=$(sed -n '1s|^/\* lint: \(.*\) \*/$|\1|p' "$f")
  out=$("$here/tools/lint-kernels" "$f" 2>&1); rc=$?
  if [ $rc -eq 1 ] && [ -n "$reason" ] && printf '%s\n' "$out" | grep -qE "$reason"; then report 0 "$(basename "$f"): $reason"
  else
    report 1 "$(basename "$f") should be refused for: $reason"
    printf '%s\n' "$out"
  fi
done
echo "1..$n"
