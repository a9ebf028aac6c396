#!/bin/sh
# smollm2.sh BUILD: what training must show on a real model, in its short form (tools/prove_smollm2). TAP on stdout.
here=$(cd "$(dirname "$0")/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/graft/models
skip() { echo "ok 1 - SmolLM2 learns # skip $1"; exit 0; }
[ -r "$here/../shared/data/datasets/gsm8k-test-400.jsonl" ] || skip "the shared data is not here"
[ -r "$cache/smollm2.gguf" ] || skip "the model is not here: tools/fetch-model smollm2 brings it"
! grep -q '^GR_SANITIZE:.*=.' "$1/CMakeCache.txt" || skip "a sanitizer's build takes too long"
exec "$here/tools/prove_smollm2" --short "$1"
