"""The step recorder on the real scheduler: what it says of each step and gap, on a clock of the test's own."""

from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.engine.builder import make_request, run_model, schedule_params, warm_decodes
from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost
from vllm_kairos.engine import compat
from vllm_kairos.engine.step_recorder import StepRecorder
from vllm_kairos.steps.analyst import StepAnalyst
from vllm_kairos.steps.recorded import RecordedStep
from vllm_kairos.steps.step_file import StepLine, read_steps
from vllm_kairos.steps.totals import StepTotals

STEP_S = 0.010
MODEL = LinearStepModel(
    prefill=PrefillCost(fixed_s=STEP_S, per_token_s=0.0, per_done_token_s=0.0, per_attention_work_s=0.0),
    decode=DecodeCost(fixed_s=STEP_S, per_decode_s=0.0, per_kv_token_s=0.0),
    extra=PrefillCost(fixed_s=0.0, per_token_s=0.0, per_done_token_s=0.0, per_attention_work_s=0.0),
)
BOTH_MODES = pytest.mark.parametrize("async_scheduling", [False, True])


class Lines(list[StepLine]):
    """A sink that works out what it gets at once, and keeps it."""

    def __init__(self, analyst: StepAnalyst) -> None:
        super().__init__()
        self.analyst = analyst

    def put(self, step: RecordedStep) -> None:
        self.append(self.analyst.take(step))

    def close(self) -> None: ...


class Played:
    """A recorded scheduler and the engine core around it; time passes only where a test says so."""

    def __init__(self, scheduler: Any, ahead: int = 0, model: LinearStepModel | None = MODEL) -> None:
        self.scheduler, self.ahead, self.now_s = scheduler, ahead, 100.0
        self.totals = StepTotals()
        self.lines = Lines(StepAnalyst(model, self.totals, tbt_slo_s=0.07, stall_factor=2.0, started_s=self.now_s))
        self.in_flight = deque[Any]()
        self.tokens: dict[str, list[float]] = {}
        self.recorder = StepRecorder(scheduler, self.lines, clock=lambda: self.now_s)
        scheduler._kairos_recorder = self.recorder

    def step(self, run_s: float = STEP_S, idle_s: float = 0.0) -> dict[str, int]:
        """Schedule a step, and take in the oldest output once `ahead` more are under way."""
        self.now_s += idle_s
        output = self.scheduler.schedule()
        self.in_flight.append((output, run_model(self.scheduler, output)))
        keep = self.ahead if output.num_scheduled_tokens else 0
        while len(self.in_flight) > keep:
            self.now_s += run_s if self.in_flight[0][0].num_scheduled_tokens else 0.0
            self.finish()
        return dict(output.num_scheduled_tokens)

    def finish(self) -> None:
        output, answer = self.in_flight.popleft()
        self.note(self.scheduler.update_from_output(output, answer))

    def note(self, results: Any) -> None:
        """Remember who got tokens."""
        for each in results.values():
            for one in each.outputs:
                if one.new_token_ids:
                    self.tokens.setdefault(one.request_id, []).append(self.now_s)

    def run(self) -> None:
        for _ in range(1000):
            if not self.scheduler.has_requests() and not self.in_flight:
                return
            self.step()
        raise AssertionError("it does not end")

    def gaps(self) -> list[tuple[str, float]]:
        entries = [entry for line in self.lines for entry in line.gaps]
        return sorted((cause, round(gap_s, 6)) for cause, count, gap_s in entries for _ in range(count))

    def check(self) -> None:
        """All gaps that tokens made are there, once each, and counted in the totals; nothing is remembered."""
        made = [later - earlier for times in self.tokens.values() for earlier, later in pairwise(times)]
        assert sorted(gap_s for _, gap_s in self.gaps()) == pytest.approx(sorted(made), abs=1e-6)
        assert sum(each.gaps for each in self.totals.causes.values()) == len(made)
        assert sum(each.steps for each in self.totals.regimes.values()) == len(self.lines)
        assert (len(self.recorder.gaps), len(self.recorder._in_flight), self.recorder._ended) == (0, 0, {})


def played(build: Any, async_scheduling: bool = False, **options: Any) -> Played:
    return Played(build(async_scheduling=async_scheduling, **options), ahead=int(async_scheduling))


@BOTH_MODES
def test_plain_decodes(build: Any, async_scheduling: bool) -> None:
    node = played(build, async_scheduling)
    for name in "abc":
        node.scheduler.add_request(make_request(name, 20, max_tokens=5))
    node.run()
    node.check()
    assert node.gaps() == [("decode", STEP_S)] * 12
    first, second = node.lines[:2]
    assert (first.B, first.K, first.n, first.p, first.cause) == (0, 0, 60, 0, "unplanned")
    assert (first.work, second.work) == (3 * 20 * 20 / 2, None)  # of three prompts, which is less than that of one
    assert (second.B, second.K, second.n, second.predicted, second.took) == (3, 60, 0, STEP_S, pytest.approx(STEP_S))


