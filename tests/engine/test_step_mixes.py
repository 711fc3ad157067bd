"""Random mixes on the real scheduler, recorded: every gap is attributed once, every step is read as it is."""

from collections.abc import Set as AbstractSet
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.engine.builder import build_scheduler
from tests.engine.test_random_mixes import Arrival, Mix, Node, arrivals, nodes
from tests.engine.test_step_recorder import STEP_S, Played
from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.engine import compat, compat_steps
from vllm_kairos.engine.deflection import is_deflected
from vllm_kairos.steps.recorded import StepLoad

ONE: dict[str, Any] = {
    "at_step": 0,
    "output": 1,
    "schedule": None,
    "remote": False,
    "shares_prefix": False,
    "priority": 0,
    "abort_after": None,
}


def read_slowly(scheduler: Any, output: Any) -> StepLoad:
    """The same as `read_load`, by a look at every request."""
    decodes, kv_tokens, tokens, done_tokens = compat.batch_shape(scheduler, output)
    work, deflected, unfinished = 0.0, 0, set()
    for request_id, count in output.num_scheduled_tokens.items():
        request = scheduler.requests[request_id]
        before = request.num_computed_tokens - count
        if count > 1 + scheduler.num_spec_tokens or before < request.num_prompt_tokens - 1:
            work += count * before + count * count * 0.5
            deflected += count if is_deflected(request) else 0
        if request.is_prefill_chunk:
            unfinished.add(request_id)
    chunks = PrefillTotals(1 if tokens else 0, tokens, done_tokens, work)
    return StepLoad(decodes, kv_tokens, chunks, deflected, frozenset(unfinished))


class RecordedMix(Mix):
    """A mix whose steps each take STEP_S, and whose tokens are noted beside the recorder."""

    def __init__(self, scheduler: Any, node: Node, mix: list[Arrival]) -> None:
        super().__init__(scheduler, node, mix)
        self.played = Played(scheduler)
        schedule, update = scheduler.schedule, scheduler.update_from_output
        unfinished: AbstractSet[str] = frozenset()

        def checked_schedule() -> Any:
            nonlocal unfinished
            output = schedule()
            if output.total_num_scheduled_tokens:
                load = compat_steps.read_load(scheduler, output, compat_steps.entered(output, unfinished))
                assert load == read_slowly(scheduler, output)
                unfinished = compat_steps.still_unfinished(scheduler, output, unfinished, load)
            return output

        def noted_update(output: Any, answer: Any) -> Any:
            self.played.now_s += STEP_S
            results = update(output, answer)
            self.played.note(results)
            return results

        scheduler.schedule, scheduler.update_from_output = checked_schedule, noted_update


@example(
    node=Node(async_scheduling=False, policy="fcfs", token_budget=16, blocks=14, default_chunk=8, depth=1, draft_tokens=0),
    mix=[Arrival(prompt=1, **ONE), Arrival(prompt=1, **ONE | {"remote": True}), Arrival(prompt=3, **ONE | {"schedule": (1,)})],
)  # a step passes over the last one between two chunks of a single token
@given(node=nodes, mix=st.lists(arrivals, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_gap_is_attributed_once(model: str, node: Node, mix: list[Arrival]) -> None:
    scheduler = build_scheduler(
        model,
        async_scheduling=node.async_scheduling,
        policy=node.policy,
        token_budget=node.token_budget,
        blocks=node.blocks,
        prefix_caching=True,
        max_sequences=8,
        draft_tokens=node.draft_tokens,
        connector="KairosNixlConnector",
        kairos={"role": "decode", "default_chunk_tokens": node.default_chunk},
    )
    try:
        recorded = RecordedMix(scheduler, node, mix)
        recorded.run()
        recorded.played.check()
    finally:
        scheduler.shutdown()
