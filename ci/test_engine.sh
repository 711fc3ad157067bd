#!/usr/bin/env bash
# Usage: ci/test_engine.sh [vllm version] [pytest arguments]. The tests that need an installed vLLM.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-}
shift || true
python=$(ci/env.sh "$version")
exec "$python" -m pytest -q -m vllm "$@"
