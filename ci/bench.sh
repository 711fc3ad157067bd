#!/usr/bin/env bash
# Usage: ci/bench.sh [pytest arguments]. The micro-benchmarks under benchmarks/micro; those marked slow with -m slow.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "$(ci/env.sh)" -m pytest -q -m "not slow" benchmarks/micro "$@"
