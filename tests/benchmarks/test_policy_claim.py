"""The check of the policy table's claim, on rows written out."""

import json
from pathlib import Path

import pytest

from benchmarks.sim.claim import check

TABLE = Path(__file__).parents[2] / "benchmarks/results/sim/policy-table.json"


def _row(policy, ttft_p95_ms, violations=0.0, *, load=0.6, rejected=0):
    return {
        "trace": "a-trace",
        "profile": "a-profile",
        "load": load,
        "policy": policy,
        "ttft_p95_ms": ttft_p95_ms,
        "violations": violations,
        "rejected": rejected,
    }


@pytest.mark.parametrize(
    ("kairos", "never", "always", "holds"),
    [
        ((105, 0.0), (100, 0.0), (200, 0.0), True),
        ((106, 0.0), (100, 0.0), (200, 0.0), False),
        ((106, 0.0), (200, 0.0), (100, 0.0), False),
        ((106, 0.0), (200, 0.0), (100, 0.01), True),  # what breaks TBT is no rival
        ((50, 0.01), (100, 0.0), (200, 0.0), False),  # and no winner
        ((50, 0.005), (100, 0.0), (200, 0.0), True),
        ((50, 0.01), (10, 0.01), (10, 0.01), True),  # nobody to be worse than
    ],
)
def test_kairos_is_held_against_the_better_compliant_baseline(kairos, never, always, holds):
    report = check([_row("kairos", *kairos), _row("never", *never), _row("always", *always)])
    assert (report["cells"], report["holds"]) == (1, int(holds))
    assert len(report["exceptions"]) == 1 - int(holds)


def test_one_that_turns_requests_away_is_no_rival():
    report = check([_row("kairos", 100), _row("never", 10, rejected=3)])
    assert report["holds"] == 1


def test_cells_are_apart_and_an_exception_says_where_it_is():
    rows = [_row("kairos", 100, load=load) for load in (0.3, 0.9)] + [_row("never", 90, load=0.9), _row("never", 100, load=0.3)]
    report = check(rows)
    assert report["cells"] == 2
    assert [(found["load"], found["best"], found["ratio"]) for found in report["exceptions"]] == [(0.9, "never", 1.111)]


def test_the_committed_table_bears_the_claim_out():
    table = json.loads(TABLE.read_text())
    report = check(table["rows"])
    assert report == table["claim"]
    assert report["cells"] == report["holds"] == 32
