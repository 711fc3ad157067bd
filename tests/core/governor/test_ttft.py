"""With a TTFT objective a long queue goes before deadlines, no sooner than it must and for no fewer than it costs."""

import pytest

from tests.core.governor.test_patience import COSTLY, PLAIN
from vllm_kairos.core.governor import NO_CHUNKS, Governor, GovernorSettings, Moment, Objective, Queue, with_chunk
from vllm_kairos.core.linear import LinearStepModel

SAFE_SHARE = 0.9


def is_bounded(
    *,
    waited_s: float,
    prompts: int = 4,
    decodes: int = 4,
    tokens: int = 2000,
    ttft_slo_s: float | None = 2.0,
    model: LinearStepModel = COSTLY,
    budget_tokens: int = 8192,
) -> bool:
    settings = GovernorSettings(objective=Objective(tpot_s=0.01), beta=SAFE_SHARE, ttft_slo_s=ttft_slo_s)
    governor = Governor(model, settings)
    governor.deadlines.go_on({f"d{number}": settings.objective for number in range(decodes)}, decodes, Moment(100.0))
    queue = Queue(prompts, with_chunk(NO_CHUNKS, 0, tokens), 100.0 - waited_s, budget_tokens)
    return governor.bound(100.0, decodes, 1000, "p", queue) is not None


def test_the_first_prompt_runs_whole_when_it_would_be_late_otherwise() -> None:
    """It takes 28 ms, and is to have its first token within 90 % of 2 s."""
    assert is_bounded(waited_s=1.771)
    assert not is_bounded(waited_s=1.773)
    assert not is_bounded(waited_s=5.0)


@pytest.mark.parametrize("unasked", [{"ttft_slo_s": None}, {"prompts": 3}])
def test_not_without_an_objective_or_where_more_decodes_would_pay_for_it(unasked: dict[str, int | None]) -> None:
    assert is_bounded(waited_s=5.0, **unasked)  # type: ignore[arg-type]


def test_a_late_one_waits_where_chunks_in_time_carry_nearly_as_much() -> None:
    assert is_bounded(waited_s=5.0, model=PLAIN)


def test_a_late_one_goes_where_its_step_carries_three_times_as_much_for_its_time() -> None:
    """In time 100 tokens take 9 ms; 400 would take 12 ms."""
    assert is_bounded(waited_s=5.0, tokens=399)
    assert not is_bounded(waited_s=5.0, tokens=401)


def test_what_a_step_carries_is_no_more_than_its_budget() -> None:
    assert not is_bounded(waited_s=5.0, tokens=10_000, budget_tokens=401)
    assert is_bounded(waited_s=5.0, tokens=10_000, budget_tokens=399)


def test_a_late_one_goes_where_no_chunk_is_in_time() -> None:
    decodes_late = PLAIN.scaled(3.0)
    assert not is_bounded(waited_s=5.0, tokens=10, model=decodes_late)


def test_one_that_has_had_its_first_token_is_due_by_none() -> None:
    settings = GovernorSettings(objective=Objective(tpot_s=0.01), ttft_slo_s=2.0)
    governor = Governor(COSTLY, settings)
    governor.deadlines.go_on({"d": settings.objective}, 1, Moment(100.0))
    assert governor.bound(100.0, 1, 1000, "p", None) is not None
