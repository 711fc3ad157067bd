"""Random inputs for property tests, and the fixed models that examples use."""

from dataclasses import replace

from hypothesis import strategies as st

from vllm_kairos.core.lease import NodeLease, Share
from vllm_kairos.core.linear import DecodeCost, FittedLimits, LinearStepModel, PrefillCost, ShapeLimits
from vllm_kairos.core.node import LinkState, NodeState, Role
from vllm_kairos.core.shapes import BatchShape, RequestShape
from vllm_kairos.fitting.artifact import Accuracy, Profile

A100 = LinearStepModel(
    prefill=PrefillCost(fixed_s=6.76e-3, per_token_s=6.38e-5, per_done_token_s=1e-7, per_attention_work_s=3.46e-9),
    decode=DecodeCost(fixed_s=10.85e-3, per_decode_s=4.36e-5, per_kv_token_s=7.96e-8),
    extra=PrefillCost(fixed_s=1e-3, per_token_s=6.0e-5, per_done_token_s=1e-7, per_attention_work_s=3.46e-9),
)
"""Llama-3-8B on an A100-80GB, roughly: steps of 10 to 200 ms."""

CANDIDATES = (2048, 1024, 512, 256, 128, 64)


def profile() -> Profile:
    """A complete profile of A100."""
    limits = ShapeLimits(running_decodes=256, kv_tokens=500_000, prefill_tokens=16384, done_tokens=32768)
    accuracy = Accuracy(mape=0.03, worst_error=0.12, configurations=9)
    return Profile(
        hardware="A100-80GB",
        model="meta-llama/Meta-Llama-3-8B",
        vllm_version="0.32.0",
        engine_flags=("--dtype=bfloat16",),
        kv_bytes_per_token=131072,
        block_size_tokens=16,
        token_budget_tokens=8192,
        chunk_candidates_tokens=CANDIDATES,
        period_overhead_s=0.0,
        fitted=replace(A100, limits=FittedLimits(prefill=limits, decode=limits, mixed=limits)),
        accuracy={"prefill": accuracy, "decode": accuracy, "mixed": accuracy},
    )


def _cost(most: float) -> st.SearchStrategy[float]:
    return st.one_of(st.just(0.0), st.floats(most * 1e-3, most))


def prefill_costs() -> st.SearchStrategy[PrefillCost]:
    """Coefficients from none to a few times those of a GPU."""
    return st.builds(
        PrefillCost,
        fixed_s=_cost(2e-2),
        per_token_s=_cost(2e-4),
        per_done_token_s=_cost(1e-6),
        per_attention_work_s=_cost(2e-8),
    )


def models() -> st.SearchStrategy[LinearStepModel]:
    """Linear models, every coefficient of which may be zero."""
    decode = st.builds(DecodeCost, fixed_s=_cost(3e-2), per_decode_s=_cost(3e-4), per_kv_token_s=_cost(5e-7))
    return st.builds(LinearStepModel, prefill=prefill_costs(), decode=decode, extra=prefill_costs())


def batches() -> st.SearchStrategy[BatchShape]:
    """Steps of any kind, K at least the prompt's own done tokens."""
    return st.builds(
        lambda b, kv, n, p: BatchShape(running_decodes=b, kv_tokens=kv + p, prefill_tokens=n, done_tokens=p),
        st.integers(0, 200),
        st.integers(0, 200_000),
        st.integers(0, 8192),
        st.integers(0, 40_000),
    )


def requests(**fixed: object) -> st.SearchStrategy[RequestShape]:
    """Requests of every length and objective; `fixed` sets fields."""
    fields: dict[str, object] = {
        "request_id": st.just("r"),
        "prompt_tokens": st.one_of(st.integers(1, 200), st.integers(1, 40_000)),
        "max_output_tokens": st.integers(1, 2000),
        "ttft_slo_s": st.floats(0.05, 20),
        "tbt_slo_s": st.floats(0.015, 0.2),
        "cached_tokens": st.one_of(
            st.just({}), st.dictionaries(st.sampled_from(["p0", "d0", "d1", "d2"]), st.integers(0, 4000), max_size=3)
        ),
    }
    fields.update({name: st.just(value) for name, value in fixed.items()})
    return st.builds(RequestShape, **fields)  # type: ignore[arg-type]


@st.composite
def prefill_nodes(draw: st.DrawFn, name: str) -> NodeState:
    """A prefill node with a queue of whole prompts."""
    queue = draw(st.lists(st.integers(1, 9000), max_size=6))
    return NodeState(
        node_id=name,
        role=Role.PREFILL,
        queued_prompt_tokens=tuple(queue),
        queued_prefill_tokens=sum(queue) + draw(st.sampled_from([0, 0, 12_000])),
        token_budget_tokens=draw(st.sampled_from([512, 2048, 8192])),
        total_kv_blocks=4000,
        free_kv_blocks=4000,
        accepting=draw(st.booleans()) or draw(st.booleans()),
        stale=draw(st.booleans()) and draw(st.booleans()),
    )


_LEASES = (
    None,
    None,
    NodeLease("boot-1", Share(100_000, 10_000, 100_000), until_s=2.0),
    NodeLease("boot-2", Share(1000, 200, 300), until_s=2.0),
)


@st.composite
def decode_nodes(draw: st.DrawFn, name: str, prefills: tuple[str, ...] = ("p0", "p1", "p2")) -> NodeState:
    """A decode node, with links from some prefill nodes; equal states are likely, so that ties occur."""
    decodes = draw(st.sampled_from([0, 1, 8, 8, 40, 130]))
    total = draw(st.sampled_from([500, 4000, 4000]))
    measured = draw(st.lists(st.sampled_from(prefills), unique=True))
    queue = draw(st.sampled_from([(), (), (), (700,), (700,), (40, 6000)]))
    deflected = draw(st.sampled_from([0, 0, 0, 1]))
    links = tuple(
        LinkState(
            prefill_node=prefill,
            bandwidth_bytes_per_s=draw(st.sampled_from([None, 1e9, 1e9, 2e10])),
            queued_bytes=draw(st.sampled_from([0, 0, 10**9])),
            latency_s=draw(st.sampled_from([0.0, 0.001])),
        )
        for prefill in measured
    )
    return NodeState(
        node_id=name,
        role=draw(st.sampled_from([Role.DECODE, Role.DECODE, Role.DECODE, Role.BOTH])),
        running_decodes=decodes,
        kv_tokens=decodes * draw(st.sampled_from([100, 1000, 3000])),
        remote_kv_requests=(waiting := draw(st.sampled_from([0, 0, 2]))),
        remote_kv_tokens=waiting * 500,
        total_kv_blocks=total,
        free_kv_blocks=draw(st.integers(0, total)),
        kv_bytes_per_token=131072,
        queued_prompt_tokens=queue,
        queued_prefill_tokens=sum(queue),
        deflected_prefills=deflected,
        deflected_tokens_left=min(500, sum(queue)) if deflected else 0,
        lease=(lease := draw(st.sampled_from(_LEASES))),
        speaks_leases=lease is not None or draw(st.sampled_from([False, False, True])),
        links=links,
        accepting=draw(st.sampled_from([True, True, True, False])),
        stale=draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def clusters(draw: st.DrawFn) -> list[NodeState]:
    """Up to three prefill and six decode nodes."""
    prefills = [draw(prefill_nodes(f"p{at}")) for at in range(draw(st.integers(0, 3)))]
    decodes = [draw(decode_nodes(f"d{at}")) for at in range(draw(st.integers(0, 6)))]
    return prefills + decodes
