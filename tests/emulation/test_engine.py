"""The emulated engine on a clock of its own."""

import json
from pathlib import Path

import pytest

from vllm_kairos.emulation.engine import EmulatedEngine
from vllm_kairos.emulation.faults import Fault, FaultKind
from vllm_kairos.emulation.sequences import Turn
from vllm_kairos.emulation.settings import EmulationSettings
from vllm_kairos.errors import ConfigError
from vllm_kairos.profiles import load_shipped

MODEL = load_shipped("a100-llama3-8b").step_model


class Clock:
    """Moves only when someone sleeps on it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def _engine(clock: Clock, **settings: object) -> EmulatedEngine:
    options = EmulationSettings(profile="a100-llama3-8b", **settings)  # type: ignore[arg-type]
    engine = EmulatedEngine(options, MODEL, range(100), clock=clock, sleep=clock.sleep)
    engine.sequences.begin("a", 1000, list(range(1000)))
    return engine


def test_decoding_takes_exactly_the_sum_of_the_predicted_periods() -> None:
    clock = Clock()
    engine = _engine(clock)
    engine.wait(engine.hand_over([Turn("a", 0, 1000)]))
    begun_s = clock.now_s
    for step in range(50):
        clock.sleep(0.002)  # the host's own work
        engine.wait(engine.hand_over([Turn("a", 1000 + step, 1)]))
    predicted_s = sum(MODEL.latency_s(1, 1000 + step, 0, 0) for step in range(50))
    assert clock.now_s - begun_s == pytest.approx(predicted_s)


def test_steps_handed_over_ahead_are_not_slept_for_twice() -> None:
    clock = Clock()
    engine = _engine(clock)
    first = engine.hand_over([Turn("a", 0, 1000)])
    second = engine.hand_over([Turn("a", 1000, 1)])
    engine.wait(first)
    engine.wait(second)
    assert clock.now_s == pytest.approx(100.0 + MODEL.latency_s(0, 0, 1000, 0) + MODEL.latency_s(1, 1000, 0, 0))


def test_a_slow_node_is_slow_by_the_factor() -> None:
    clock = Clock()
    engine = _engine(clock)
    engine.faults.add(Fault(kind=FaultKind.SLOW, factor=3.0))
    engine.faults.begin(1, 0.0, computes=True)
    engine.wait(engine.hand_over([Turn("a", 0, 1000)]))
    assert clock.now_s - 100.0 == pytest.approx(3 * MODEL.latency_s(0, 0, 1000, 0))


def test_steps_are_recorded(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "steps.jsonl"
    engine = _engine(clock, record=str(path))
    engine.wait(engine.hand_over([Turn("a", 0, 1000)]))
    engine.wait(engine.hand_over([Turn("a", 1000, 1)]))
    engine.close()
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["prefill_tokens"], first["follows"]) == (1000, False)
    assert (second["running_decodes"], second["kv_tokens"], second["follows"]) == (1, 1000, True)
    assert second["woke_s"] - first["woke_s"] == pytest.approx(second["predicted_s"])


def test_a_step_without_end_is_slept_for_bit_by_bit() -> None:
    clock, slept = Clock(), []
    engine = _engine(clock)
    engine.faults.add(Fault(kind=FaultKind.SLOW, factor=1e308))
    engine.faults.begin(1, 0.0, computes=True)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt  # nothing else ends it

    engine._sleep = sleep
    with pytest.raises(KeyboardInterrupt):
        engine.wait(engine.hand_over([Turn("a", 0, 1000)]))
    assert slept == [60.0] * 3


def test_a_record_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"emulation\.record must be a file that can be written, got .*nowhere"):
        _engine(Clock(), record=str(tmp_path / "nowhere" / "steps.jsonl"))


def test_a_disk_that_fails_ends_the_record_and_not_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    engine = _engine(Clock(), record="/dev/full")
    for step in range(3):
        engine.wait(engine.hand_over([Turn("a", step, 1)]))
    assert engine.steps == 3
    assert [line.message for line in caplog.records] == ["Steps are no longer recorded in /dev/full: No space left on device"]
    engine.close()
