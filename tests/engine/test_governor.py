"""The deadline governor on the real scheduler: what prefills get beside decodes that have deadlines."""

import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.builder import build_scheduler, make_request, remote_params, schedule_params
from tests.engine.governed import PROFILE, TRUTH, Governed, options
from tests.engine.test_boundaries import as_hybrid
from vllm_kairos.errors import ConfigError

BOTH_MODES = pytest.mark.parametrize("async_scheduling", [False, True])
ALL_MODES = pytest.mark.parametrize("mode", ["strict", "guarded", "adaptive"])
ROUNDING_S = 1e-9


def governed(build: Any, async_scheduling: bool = False, role: str = "both", **governor: Any) -> Governed:
    more = {name: governor.pop(name) for name in list(governor) if name in _BUILD}
    scheduler = build(async_scheduling=async_scheduling, kairos={"role": role, **options(**governor)}, **more)
    return Governed(scheduler, ahead=int(async_scheduling))


_BUILD = ("prefix_caching", "block_size", "blocks", "connector", "token_budget", "max_sequences")


def with_decodes(node: Governed, count: int = 4, max_tokens: int = 1000, **request: Any) -> Governed:
    for index in range(count):
        node.scheduler.add_request(make_request(f"D{index}", 20, max_tokens=max_tokens, **request))
    while len(node.tokens) < count:
        node.step()
    return node


@BOTH_MODES
@pytest.mark.parametrize("role", ["both", "decode", "prefill"])
def test_prefill_takes_what_the_deadlines_leave_and_no_more(build: Any, async_scheduling: bool, role: str) -> None:
    node = with_decodes(governed(build, async_scheduling, role, tbt_slo_s=0.03))
    node.scheduler.add_request(make_request("P", 3000, max_tokens=5))
    node.scheduler.add_request(make_request("Q", 50, max_tokens=5))
    chunks = node.chunks("P")
    assert sum(chunks) == 3000
    assert min(node.gaps("D0")[-(len(chunks) - 2) : -2]) > 0.0299  # the time that there is, is used
    node.chunks("Q")
    node.step()
    assert max(node.gaps()) <= 0.03 + ROUNDING_S


@BOTH_MODES
def test_without_decodes_nothing_is_bounded(build: Any, async_scheduling: bool) -> None:
    """A prefill server: requests end with their first token, and have no next one to wait for."""
    node = governed(build, async_scheduling, "prefill", tbt_slo_s=0.03)
    for index in range(4):
        node.scheduler.add_request(make_request(f"P{index}", 6000, max_tokens=1))
    assert [sum(node.step().values()) for _ in range(3)] == [8192, 8192, 24_000 - 2 * 8192]


@BOTH_MODES
def test_saved_time_may_be_spent_under_tpot(build: Any, async_scheduling: bool) -> None:
    node = with_decodes(governed(build, async_scheduling, tpot_slo_s=0.03))
    for _ in range(100):
        node.step()
    node.scheduler.add_request(make_request("P", 8000, max_tokens=2))
    assert node.chunks("P")[0] == 8000
    node.step()
    assert max(node.gaps("D0")) > 0.3
    for name in ("D0", "D3"):
        times = node.tokens[name]
        assert all(at_s <= times[0] + count * 0.03 + ROUNDING_S for count, at_s in enumerate(times))


@BOTH_MODES
def test_a_prefill_that_starves_gets_its_floor(build: Any, async_scheduling: bool) -> None:
    """Decodes alone are in time, and nothing fits beside them: they are late only once `starvation_s` has passed."""
    tbt_s = TRUTH.latency_s(4, 600, 0, 0)
    node = with_decodes(governed(build, async_scheduling, tbt_slo_s=tbt_s, tightest_slo_s=0.001, starvation_s=0.2))
    node.scheduler.add_request(make_request("P", 64, max_tokens=1))
    began_s = node.now_s
    chunks = node.chunks("P")
    assert [tokens for tokens in chunks if tokens] == [16, 16, 16, 16]
    assert 0.8 <= node.now_s - began_s <= 0.8 + 10 * 0.012
    assert sum(gap > tbt_s + ROUNDING_S for gap in node.gaps("D0")) <= 4


