#!/bin/sh
# mutants.sh BUILD: builds the harness with mutants; every one of them must be caught, those of the CPU's kernels on each instruction set that
# runs here, and controls that are no breakage must come out red. TAP on stdout.
build=$1 n=0
report() { n=$((n + 1)); if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi; }
if grep -q '^GR_SANITIZE:.*=.' "$build/CMakeCache.txt"; then echo "ok 1 - mutants # skip a build with sanitizers has better things to do"; exit 0; fi
out=$(cmake --build "$build" -j "$(nproc 2>/dev/null || sysctl -n hw.ncpu)" --target graft-mutants 2>&1) || { printf '%s\n' "$out" | tail -n 40; report 1 "the target graft-mutants builds"; exit 1; }

"$build/mutants/tests/test_mutants"; report $? "controls come out red"

caught() { # arguments...: all caught, and at least `least` of them
  least=$1; shift
  out=$("$build/mutants/graft" ops mutants "$@" 2>&1); rc=$?
  line=$(printf '%s\n' "$out" | sed -n 's/^mutants: \([0-9]*\) of \([0-9]*\) caught$/\1 \2/p')
  [ $rc -eq 0 ] && [ -n "$line" ] && [ "${line% *}" -ge "$least" ] && [ "${line% *}" -eq "${line#* }" ] && return 0
  printf '%s\n' "$out" | grep -v '^caught'
  return 1
}
caught 120; report $? "mutants: ${line% *} of ${line#* } caught"
for isa in generic avx2 avx512 avx512_bf16; do
  GRAFT_CPU=$isa "$build/graft" ops test -o scale -b cpu >/dev/null 2>&1 || { echo "# $isa does not run here"; continue; }
  GRAFT_CPU=$isa caught 59 -b cpu; report $? "mutants of the kernels for $isa: ${line% *} of ${line#* } caught"
done
echo "1..$n"
