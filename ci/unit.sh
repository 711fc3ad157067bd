#!/usr/bin/env bash
# Usage: ci/unit.sh [pytest arguments]. The tests that need neither vLLM nor a network.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "$(ci/env.sh)" -m pytest -q -m "not vllm and not e2e" "$@"