@ALL_MODES
def test_a_lost_deadline_leaves_the_floor(build: Any, mode: str) -> None:
    """Decodes alone take longer than 5 ms: waiting would save nothing."""
    node = with_decodes(governed(build, tbt_slo_s=0.005, mode=mode))
    node.scheduler.add_request(make_request("P", 64, max_tokens=1))
    assert node.chunks("P") == [16, 16, 16, 16]


@BOTH_MODES
def test_a_requests_own_objective_binds_while_it_runs(build: Any, async_scheduling: bool) -> None:
    node = with_decodes(governed(build, async_scheduling, tbt_slo_s=0.05), max_tokens=1000)
    tight = make_request("T", 20, max_tokens=10)
    tight.sampling_params.extra_args = {"kairos_tbt_slo_s": 0.02}
    wrong = make_request("W", 20, max_tokens=10)
    wrong.sampling_params.extra_args = {"kairos_tbt_slo_s": "0.001"}
    node.scheduler.add_request(tight)
    node.scheduler.add_request(wrong)
    while "T" not in node.tokens:
        node.step()
    node.scheduler.add_request(make_request("P", 8000, max_tokens=1))
    node.chunks("P")
    assert max(node.gaps("T")) <= 0.02 + ROUNDING_S
    assert len(node.gaps("T")) == 9
    assert 0.045 < max(node.gaps("D0")) <= 0.05 + ROUNDING_S


def test_chunks_of_hybrid_models_are_whole_state_blocks(build: Any) -> None:
    node = governed(build, tbt_slo_s=0.05, starvation_s=0.5, block_size=528)
    as_hybrid(node.scheduler, 528)
    with_decodes(node, block_size=528)
    node.scheduler.add_request(make_request("P", 1500, max_tokens=1, block_size=528))
    chunks = [tokens for tokens in node.chunks("P") if tokens]
    assert chunks == [528, 528, 444]
    assert max(node.gaps("D0")) <= 0.05 + ROUNDING_S


def test_a_prompt_that_must_run_whole_waits_for_its_time(build: Any) -> None:
    """Seeded prompts on the CPU: 500 tokens fit no step of 30 ms, but others pass, and starvation ends the wait."""
    node = with_decodes(governed(build, tbt_slo_s=0.03, starvation_s=0.2))
    node.scheduler.add_request(make_request("S", 500, max_tokens=2, seed=7))
    node.scheduler.add_request(make_request("A", 100, max_tokens=2))
    first = node.step()
    assert (first.get("S"), first["A"]) == (None, 100)
    chunks = node.chunks("S")
    assert [tokens for tokens in chunks if tokens] == [500]
    assert sum(node.gaps("D0")[-len(chunks) :]) > 0.2


def test_small_prompts_that_pass_do_not_keep_a_whole_one_waiting_for_ever(build: Any) -> None:
    node = with_decodes(governed(build, tbt_slo_s=0.03, starvation_s=0.2))
    seeded = make_request("S", 500, max_tokens=2, seed=7)
    node.scheduler.add_request(seeded)
    began_s = node.now_s
    for index in range(40):
        node.scheduler.add_request(make_request(f"A{index}", 30, max_tokens=1))
        node.step()
        if seeded.num_computed_tokens:
            break
    assert node.now_s - began_s < 0.3


def test_what_the_prefix_cache_saves_is_priced_as_context(build: Any) -> None:
    node = with_decodes(governed(build, prefix_caching=True, tbt_slo_s=0.03))
    prompt = list(range(1, 12_001))
    node.scheduler.add_request(make_request("A", prompt, max_tokens=1))
    node.chunks("A")
    node.scheduler.add_request(make_request("B", [*prompt, *range(1, 601)], max_tokens=2))
    assert sum(node.chunks("B")) <= 616
    assert max(node.gaps()) <= 0.03 + ROUNDING_S


def test_requests_whose_kv_has_arrived_count_as_decodes(build: Any) -> None:
    node = with_decodes(governed(build, role="decode", connector="KairosNixlConnector", tbt_slo_s=0.03))
    from tests.engine.builder import run_model

    for index in range(3):
        node.scheduler.add_request(make_request(f"R{index}", 160, transfer=remote_params(160)))
    node.step()
    output = node.scheduler.schedule()
    arrived = {f"R{index}" for index in range(3)}
    node.scheduler.update_from_output(output, run_model(node.scheduler, output, finished_recving=arrived))
    node.scheduler.add_request(make_request("P", 2000, max_tokens=1))
    tokens = node.step()
    assert [tokens[name] for name in sorted(arrived)] == [1, 1, 1]
    assert 0 < tokens["P"] < 500
    assert max(node.gaps("D0")) <= 0.03 + ROUNDING_S


