#!/bin/sh
# neon.sh BUILD: the NEON kernels, with and without bf16, built by the preset aarch64 (warnings are errors) and run under qemu-user: every quick
# case of the op harness, the promises about bits, decoders, and gradients against PyTorch's. Where the machine is arm64 itself, all other tests ran on
# them. GR_AARCH64_BUILD names another folder for the build. TAP on stdout.
here=$(cd "$(dirname "$0")/../.." && pwd)
own=$1 build=${GR_AARCH64_BUILD:-$here/build-aarch64} n=0
if GRAFT_CPU=neon "$own/graft" ops test -o scale -b cpu >/dev/null 2>&1; then echo "ok 1 - NEON is this machine's own"; echo "1..1"; exit 0; fi
for tool in aarch64-linux-gnu-gcc aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v $tool >/dev/null 2>&1 && continue
  echo "ok 1 - NEON # skip there is no $tool here (tools/install-needs --cross brings it)"; echo "1..1"; exit 0
done
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
report() { # status, what
  n=$((n + 1))
  if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; tail -n 40 "$log"; fi
  return "$1"
}
cpu=max
emulated() { isa=$1 run=$build/$2; shift 2; GRAFT_CPU=$isa qemu-aarch64 -cpu $cpu -L /usr/aarch64-linux-gnu "$run" "$@" >"$log" 2>&1; }
program() { # set, name: its own lines of TAP, counted on
  emulated "$1" "tests/unit/$2"; rc=$?
  grep -E '^(not )?ok ' "$log" | awk -v n="$n" -v name="$1: $2" '{
    bad = /^not ok/; sub(/^(not )?ok [0-9]+ (- )?/, ""); printf "%sok %d - %s: %s\n", bad ? "not " : "", ++n, name, $0 }'
  n=$((n + $(grep -cE '^(not )?ok ' "$log")))
  if [ $rc -ne 0 ] || ! grep -q '^ok ' "$log"; then report 1 "$1: $2 (exit $rc)"; fi
}
harness() { # set: the op harness and what it must at least have checked
  checks=no
  emulated "$1" graft ops test -b cpu || return 1
  checks=$(sed -n 's/^test: \([0-9]*\) checks of .*, 0 failures, 0 without a kernel.*/\1/p' "$log")
  [ "${checks:-0}" -ge 25000 ]
}

{ cmake -S "$here" --preset aarch64 -B "$build" && cmake --build "$build" -j "$(nproc)"; } >"$log" 2>&1
report $? "built for arm64" || { echo "1..$n"; exit 0; }
emulated none graft ops test -o scale -b cpu
grep -q 'runs neon_bf16, neon, generic$' "$log"; report $? "neon_bf16 is the set that is chosen"
cpu=cortex-a72
emulated none graft ops test -o scale -b cpu
grep -q 'runs neon, generic$' "$log"; report $? "neon is chosen where the processor has no bf16"
emulated neon_bf16 graft ops test -o scale -b cpu
grep -q 'GRAFT_CPU=neon_bf16: this processor does not have these instructions' "$log"; report $? "neon_bf16 is refused there"
cpu=max
export CMOCKA_MESSAGE_OUTPUT=TAP
for name in test_cpu test_cpu_thin test_cpu_experts test_bf16 test_bf16_attention; do program "every set" $name; done
for set in neon neon_bf16; do
  harness $set; report $? "$set: every quick case of every row: $checks checks"
  for name in test_golden test_decode; do program $set $name; done
done
for name in test_quant test_emu_machine; do program neon $name; done
"$here/tests/full/spills.sh" "$build" >"$log" 2>&1
for set in neon neon_bf16; do
  grep -q "^ok [0-9] - $set: " "$log"; report $? "$(sed -n "s/^\(not \)*ok [0-9] - $set: /$set: /p" "$log")"
done
echo "1..$n"
