"""Random mixes on the real scheduler, recorded: every gap is attributed once, every step is read as it is."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.engine.test_random_mixes import Arrival, Mix, Node, arrivals, nodes, scheduler_of
from tests.engine.test_step_recorder import STEP_S, Played
from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.engine import compat, compat_steps
from vllm_kairos.engine.deflection import is_deflected
from vllm_kairos.steps.attribution import CauseClock, StepSpan
from vllm_kairos.steps.gap_tracker import Mark, Wait, gap_of
from vllm_kairos.steps.recorded import StepLoad
from vllm_kairos.steps.step_file import StepLine

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


class PlainModel:
    """What each request's gaps are put down to, by a look at every one of them in every step."""

    def __init__(self) -> None:
        self.clock = CauseClock()
        self.last: dict[str, Mark] = {}
        self.preempted: dict[str, int] = {}

    def expect(self, line: StepLine, served: set[str]) -> list[tuple[str, float]]:
        """The gaps that the tokens of `served` end; takes the step's own times and cause from its line."""
        now = Mark(line.at, self.clock.advance(StepSpan(line.idle, line.run, follows=True), Cause[line.cause.upper()]))
        gaps = []
        for request_id in served:
            was_preempted = self.preempted.get(request_id, line.step + 1) <= line.step
            if was_preempted:
                del self.preempted[request_id]
            if (mark := self.last.get(request_id)) is not None:
                gap = gap_of(Wait(mark, 1, was_preempted), now)
                gaps.append((gap.cause.label, round(gap.gap_s, 6)))
            self.last[request_id] = now
        return sorted(gaps)

    def end(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self.last.pop(request_id, None)
            self.preempted.pop(request_id, None)


class RecordedMix(Mix):
    """A mix whose steps each take STEP_S, and whose tokens are noted beside the recorder."""

    def __init__(self, scheduler: Any, node: Node, mix: list[Arrival]) -> None:
        super().__init__(scheduler, node, mix)
        self.played, self.plain = Played(scheduler), PlainModel()
        schedule, update, preempt = scheduler.schedule, scheduler.update_from_output, self.played.recorder.preempted
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
            lines = len(self.played.lines)
            results = update(output, answer)
            self.played.note(results)
            for line in self.played.lines[lines:]:
                found = sorted((cause, round(gap_s, 6)) for cause, count, gap_s in line.gaps for _ in range(count))
                assert found == self.plain.expect(line, compat_steps.requests_with_tokens(results))
            self.plain.end(compat_steps.ended_requests(scheduler))
            return results

        def noted_preemption(request_id: str) -> None:
            self.plain.preempted[request_id] = self.played.recorder._number + 1
            preempt(request_id)

        self.played.recorder.preempted = noted_preemption  # type: ignore[method-assign]
        scheduler.schedule, scheduler.update_from_output = checked_schedule, noted_update


@example(
    node=Node(async_scheduling=False, policy="fcfs", token_budget=16, blocks=14, default_chunk=8, depth=1, draft_tokens=0),
    mix=[Arrival(prompt=1, **ONE), Arrival(prompt=1, **ONE | {"remote": True}), Arrival(prompt=3, **ONE | {"schedule": (1,)})],
)  # a step passes over the last one between two chunks of a single token
@given(node=nodes, mix=st.lists(arrivals, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_gap_is_attributed_once(model: str, node: Node, mix: list[Arrival]) -> None:
    scheduler = scheduler_of(model, node)
    try:
        recorded = RecordedMix(scheduler, node, mix)
        recorded.run()
        recorded.played.check()
    finally:
        scheduler.shutdown()
