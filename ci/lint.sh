#!/usr/bin/env bash
# Usage: ci/lint.sh. Style and formatting, whole tree.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(ci/env.sh)
"$python" -m ruff check .
"$python" -m ruff format --check .
