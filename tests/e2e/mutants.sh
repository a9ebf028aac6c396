#!/bin/sh
# mutants.sh BUILD: mutants are not in the program, which says where they are; every one that is listed has a line somewhere, and the
# check that it names. What they are for is tests/full/mutants.sh. TAP on stdout.
here=$(cd "$(dirname "$0")/../.." && pwd); build=$1 n=0
report() { n=$((n + 1)); if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi; }
names=$(sed -n 's/^GR_MUTANT_LINE(\([a-z0-9_]*\),.*/\1/p' "$here/src/base/mutants.def")

said=$("$build/graft" ops mutants 2>&1); rc=$?
[ $rc -eq 1 ] && [ "$(printf '%s\n' "$said" | wc -l)" -eq 1 ] && printf '%s' "$said" | grep -q 'build the target graft-mutants'
report $? "the program has no mutants, and says in one sentence where they are"

# The second name is what would be found if the first were compiled in.
inside=0; for name in $names; do ! grep -qaF "$name" "$build/graft" || { echo "# $name is in the program"; inside=1; }; done
grep -qaF graft-mutants "$build/graft" || inside=1
report $inside "no name of a mutant is in the program"

listed=$(printf '%s\n' "$names" | sort) used=$(grep -rhoE 'G[RK]_MUTANT(_HALF)?\([a-z0-9_]+\b' "$here/src" --include=*.c --include=*.h |
  sed 's/.*(//' | grep -vxE 'name|control_[a-z]+' | sort -u)
[ "$listed" = "$(printf '%s\n' "$used")" ]; rc=$?
[ $rc -eq 0 ] || { printf '%s\n' "$listed" >"${TMPDIR:-/tmp}/listed.$$"; printf '%s\n' "$used" | diff "${TMPDIR:-/tmp}/listed.$$" - | sed 's/^/# /'; rm -f "${TMPDIR:-/tmp}/listed.$$"; }
report $rc "every mutant that is listed has a line, and the other way round ($(printf '%s\n' "$names" | wc -l | tr -d ' ') of them)"

lost=0
for program in $(sed -n 's/^GR_MUTANT_LINE([a-z0-9_]*, program, \([a-z0-9_]*\),.*/\1/p' "$here/src/base/mutants.def" | sort -u); do
  grep -q "^set(GR_MUTANT_PROGRAMS.*[ (]$program[ )]" "$here/cmake/mutants.cmake" || { echo "# $program"; lost=1; }
done
report $lost "every program that is named as a check is built with mutants"
echo "1..$n"
