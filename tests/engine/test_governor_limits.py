"""How long a step may take on the real scheduler, against the deadlines of every token that has come or is under way."""

from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.builder import build_scheduler, make_request
from tests.engine.governed import Governed, options
from vllm_kairos.core.governor import StepBound

SERVERS_TBT_S = 0.05
OWN = [
    {},
    {"kairos_tbt_slo_s": 0.04},
    {"kairos_tbt_slo_s": 0.04},
    {"kairos_tpot_slo_s": 0.035},
    {"kairos_tbt_slo_s": 0.1, "kairos_tpot_slo_s": 0.03},
]


class Checked(Governed):
    """Compares whatever limit its governor gives with the one worked out anew."""

    def __init__(self, scheduler: Any, ahead: int) -> None:
        super().__init__(scheduler, ahead)
        self.checked = 0
        core = self.governor._governor
        self._bound, core.bound = core.bound, self._checked_bound

    def _checked_bound(self, *asked: Any) -> StepBound | None:
        bound, left_s = self._bound(*asked), self._left_s()
        assert (bound is None) == (left_s == inf)
        if bound is not None:
            assert bound.limit_s == pytest.approx(left_s, abs=1e-9)
            self.checked += 1
        return bound

    def _left_s(self) -> float:
        """Between the end of the steps in flight and the earliest deadline."""
        tokens, begin_s, due = {name: list(times) for name, times in self.tokens.items()}, self.now_s, [inf]
        for _, answer, took_s in self.in_flight:
            begin_s += took_s
            for name, sampled in zip(answer.req_ids, answer.sampled_token_ids, strict=True):
                if sampled:
                    tokens.setdefault(name, []).append(begin_s)
        for request in self.scheduler.running:
            times, own = tokens.get(request.request_id, []), request.sampling_params.extra_args or {}
            if not times or request.max_tokens == 1:
                continue
            tbt_s = own.get("kairos_tbt_slo_s") if own else SERVERS_TBT_S
            tpot_s = own.get("kairos_tpot_slo_s")
            due += [times[-1] + tbt_s] if tbt_s is not None else []
            due += [times[0] + len(times) * tpot_s] if tpot_s is not None else []
        return min(due) - begin_s


mixes = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 1500), st.integers(1, 25), st.sampled_from(OWN)), min_size=2, max_size=12
)


@given(mix=mixes, async_scheduling=st.booleans())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_limit_of_each_step_is_that_of_the_formulas(
    model: str, mix: list[tuple[int, int, int, dict[str, float]]], async_scheduling: bool
) -> None:
    """(arrival step, prompt, output, own objectives): requests join, end, and are passed over by the step that ends them."""
    kairos = {"role": "decode", **options(tbt_slo_s=SERVERS_TBT_S, starvation_s=1000)}
    node = Checked(build_scheduler(model, async_scheduling=async_scheduling, kairos=kairos), ahead=int(async_scheduling))
    node.scheduler.add_request(make_request("D", 20, max_tokens=60))
    for at in range(31):
        for index, (arrival, prompt, output, own) in enumerate(mix):
            if arrival == at:
                request = make_request(f"R{index}", prompt, max_tokens=output)
                request.sampling_params.extra_args = dict(own) or None
                node.scheduler.add_request(request)
        node.step()
    node.run()
    assert node.checked
    assert node.left_behind() == (0, 0, 0, 0, 0)
    node.scheduler.shutdown()
