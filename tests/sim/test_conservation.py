"""Requests, tokens and KV blocks are conserved in every event of random clusters under random loads."""

from hypothesis import given
from hypothesis import strategies as st

from tests.sim.clusters import cluster, requests, simulation, workload
from tests.sim.invariants import Watch
from vllm_kairos.core.decision import Reject, RejectReason
from vllm_kairos.core.governor import GovernorMode, GovernorSettings, Objective
from vllm_kairos.sim.cluster_spec import ClusterSpec
from vllm_kairos.workload.request import TraceRequest, Workload

POLICIES = ("never", "always", "static-length:60", "kairos")


def governors() -> st.SearchStrategy[GovernorSettings | None]:
    """None at all, or objectives that decodes alone meet, miss after a while, or miss at once."""
    objectives = (Objective(tbt_s=0.07), Objective(tbt_s=0.03), Objective(tpot_s=0.03), Objective(tbt_s=0.06, tpot_s=0.02))
    governor = st.builds(
        GovernorSettings,
        mode=st.sampled_from(GovernorMode),
        objective=st.sampled_from(objectives),
        starvation_s=st.sampled_from([0.01, 1.0]),
        ttft_slo_s=st.sampled_from([None, 0.1]),
        correct=st.booleans(),
    )
    return st.none() | governor


def specs() -> st.SearchStrategy[ClusterSpec]:
    """So little KV and such small budgets that queues, refusals and preemption happen."""
    return st.builds(
        cluster,
        st.integers(0, 2),
        st.integers(1, 2),
        kv_blocks=st.integers(16, 40),
        token_budget_tokens=st.sampled_from([16, 64, 256]),
        max_running_requests=st.sampled_from([2, 4, 16]),
        default_chunk_tokens=st.sampled_from([None, 16, 100]),
        max_wait_steps=st.integers(0, 3),
        async_scheduling=st.booleans(),
        governor=governors(),
    )


@st.composite
def loads(draw: st.DrawFn) -> Workload:
    """Bursts of requests, some of which share prefixes."""
    items = []
    for at in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, 200))
        family, blocks = draw(st.integers(0, 2)), draw(st.sampled_from([0, 0, 1, 3]))
        hashes = tuple(10 * family + block for block in range(min(blocks, prompt // 32)))
        items.append(
            TraceRequest(
                request_id=f"r{at}",
                arrival_s=draw(st.floats(0, 2)),
                prompt_tokens=prompt,
                output_tokens=draw(st.integers(1, 50)),
                block_hashes=hashes,
                block_tokens=32 if hashes else 0,
                tbt_slo_s=draw(st.sampled_from([None, None, 0.04])),
                tpot_slo_s=draw(st.sampled_from([None, None, 0.02])),
            )
        )
    return workload(items)


@given(spec=specs(), load=loads(), policy=st.sampled_from(POLICIES))
def test_nothing_is_lost_or_made_up(spec: ClusterSpec, load: Workload, policy: str) -> None:
    Watch(simulation(spec, load, policy)).run()


def test_a_request_that_outgrows_every_cache_is_refused_and_the_others_go_on() -> None:
    load = requests((0.0, 100, 10), (0.1, 100, 400), (0.2, 100, 10))
    outcome = Watch(simulation(cluster(1, 1, kv_blocks=16), load)).run()
    refused = outcome.requests[1].decision
    assert isinstance(refused, Reject)
    assert refused.reason is RejectReason.KV_TOO_LARGE
    assert "r1" in refused.detail
    assert "499" in refused.detail
    assert [record.ok for record in outcome.requests] == [True, False, True]
