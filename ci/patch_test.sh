#!/usr/bin/env bash
# Usage: ci/patch_test.sh [pytest arguments]. Applies patches/ to a copy of the files they change in the
# installed vLLM, and runs the engine tests on that copy.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(ci/env.sh)
installed=$("$python" -c 'import importlib.util; print(importlib.util.find_spec("vllm").submodule_search_locations[0])')
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
for file in $(sed -n 's|^+++ b/vllm/||p' patches/*.patch | sort -u); do
    mkdir -p "$copy/vllm/$(dirname "$file")"
    cp "$installed/$file" "$copy/vllm/$file"
done
for patch in patches/*.patch; do
    patch --quiet --strip 1 --fuzz 0 --directory "$copy" <"$patch"
done
export KAIROS_PATCHED_MODULES=$copy PYTHONPATH="$PWD/ci${PYTHONPATH:+:$PYTHONPATH}"
"$python" -c 'import patched_modules
from vllm_kairos.engine import compat
assert compat.HAS_LIMIT_HOOK, "the patched scheduler was not imported"'
"$python" -m pytest -q -p patched_modules -m vllm tests/engine "$@"
