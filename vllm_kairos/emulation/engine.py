"""The emulated engine behind the executor: takes steps in, says when they end and what comes out. Knows no vLLM."""

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.emulation.device import DeviceLine, StepCost
from vllm_kairos.emulation.faults import FaultBoard
from vllm_kairos.emulation.sequences import SequenceTable, StepLoad, Turn
from vllm_kairos.emulation.settings import EmulationSettings
from vllm_kairos.errors import ConfigError

logger = logging.getLogger("vllm.kairos.emulation")

_LONGEST_SLEEP_S = 60.0  # a device slowed down without end takes longer than can be slept at once


@dataclass(frozen=True, slots=True)
class EmulatedStep:
    """A step under way: what it samples, and until when the device is busy with it."""

    sampled: dict[str, list[int]]
    end_s: float
    record: dict[str, Any] | None


class EmulatedEngine:
    """One device. Times are of `clock`, a monotonic one."""

    def __init__(
        self,
        settings: EmulationSettings,
        model: StepLatencyModel,
        words: Sequence[int],
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._cost = StepCost(model, bias=settings.bias, noise=settings.noise, seed=settings.seed)
        self._line = DeviceLine(settings.host_slack_s)
        self._started_s = clock()
        self._steps = 0
        self._last_ids: frozenset[str] = frozenset()
        self._log = _opened(settings.record) if settings.record else None
        self.sequences = SequenceTable(words)
        self.faults = FaultBoard(settings.faults)

    @property
    def elapsed_s(self) -> float:
        """Seconds since start-up."""
        return self._clock() - self._started_s

    @property
    def steps(self) -> int:
        """Steps handed over so far."""
        return self._steps

    def hand_over(self, turns: Sequence[Turn]) -> EmulatedStep:
        """Begin a step as soon as the device is free."""
        handed_over_s = self._clock()
        self._steps += 1
        load = self.sequences.load(turns)
        predicted_s = self._cost.predicted_s(load)
        duration_s = self._cost.actual_s(predicted_s) * self.faults.slowdown(self.elapsed_s)
        follows = self._follows(turns)
        end_s = self._line.run(handed_over_s, duration_s, follows=follows)
        sampled = dict(self.sequences.say(turns))
        record = self._record(load, predicted_s, duration_s, handed_over_s, end_s, follows) if self._log else None
        return EmulatedStep(sampled, end_s, record)

    def wait(self, step: EmulatedStep) -> None:
        """Return when the device is done with `step`."""
        while (left_s := step.end_s - self._clock()) > 0:
            self._sleep(min(left_s, _LONGEST_SLEEP_S))
        if self._log is not None and step.record is not None:
            self._write(self._log, step.record | {"woke_s": self._clock()})

    def close(self) -> None:
        """Close the record of steps."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _write(self, log: TextIO, record: dict[str, Any]) -> None:
        """A disk that fails ends the record, not the engine."""
        try:
            log.write(json.dumps(record) + "\n")
        except OSError as error:
            logger.warning("Steps are no longer recorded in %s: %s", log.name, error.strerror)
            self._log = None
            with suppress(OSError):  # what it still holds
                log.close()

    def _follows(self, turns: Iterable[Turn]) -> bool:
        """Whether the engine went straight from the step before to this one: a sequence is in both."""
        ids = frozenset(turn.request_id for turn in turns)
        before, self._last_ids = self._last_ids, ids
        return not before.isdisjoint(ids)

    def _record(
        self, load: StepLoad, predicted_s: float, duration_s: float, handed_over_s: float, end_s: float, follows: bool
    ) -> dict[str, Any]:
        return {
            "step": self._steps,
            "running_decodes": load.running_decodes,
            "kv_tokens": load.kv_tokens,
            "prefill_tokens": load.chunks.tokens,
            "done_tokens": load.chunks.done_tokens,
            "predicted_s": predicted_s,
            "duration_s": duration_s,
            "handed_over_s": handed_over_s,
            "end_s": end_s,
            "follows": follows,
        }


def _opened(record: str) -> TextIO:
    try:
        return open(record, "a", buffering=1)
    except OSError as error:
        rule = "a file that can be written"
        raise ConfigError(f"emulation.record must be {rule}, got {record!r}: {error.strerror}") from error
