"""What is said of the published comparison with real servers is what it holds."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLISHED = json.loads((ROOT / "benchmarks/results/sim-reality.json").read_text(encoding="utf-8"))
BOUNDS = {"ttft_p50_s": 0.15, "ttft_p95_s": 0.25, "deflected": 0.20}


@pytest.mark.parametrize("cell", PUBLISHED["cells"], ids=lambda cell: f"{cell['load']}-{cell['policy']}")
@pytest.mark.parametrize("figure", BOUNDS)
def test_with_the_steps_that_it_had_every_cell_is_within_its_bounds(cell, figure):
    assert abs(cell["with_own_steps"]["relative_errors"][figure]) <= BOUNDS[figure]


def test_the_page_has_every_cell():
    text = (ROOT / "docs/simulate.md").read_text(encoding="utf-8")
    for cell in PUBLISHED["cells"]:
        real = cell["real"]
        assert f"| {cell['load']}, `{cell['policy']}` | {real['ttft_p50_s']:.2f} / {real['ttft_p95_s']:.2f} |" in text
