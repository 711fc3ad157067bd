#!/usr/bin/env bash
# Usage: ci/vllm_source.sh. Prints a directory with the source distribution of the default vLLM release:
# the index's own archive, which carries vLLM's tests and examples. Fetched once, kept in the cache.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(ci/env.sh)
version=$(grep -v '^#' ci/versions.txt | head -1)
cache=${KAIROS_CACHE_DIR:-$HOME/.cache/vllm-kairos}/vllm-sdist
target=$cache/vllm-$version
if [ ! -d "$target" ]; then
    mkdir -p "$cache"
    scratch=$(mktemp -d "$cache/partial.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    # The metadata step of the build needs no compiler when told that there is no device.
    VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$version "$python" -m pip download --quiet --no-deps \
        --no-build-isolation --no-binary :all: --dest "$scratch" "vllm==$version" >&2 </dev/null
    tar -xzf "$scratch/vllm-$version.tar.gz" -C "$scratch"
    mv -T "$scratch/vllm-$version" "$target" 2>/dev/null || [ -d "$target" ]
fi
echo "$target"
