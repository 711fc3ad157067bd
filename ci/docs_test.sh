#!/usr/bin/env bash
# Usage: ci/docs_test.sh [file ...]. Runs the snippets that the documentation marks with `ci`.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(ci/env.sh)
exec "$python" ci/docs_test.py "$@"
