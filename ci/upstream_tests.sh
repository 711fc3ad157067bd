#!/usr/bin/env bash
# Usage: ci/upstream_tests.sh [pytest arguments]. vLLM's own scheduler and remote-prefill tests, run on the
# stock scheduler and on KairosScheduler: whatever passes on stock must pass on ours. The tests come from
# vLLM's source distribution, kept under KAIROS_CACHE_DIR (default ~/.cache/vllm-kairos); never vendored.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "$(ci/env.sh)" ci/upstream_tests.py "$@"
