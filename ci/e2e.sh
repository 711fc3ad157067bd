#!/usr/bin/env bash
# Usage: ci/e2e.sh [pytest arguments]. The tests that drive a real prefill and decode server on CPUs.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(ci/env.sh)
"$python" ci/convert_model.py
exec "$python" -m pytest -q -m e2e "$@"
