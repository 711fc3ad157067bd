#!/usr/bin/env bash
# Usage: ci/bench.sh [pytest arguments]. The micro-benchmarks under benchmarks/micro.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "$(ci/env.sh)" -m pytest -q benchmarks/micro "$@"
