"""Long silences cost nothing, and no input keeps a simulation going for ever."""

import pytest

from tests.sim.clusters import cluster, requests, run
from vllm_kairos.errors import SimulationError
from vllm_kairos.sim.cluster_spec import RouterSpec
from vllm_kairos.sim.network import TwoTierTopology

DAYS_S = 3 * 86400.0


@pytest.mark.parametrize("policy", ["never", "kairos", "taichi"])
def test_days_without_a_request_are_passed_over(policy: str) -> None:
    quiet = run(cluster(1, 1), requests((0.0, 4096, 50), (DAYS_S, 4096, 50)), policy)
    apart = run(cluster(1, 1), requests((0.0, 4096, 50), (30.0, 4096, 50)), policy)
    assert quiet.events < 4 * apart.events
    assert [one.ttft_s for one in quiet.requests] == pytest.approx([one.ttft_s for one in apart.requests], abs=1e-6)
    assert [one.deflected for one in quiet.requests] == [one.deflected for one in apart.requests]


def test_a_node_that_was_idle_for_days_is_not_stale() -> None:
    outcome = run(cluster(1, 1), requests((0.0, 512, 5), (DAYS_S, 512, 5)), "kairos")
    assert len({one.decision.reason for one in outcome.requests}) == 1


def test_a_transfer_of_days_is_passed_over() -> None:
    outcome = run(cluster(1, 1, topology=TwoTierTopology(latency_s=DAYS_S)), requests((0.0, 512, 5)))
    assert outcome.requests[0].ttft_s > DAYS_S
    assert outcome.events < 5000


@pytest.mark.parametrize(
    ("router", "topology"),
    [
        (RouterSpec(hop_s=1e10), TwoTierTopology()),
        (RouterSpec(decision_latency_s=1e300), TwoTierTopology()),
        (RouterSpec(), TwoTierTopology(latency_s=1e12)),
        (RouterSpec(), TwoTierTopology(nic_bytes_per_s=1e-20)),
    ],
)
def test_what_would_end_in_thousands_of_years_is_refused(router: RouterSpec, topology: TwoTierTopology) -> None:
    with pytest.raises(SimulationError, match=r"at_s must be >= now .* and <= 1e\+09, in simulated seconds"):
        run(cluster(1, 1, router=router, topology=topology), requests((0.0, 512, 5)))


def test_a_request_after_the_end_of_time_is_refused() -> None:
    with pytest.raises(SimulationError, match="got 1e\\+300"):
        run(cluster(1, 1), requests((0.0, 512, 5), (1e300, 512, 5)))
