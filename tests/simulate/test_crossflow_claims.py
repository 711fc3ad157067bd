"""The committed results of leases against one deflection per node bear out what docs/policies.md says of them."""

import json
from math import prod
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("crossflow", "crossflow-64")
TTFT_SLO_S = 4.0


def document(name):
    return json.loads((ROOT / f"benchmarks/results/sim/{name}.json").read_text())


def points():
    """By trace, nodes and rate: what each policy did, of the one seed that was run."""
    return {
        (label, rate): {one["policy"]: one for one in figures if one["rate_rps"] == rate}
        for name in NAMES
        for label, figures in document(name)["figures"].items()
        for rate in sorted({one["rate_rps"] for one in figures})
    }


def over(point, other, figure):
    return point["crossflow"][figure][0] / point[other][figure][0]


def mean_gain(chosen):
    """Of token throughput over static P/D, geometric, in percent."""
    ratios = [over(point, "never", "output_tokens_per_s") for point in chosen]
    return 100 * (prod(ratios) ** (1 / len(ratios)) - 1)


@pytest.mark.parametrize("name", NAMES)
def test_results_name_their_command(name):
    assert document(name)["command"] == f"KAIROS_TRACES=DIR kairos simulate --experiment {name} --workers 1 --no-plots"


def test_there_are_4_16_and_64_nodes_of_each_trace():
    assert {label for label, _ in points()} == {
        f"{trace}-{nodes}" for trace in ("azure-conv", "azure-code", "mooncake") for nodes in (4, 16, 64)
    }
    assert len(points()) == 30


def test_token_throughput_over_static_p_d():
    found = points()
    highest = {label: point for (label, _), point in found.items()}
    late = [point for point in found.values() if point["never"]["ttft_mean_s"][0] > TTFT_SLO_S]
    assert mean_gain(highest.values()) == pytest.approx(20.7, abs=0.05)
    assert mean_gain([point for label, point in highest.items() if label.endswith("-64")]) == pytest.approx(17.4, abs=0.05)
    assert (len(late), mean_gain(late)) == (20, pytest.approx(12.2, abs=0.05))
    assert mean_gain(found.values()) == pytest.approx(8.1, abs=0.05)


def test_mean_ttft_is_lower_at_every_point_and_gaps_are_kept():
    assert all(over(point, "never", "ttft_mean_s") < 1 for point in points().values())
    assert max(point["crossflow"]["tbt_violation_share"][0] for point in points().values()) == pytest.approx(0.0012, abs=1e-4)


def test_p95_ttft_beside_one_deflection_per_node():
    ratios = [over(point, "kairos", "ttft_p95_s") for point in points().values()]
    assert prod(ratios) ** (1 / len(ratios)) == pytest.approx(0.69, abs=0.005)
