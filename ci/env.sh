#!/usr/bin/env bash
# Usage: ci/env.sh [vllm version]. Prints the Python of a complete environment; builds what is missing.
# Settings: KAIROS_CACHE_DIR (default ~/.cache/vllm-kairos), KAIROS_PYTHON (a Python 3.11),
# KAIROS_TORCH_INDEX (where to find torch's CPU build when pip's own index lacks it).
set -euo pipefail
cd "$(dirname "$0")/.."

is_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

for python in "${KAIROS_PYTHON:-}" python3.11 python3 python; do
    [ -n "$python" ] && is_311 "$python" && exec "$python" ci/environment.py "$@"
done
echo "env: Python must be 3.11, got $(python3 --version 2>&1 || echo none); set KAIROS_PYTHON to one" >&2
exit 2
