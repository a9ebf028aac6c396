#!/bin/sh
# Every rule of tools/check can fail: a small tree that passes, then the same with one breach after the other. TAP on stdout.
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
tree=$dir/tree
echo 0 >"$dir/n"
mkdir -p "$tree/tools" "$tree/src/base" "$tree/src/model" "$tree/src/kernels" "$tree/src/cli" "$tree/include/graft"
cp "$here/tools/check" "$tree/tools/check"; cp "$here/.clang-format" "$tree/"
cat >"$tree/src/base/fine.c" <<'END'
/* Here exit(1) and printf( are only spoken of: stderr. */
#include "base/fine.h"

static const char *text(void)
{
  return "abort() \"stdout"; // exit(0)
}

int gr_fine_length(char *out)
{
  int n = snprintf(out, 8, "%s", text());
  return n + gr_exit(1) + out->exit(2);
}
END
echo 'int gr_fine(void);' >"$tree/include/graft/fine.h"

report() { # right?, name
  n=$(($(cat "$dir/n") + 1)); echo $n >"$dir/n" # in a file: most calls stand behind a pipe
  if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; cat "$dir/out"; fi
}
ask() { "$tree/tools/check" "$@" >"$dir/out" 2>&1; }
refused() { # name, file, words that the breach is named with; the file's text is on stdin
  mkdir -p "$(dirname "$tree/$2")"; [ -f "$tree/$2" ] && cp -p "$tree/$2" "$dir/kept"
  cat >"$tree/$2"; [ "$1" = "a script that cannot be run" ] || { [ "$(head -c2 "$tree/$2" | tr -d '\0')" != '#!' ] || chmod +x "$tree/$2"; }
  [ "$1" != "a run bit on text" ] || chmod +x "$tree/$2"
  ask; rc=$?
  [ $rc -eq 1 ] && grep -qE "^check: $2.*$3" "$dir/out" && ! grep '^check: ' "$dir/out" | grep -qv "^check: $2\|no clang-format"
  report $? "refused: $1"
  rm -f "$tree/$2"; [ ! -f "$dir/kept" ] || mv "$dir/kept" "$tree/$2"
}

ask; report $? "a tree without a breach"
echo '#include "model/model.h"' | refused "a room that includes one above it" src/base/a.c "above base"
echo '#include "kernels/args.h"' | refused "a room that includes the kernels" src/model/a.h "above model"
echo '#include "base/error.h"' | refused "a kernel that includes a room" src/kernels/a.h "include only kernels"
echo '#include "base/error.h"' | refused "a public header that includes a private one" include/graft/a.h "include only public"
for call in 'exit(1)' '_exit(1)' 'abort()' 'printf("a")' 'puts("a")' 'perror("a")' 'assert(b)' 'fprintf(stderr, "a")' 'fputs("a", stdout)'; do
  printf 'void gr_a(void)\n{\n  %s;\n}\n' "$call" | refused "$call in the library" src/base/a.c "neither exits nor prints"
done
{ echo 'int gr_a;'; yes '' | head -n 600; } | refused "a file of 601 lines" src/base/a.c "601 lines"
{ printf 'void gr_a(void)\n{\n'; yes '  ;' | head -n 100; echo '}'; } | refused "a function of 101 lines" src/base/a.c "function of 101 lines"
head -c 4194305 /dev/zero | refused "a file above 4 MB" big.bin "above 4 MB"
printf '\tint gr_a;\n' | refused "a tab" src/cli/a.c "a tab"
printf 'text \n' | refused "a blank at the end of a line" a.md "a blank at the end"
printf 'text\r\n' | refused "a carriage return" a.md "a blank at the end"
printf 'text' | refused "no newline at the end" a.md "final newline"
printf '#!/bin/sh\n' | refused "a script that cannot be run" tools/a "cannot be run"
printf 'text\n' | refused "a run bit on text" a.md "does not begin with"
for mark in TO"DO" FIX"ME" XX"X" HA"CK"; do echo "Later. $mark: more" | refused "a mark of unfinished work ($mark)" a.md "unfinished work"; done
for path in /wor"k/graft" /roo"t/.cache" /hom"e/somebody" /tmp/b"-ci"; do echo "see $path" | refused "a path of one machine ($path)" a.md "path of one machine"; done
echo "see $tree/a" | refused "the path of the checkout" a.md "path of this checkout"
for host in py"pi.org" files.pythonhoste"d.org" de"b.debian.org"; do echo "https://$host/" | refused "the host of a package index ($host)" a.md "host of a package index"; done
echo 'int gr_a(int a) { return a; } // C99; this takes no typeless "auto a = 1"
auto gr_b = 1;' | refused "a public header that is not C" include/graft/a.h "is not C99"
echo 'int gr_a(int class);' | refused "a public header that is not C++" include/graft/a.h "is not C\\+\\+"
printf '#!/bin/sh\nif true; then\n' | refused "a shell script that does not parse" tools/a ""
printf '#!/usr/bin/env python3\nif True\n' | refused "Python that does not parse" tools/a.py "not Python"
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
  printf 'int   gr_a;\n' | refused "a file that clang-format would write otherwise" src/base/a.c "not formatted"
fi
mkdir -p "$tree/build" && echo 'int gr_a; int stray; static int own; int f(void); int f(void) { return own; }' >"$dir/a.c" &&
  ${CC:-cc} -c "$dir/a.c" -o "$dir/a.o" && ar rc "$tree/build/libgr_base.a" "$dir/a.o"
ask build; rc=$?
[ $rc -eq 1 ] && grep -q '^check: stray: a linked symbol' "$dir/out" && grep -q '^check: f: a linked' "$dir/out" && ! grep -q 'gr_a\|own' "$dir/out"
report $? "refused: a linked symbol that does not begin with gr_"
rm -rf "$tree/build" "$tree/src" "$tree/include"
ask; [ $? -eq 1 ] && grep -q "no source file" "$dir/out"
report $? "refused: a tree without sources"
echo "1..$(cat "$dir/n")"
