#!/usr/bin/env bash
# Usage: ci/test.sh. Every check, each with its wall time; all of them run even when one fails.
# The closing line has pytest's form and sums all pytest runs; a failed step counts as one failure.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$(ci/env.sh) || exit 1
results=.kairos/results
rm -rf "$results"
mkdir -p "$results"
exec </dev/null

step() {
    local name=$1 started=$SECONDS status=0
    shift
    echo "::: $name: $*"
    PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} --junitxml=$PWD/$results/$name.xml" "$@" || status=$?
    echo "$name $status $((SECONDS - started))" >>"$results/steps"
    echo "::: $name: status $status after $((SECONDS - started)) s"
}

step lint ci/lint.sh
step types "$python" -m mypy
step unit ci/unit.sh
step engine ci/test_engine.sh
step patch ci/patch_test.sh
step upstream ci/upstream_tests.sh
step e2e ci/e2e.sh
step docs ci/docs_test.sh
exec "$python" ci/summary.py "$results"