@BOTH_MODES
def test_measured_steps_correct_the_profile(build: Any, async_scheduling: bool, caplog: Any) -> None:
    node = governed(build, async_scheduling, tbt_slo_s=0.04, beta=0.9, correct=True)
    node.slowness = lambda: 1.5
    with_decodes(node, max_tokens=4000)
    for index in range(60):
        node.scheduler.add_request(make_request(f"P{index}", 1500, max_tokens=1))
    for _ in range(60):
        node.step()
    assert max(node.gaps("D0")[10:]) <= 0.04
    assert node.gaps("D0")[-1] == pytest.approx(0.036, rel=0.02)
    with caplog.at_level(logging.WARNING), _propagating("vllm"):
        for _ in range(256):
            node.step()
    assert "Steps take 1.50 times what the governor's profile predicts" in caplog.text


class _propagating:
    """vLLM's logger keeps its lines from the root logger, which pytest reads."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def __enter__(self) -> None:
        self._was, self._logger.propagate = self._logger.propagate, True

    def __exit__(self, *_: object) -> None:
        self._logger.propagate = self._was


mixes = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 2500), st.integers(1, 30), st.booleans()), min_size=1, max_size=12
)


@given(mix=mixes, async_scheduling=st.booleans(), blocks=st.sampled_from([10_000, 10_000, 330]))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_in_random_mixes_every_token_is_in_time_and_nothing_is_left(
    model: str, mix: list[tuple[int, int, int, bool]], async_scheduling: bool, blocks: int
) -> None:
    """(arrival step, prompt, output, deflected): exact predictions and feasible decodes, so no gap is too long."""
    kairos = {"role": "decode", **options(tbt_slo_s=0.05)}
    scheduler = build_scheduler(model, async_scheduling=async_scheduling, blocks=blocks, kairos=kairos)
    node = Governed(scheduler, ahead=int(async_scheduling))
    preempted: set[str] = set()
    preempt = scheduler._preempt_request

    def noted(request: Any, *args: Any, **kwargs: Any) -> Any:
        preempted.add(request.request_id)
        return preempt(request, *args, **kwargs)

    scheduler._preempt_request = noted
    for at in range(41):
        for index, (arrival, prompt, output, deflected) in enumerate(mix):
            if arrival == at:
                transfer = schedule_params(400) if deflected else None
                scheduler.add_request(make_request(f"R{index}", prompt, max_tokens=output, transfer=transfer))
        node.step()
    node.run()
    assert node.left_behind() == (0, 0, 0, 0, 0)
    assert sum(map(len, node.tokens.values())) == sum(output for _, _, output, _ in mix)
    in_time = [name for name in node.tokens if name not in preempted]
    assert max(node.gaps(*in_time), default=0.0) <= 0.05 + ROUNDING_S if in_time else True
    scheduler.shutdown()


@BOTH_MODES
def test_a_preempted_request_has_no_deadline(build: Any, async_scheduling: bool) -> None:
    node = governed(build, async_scheduling, blocks=14, tbt_slo_s=0.05)
    deadlines, preempt = node.governor._governor.deadlines, node.scheduler._preempt_request
    told: list[bool] = []

    def noted(request: Any, *args: Any, **kwargs: Any) -> Any:
        preempt(request, *args, **kwargs)
        told.append(request.request_id in deadlines._members or request.request_id in deadlines._paused)

    node.scheduler._preempt_request = noted
    for name in "abc":
        node.scheduler.add_request(make_request(name, 40, max_tokens=60))
    node.run()
    assert told
    assert not any(told)
    assert node.left_behind() == (0, 0, 0, 0, 0)


def test_off_there_is_no_governor(build: Any) -> None:
    assert build(kairos={"role": "decode"})._kairos_governor is None


def test_it_needs_chunked_prefill(build: Any) -> None:
    with pytest.raises(ConfigError, match="needs chunked prefill"):
        build(chunked_prefill=False, token_budget=16384, kairos={"governor": {"profile": PROFILE}})
