#!/bin/sh
# sets.sh BUILD: every instruction set that runs here, forced one by one: every quick case of every row in the op harness, those in bf16 too,
# and logits, losses, gradients and curves against PyTorch's. (All other tests run on the best one.) .ci/run does this under sanitizers too.
# TAP on stdout.
build=$1 n=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
report() { n=$((n + 1)); if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; tail -n 40 "$log"; fi; }
harness() { # set: the op harness and what it must at least have checked
  checks=no
  GRAFT_CPU=$1 "$build/graft" ops test -b cpu >"$log" 2>&1 || return 1
  checks=$(sed -n 's/^test: \([0-9]*\) checks of .*, 0 failures, 0 without a kernel.*/\1/p' "$log")
  [ "${checks:-0}" -ge 25000 ]
}
program() { # set, test: it passes, and some of its lines say so
  CMOCKA_MESSAGE_OUTPUT=TAP GRAFT_CPU=$1 "$build/tests/unit/$2" >"$log" 2>&1 && grep -q '^ok ' "$log"
}
runs=$(GRAFT_CPU=none "$build/graft" ops test -o scale -b cpu 2>&1 | sed -n 's/.*this processor runs \(.*\)$/\1/p' | tr -d ,)
[ -n "$runs" ]; report $? "sets that run here: $runs"
for isa in $runs; do
  harness "$isa"; report $? "$isa: every quick case of every row: $checks checks"
  for name in test_golden test_decode; do program "$isa" $name; report $? "$isa: $name"; done
done
echo "1..$n"
