#!/bin/sh
# spills.sh BUILD: the inner loops of the micro-kernels keep every sum in a register. A compiler that puts them on the stack still
# computes the right thing, three times slower; so the assembly is looked at: between the first and the last multiply-add of a
# micro-kernel no vector goes to or comes from the stack. TAP on stdout.
build=$1 n=0
objdump=objdump
grep -q '^CMAKE_TOOLCHAIN_FILE:.*aarch64' "$build/CMakeCache.txt" && objdump=aarch64-linux-gnu-objdump
if ! command -v $objdump >/dev/null 2>&1; then echo "ok 1 - micro-kernels # skip there is no $objdump here"; exit 0; fi
if grep -q '^GR_SANITIZE:.*=.' "$build/CMakeCache.txt" || ! grep -q '^CMAKE_BUILD_TYPE:.*=Release' "$build/CMakeCache.txt"; then
  echo "ok 1 - micro-kernels # skip this build is not an optimised one"; exit 0
fi
# Fewest kernels and multiply-adds: those of one row that differ in where a second row would be may be one function.
for set in "avx2 48 249" "avx512 112 1257" "avx512_bf16 168 1887" "neon 96 933" "neon_bf16 144 1400"; do
  # shellcheck disable=SC2086  # words
  set -- $set
  isa=$1 least=$2 sums=$3 objects=$build/CMakeFiles/gr_cpu_$1.dir/src/backend/cpu/kernels
  [ -f "$objects/micro.c.o" ] || continue
  n=$((n + 1))
  result=$($objdump -d --no-show-raw-insn "$objects/micro.c.o" "$objects/outer.c.o" | awk '
    /^[0-9a-f]+ </ { name = "" }
    /^[0-9a-f]+ <micro_/ { name = $2; kernels++; sums = 0; held = "" }
    /vfmadd|vdpbf16ps|\tfmla|\tbfdot/ { if (name) { sums++; total++; if (held) spills = spills held; held = "" } }
    /[yz]mm.*\(%r[sb]p/ || /\(%r[sb]p.*[yz]mm/ || /\tq[0-9].*\[sp/ { if (name && sums) held = held " " name }
    END { print kernels + 0, total + 0, spills }')
  # shellcheck disable=SC2086
  set -- $result
  kernels=$1 total=$2; shift 2
  if [ "$kernels" -ge "$least" ] && [ "$total" -ge "$sums" ] && [ $# -eq 0 ]; then
    echo "ok $n - $isa: $kernels micro-kernels, $total multiply-adds, no spill"
  else echo "not ok $n - $isa: $kernels micro-kernels, $total multiply-adds, spills in: $*"; fi
done
[ $n -gt 0 ] || { n=1; echo "ok 1 - micro-kernels # skip no set of this machine keeps them in wide registers"; }
echo "1..$n"
