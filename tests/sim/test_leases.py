"""Runs under leases: nothing is lost or done twice, refusals take the prefill path, several routers share."""

import random
from dataclasses import replace

import pytest

from tests.sim.clusters import cluster, requests, run, simulation
from tests.sim.invariants import Watch
from vllm_kairos.core.decision import Assign, Reason
from vllm_kairos.core.lease import LeaseGone, LeaseLedger, LeaseSettings, Share
from vllm_kairos.errors import SimulationError
from vllm_kairos.sim.cluster_spec import RouterSpec
from vllm_kairos.sim.simulator import Outcome
from vllm_kairos.workload.request import Workload

LEASES = LeaseSettings()
BURST = requests(*((0.001 * at, 900, 40) for at in range(30)))


def some_load(seed: int, count: int = 150, seconds: float = 6.0) -> Workload:
    rng = random.Random(seed)
    return requests(*((rng.uniform(0, seconds), rng.randint(1, 3000), rng.randint(1, 150)) for _ in range(count)))


def gone(outcome: Outcome) -> int:
    return sum(isinstance(one.decision, Assign) and one.decision.reason == Reason.LEASE_GONE for one in outcome.requests)


def ttfts(outcome: Outcome) -> float:
    return sum(one.ttft_s for one in outcome.requests)


@pytest.mark.parametrize(("routers", "loss", "blocks"), [(1, 0.0, 100_000), (3, 0.3, 100_000), (2, 0.1, 500)])
def test_no_token_and_no_request_is_lost(routers: int, loss: float, blocks: int) -> None:
    spec = cluster(1, 2, kv_blocks=blocks, router=RouterSpec(heartbeat_loss=loss), step_noise=0.3)
    sim = simulation(spec, some_load(seed=3), "crossflow", leases=LEASES, routers=routers)
    outcome = Watch(sim).run()
    assert all(one.ok for one in outcome.requests)
    assert any(one.deflected for one in outcome.requests)


def test_one_seed_gives_the_same_run() -> None:
    spec = cluster(1, 2, step_noise=0.1, router=RouterSpec(heartbeat_loss=0.3))
    first, second = (run(spec, some_load(5), "crossflow", seed=7, leases=LEASES, routers=2) for _ in range(2))
    assert first == second


def test_a_burst_is_deflected_further_than_under_one_per_node() -> None:
    spec = cluster(1, 2)
    few, many = (run(spec, BURST, policy, leases=leases) for policy, leases in (("kairos", None), ("crossflow", LEASES)))
    assert sum(one.deflected for one in many.requests) > sum(one.deflected for one in few.requests)
    assert ttfts(many) < ttfts(few)


def test_nodes_that_speak_of_no_leases_are_used_as_under_kairos() -> None:
    spec, load = cluster(1, 2), some_load(8)
    outcomes = [run(spec, load, policy) for policy in ("kairos", "crossflow")]
    assert replace(outcomes[1], policy="kairos") == outcomes[0]


def test_a_router_that_knows_of_no_leases_is_served_as_before() -> None:
    spec, load = cluster(1, 2), some_load(8)
    outcomes = [run(spec, load, "kairos", leases=leases) for leases in (None, LEASES)]
    assert [one.ttft_s for one in outcomes[0].requests] == pytest.approx([one.ttft_s for one in outcomes[1].requests], rel=0.05)
    assert gone(outcomes[1]) == 0


def test_what_a_node_refuses_takes_the_prefill_path_for_a_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, load = cluster(1, 1, router=RouterSpec(hop_s=0.01)), requests((0.0, 1000, 20))
    kept = run(spec, load, "never")
    monkeypatch.setattr(LeaseLedger, "admit", lambda *_: LeaseGone.REVOKED)
    refused = run(spec, load, "crossflow", leases=LEASES)
    assert (gone(refused), refused.transfers) == (1, 1)
    # No later than that: the decision does not wait for its time again.
    assert refused.requests[0].ttft_s == pytest.approx(kept.requests[0].ttft_s + 0.02)


def test_routers_never_overspend_what_nodes_grant() -> None:
    sim = simulation(cluster(1, 2), some_load(1, count=300), "crossflow", leases=LeaseSettings(horizon_s=0.4), routers=4)
    leases = sim.leases
    assert leases is not None

    def check() -> None:
        for node in leases._nodes.values():
            lease = node.ledger.current(sim.kernel.now_s)
            for router, share in lease.shares.items() if lease is not None else ():
                assert share.covers(node.ledger.spent(router))

    sim.kernel.after_each = check
    outcome = sim.run()
    assert all(one.ok for one in outcome.requests)
    assert leases.refused == gone(outcome)


def test_a_full_node_takes_its_lease_back() -> None:
    spec = cluster(2, 1, kv_blocks=300)
    load = requests(*((0.02 * at, 700, 200) for at in range(40)))
    sim = simulation(spec, load, "crossflow", leases=LEASES)
    assert all(one.ok for one in sim.run().requests)
    assert sim.leases is not None
    assert sim.leases.revocations > 0


def test_routers_are_counted() -> None:
    with pytest.raises(SimulationError, match="routers"):
        simulation(cluster(1, 1), BURST, routers=0)


def test_a_share_adds_up() -> None:
    assert Share(1, 2, 3).plus(Share(4, 5, 6)).without(Share(1, 1, 100)) == Share(4, 6, 0)