@BOTH_MODES
def test_only_steps_that_lose_track_look_at_every_request(build: Any, async_scheduling: bool, monkeypatch: Any) -> None:
    node, looked = played(build, async_scheduling), []
    expected = node.recorder._expected
    monkeypatch.setattr(node.recorder, "_expected", lambda step: looked.append(step.number) or expected(step))
    for number in range(12):
        transfer = schedule_params(33) if number % 3 == 0 else None
        prompt, output = 20 + 20 * (number % 4), 5 + number % 5
        node.scheduler.add_request(make_request(f"r{number}", prompt, transfer=transfer, max_tokens=output))
        node.step()
    node.run()
    node.check()
    assert looked == []


@BOTH_MODES
def test_a_deflected_and_an_unplanned_prefill_beside_decodes(build: Any, async_scheduling: bool) -> None:
    node = played(build, async_scheduling)
    node.scheduler.add_request(make_request("d", 16, max_tokens=40))
    for _ in range(4):
        node.step()
    node.scheduler.add_request(make_request("p", 96, transfer=schedule_params(33), max_tokens=1))
    for _ in range(6):
        node.step()
    node.scheduler.add_request(make_request("u", 96, max_tokens=1))
    node.run()
    node.check()
    by_cause = [cause for cause, _ in node.gaps()]
    assert (by_cause.count("deflected"), by_cause.count("unplanned"), by_cause.count("decode")) == (3, 1, 35)
    assert [(line.B, line.n, line.p, line.deflected) for line in node.lines if line.deflected] == [
        (1, 32, 0, 32),
        (1, 32, 32, 32),
        (1, 32, 64, 32),
    ]


def test_a_slow_step_and_a_slow_host_are_stalls(build: Any) -> None:
    node = played(build)
    warm_decodes(node.scheduler, "a", max_tokens=6)
    node.lines.clear()
    node.step(run_s=2.1 * STEP_S)
    node.step(run_s=STEP_S / 2, idle_s=STEP_S)
    node.step(run_s=STEP_S, idle_s=STEP_S / 2)
    assert [line.gaps[0][0] for line in node.lines] == ["stall", "stall", "decode"]
    assert node.lines[2].took == pytest.approx(1.5 * STEP_S)
    assert node.totals.causes["stall"].violations == 0


def test_without_a_profile_only_idle_time_is_a_stall(build: Any) -> None:
    node = Played(build(), model=None)
    warm_decodes(node.scheduler, "a", max_tokens=6)
    node.step(run_s=5.0)
    assert (node.lines[-1].gaps, node.lines[-1].predicted) == ([("decode", 1, pytest.approx(5.0))], None)
    assert node.totals.causes["decode"].violations == 1


@BOTH_MODES
def test_a_preempted_request(build: Any, async_scheduling: bool) -> None:
    node = played(build, async_scheduling, blocks=14)
    for name in "abc":
        node.scheduler.add_request(make_request(name, 40, max_tokens=60))
    node.run()
    node.check()
    preempted = [gap_s for cause, gap_s in node.gaps() if cause == Cause.PREEMPTED.label]
    assert preempted
    assert min(preempted) > STEP_S


@BOTH_MODES
def test_an_abort_leaves_nothing(build: Any, async_scheduling: bool) -> None:
    from vllm.v1.request import RequestStatus

    node = played(build, async_scheduling)
    for name in "ab":
        node.scheduler.add_request(make_request(name, 20, max_tokens=12))
    for _ in range(4):
        node.step()
    node.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    node.run()
    node.check()


def test_time_without_requests_is_nobodys_gap(build: Any) -> None:
    node = played(build)
    for name in "ab":
        node.scheduler.add_request(make_request(name, 20, max_tokens=2))
        node.run()
        node.now_s += 60.0
    node.check()
    assert node.gaps() == [("decode", STEP_S)] * 2
    assert max(line.took for line in node.lines) < 2 * STEP_S


def test_the_last_token_of_a_cached_prompt_counts_as_a_decode(build: Any) -> None:
    node = played(build, prefix_caching=True)
    prompt = list(range(100, 149))
    for name in "ab":
        node.scheduler.add_request(make_request(name, prompt, max_tokens=2))
        node.run()
    shapes = [(line.B, line.K, line.n, line.p) for line in node.lines]
    assert shapes == [(0, 0, 49, 0), (1, 49, 0, 0), (1, 48, 0, 0), (1, 49, 0, 0)]


def test_off_there_is_no_recorder(build: Any) -> None:
    assert build(kairos={"role": "decode"})._kairos_recorder is None
    assert build(kairos={"role": "decode", "step_record": False})._kairos_recorder is None


def test_settings_make_a_recorder_that_writes(build: Any, tmp_path: Path) -> None:
    file, totals = tmp_path / "steps.jsonl", tmp_path / "totals"
    record = {"profile": "a100-llama3-8b", "file": str(file), "totals_file": str(totals)}
    scheduler = build(kairos={"node_id": "d0", "step_record": record})
    warm_decodes(scheduler, "a")
    scheduler.shutdown()
    ((header, line),) = read_steps(file)
    assert (header.node_id, header.profile, line.n) == ("d0", "a100-llama3-8b", 20)
    assert line.predicted is not None
    assert (header.vllm_version, header.hardware) == (compat.VLLM_VERSION, "")
    assert header.block_size_tokens == scheduler.block_size
    assert header.token_budget_tokens == scheduler.max_num_scheduled_tokens
    assert header.kv_bytes_per_token > 0
    assert not totals.exists()
