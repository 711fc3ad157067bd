"""Workloads for tests, fixed and random."""

from collections.abc import Sequence

from hypothesis import strategies as st

from vllm_kairos.workload import TraceRequest, Workload
from vllm_kairos.workload.request import blocks_of


def workload_at(arrivals_s: Sequence[float], *, prompts: Sequence[int] = (), block_tokens: int = 0) -> Workload:
    """Requests r0, r1, ... at these times, with all the block ids their prompts take."""
    requests = []
    for index, arrival_s in enumerate(arrivals_s):
        tokens = prompts[index] if prompts else 10
        hashes = tuple(range(blocks_of(tokens, block_tokens))) if block_tokens else ()
        requests.append(
            TraceRequest(
                request_id=f"r{index}",
                arrival_s=arrival_s,
                prompt_tokens=tokens,
                output_tokens=5,
                block_hashes=hashes,
                block_tokens=block_tokens,
            )
        )
    return Workload(name="test", requests=tuple(requests))


def session(*, think_s: float = 4.0, prompts: Sequence[int] = (10, 10, 10)) -> Workload:
    """One closed loop of three turns."""
    turns = [
        TraceRequest(
            request_id=f"turn-{index}",
            arrival_s=0.0,
            prompt_tokens=tokens,
            output_tokens=5,
            session_id="s",
            after=f"turn-{index - 1}" if index else "",
            think_s=think_s if index else 0.0,
        )
        for index, tokens in enumerate(prompts)
    ]
    return Workload(name="session", requests=tuple(turns))


@st.composite
def workloads(draw) -> Workload:
    """Any valid workload of up to 10 requests, some in closed loops."""
    arrivals_s = sorted(draw(st.lists(st.floats(0, 1e5), min_size=1, max_size=10)))
    requests: list[TraceRequest] = []
    for index, arrival_s in enumerate(arrivals_s):
        prompt_tokens, block_tokens = draw(st.integers(1, 200)), draw(st.sampled_from([1, 16, 512]))
        ids = st.integers(-(2**63), 2**64 - 1)
        hashes = tuple(draw(st.lists(ids, max_size=min(5, blocks_of(prompt_tokens, block_tokens)))))
        after = draw(st.sampled_from(["", *(request.request_id for request in requests)]))
        requests.append(
            TraceRequest(
                request_id=f"{draw(st.text(max_size=3))}#{index}",
                arrival_s=arrival_s,
                prompt_tokens=prompt_tokens,
                output_tokens=draw(st.integers(1, 50)),
                block_hashes=hashes,
                block_tokens=block_tokens if hashes else 0,
                ttft_slo_s=draw(st.none() | st.floats(0.001, 60)),
                tbt_slo_s=draw(st.none() | st.floats(0.001, 1)),
                tpot_slo_s=draw(st.none() | st.floats(0.001, 1)),
                session_id=draw(st.text(max_size=3)),
                after=after,
                think_s=draw(st.floats(0, 100)) if after else 0.0,
            )
        )
    return Workload(name=draw(st.text(max_size=5)), requests=tuple(requests), warnings=("w",) * draw(st.integers(0, 2)))
