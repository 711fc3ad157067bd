"""Drive an engine through a sweep plan, step by step, until the plan or the time is used up."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vllm_kairos.engine.compat_inprocess import EngineFacts, StepRecord
from vllm_kairos.errors import ProfileError
from vllm_kairos.profiler.recorder import Recorder, batch_of
from vllm_kairos.profiler.sweep import Probe, Scene, SweepPlan

_MAX_START_STEPS = 3


class SteppedEngine(Protocol):
    """The engine as the sweep needs it; `InprocessEngine` is the real one."""

    @property
    def facts(self) -> EngineFacts: ...

    def add(self, request_id: str, prompt_token_ids: Sequence[int], *, held_tokens: int) -> None: ...

    def abort(self, request_ids: Sequence[str]) -> None: ...

    def step(self, budget_tokens: int | None = None) -> StepRecord: ...


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """How far a sweep is: probes measured of those planned, in which pass."""

    measured: int
    planned: int
    pass_number: int


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """What a sweep measured in how many passes; `cut` says that time ran out before the last one ended."""

    recorder: Recorder
    passes: int
    cut: bool


def run_sweep(
    engine: SteppedEngine,
    plan: SweepPlan,
    *,
    passes: int,
    time_is_up: Callable[[], bool],
    on_progress: Callable[[SweepProgress], None],
    seed: int = 0,
) -> SweepOutcome:
    """Visit the corner scenes once and all scenes `passes` times, or until `time_is_up`.

    Repeats of one configuration lie a whole pass apart, so that a disturbance of some seconds
    spoils one repeat of several configurations rather than all repeats of one.
    """
    run = _Run(engine, random.Random(seed))
    planned = _probes(plan.corners) + passes * _probes(plan.scenes)
    number = 0
    try:
        for measured, (number, scene, probe) in enumerate(_visits(plan, passes), start=1):
            if time_is_up():
                return SweepOutcome(run.recorder, number, cut=True)
            run.visit(scene, probe)
            on_progress(SweepProgress(measured, planned, number))
    finally:
        run.leave()
    return SweepOutcome(run.recorder, number, cut=False)


def _visits(plan: SweepPlan, passes: int) -> Iterator[tuple[int, Scene, Probe]]:
    for number in range(passes + 1):
        for scene in plan.scenes if number else plan.corners:
            for probe in scene.probes:
                yield number, scene, probe


def _probes(scenes: Sequence[Scene]) -> int:
    return sum(len(scene.probes) for scene in scenes)


@dataclass(slots=True)
class _Run:
    """The decodes that are alive and the batch sizes that have been warmed up."""

    engine: SteppedEngine
    rng: random.Random
    recorder: Recorder = field(default_factory=Recorder)
    _scene: Scene | None = None
    _decodes: list[str] = field(default_factory=list)
    _warm: set[int] = field(default_factory=set)

    def visit(self, scene: Scene, probe: Probe) -> None:
        """Measure one probe; the first step of a batch size pays for kernels and buffers and is discarded."""
        if scene is not self._scene:
            self.leave()
            self._enter(scene)
        size = scene.running_decodes + probe.prefill_tokens
        if size not in self._warm:
            self._warm.add(size)
            self._step(scene, probe)
            self.recorder.warmup_steps += 1
        self.recorder.record(scene, probe, self._step(scene, probe))

    def leave(self) -> None:
        """Abort the scene's decodes."""
        self.engine.abort(self._decodes)
        self._decodes, self._scene = [], None

    def _enter(self, scene: Scene) -> None:
        self._scene = scene
        self._decodes = [f"decode-{number}" for number in range(scene.running_decodes)]
        for name in self._decodes:
            self.engine.add(name, self._token_ids(scene.context_tokens), held_tokens=scene.context_tokens - 1)
        for _ in range(_MAX_START_STEPS if self._decodes else 0):
            self.recorder.warmup_steps += 1
            if batch_of(self.engine.step()).running_decodes == scene.running_decodes:
                return
        if self._decodes:
            wanted = f"{scene.running_decodes} decodes of {scene.context_tokens} tokens"
            raise ProfileError(f"profile: the engine must run {wanted} at once, it did not within {_MAX_START_STEPS} steps")

    def _step(self, scene: Scene, probe: Probe) -> StepRecord:
        if not probe.prefill_tokens:
            return self.engine.step()
        prompt = self._token_ids(probe.done_tokens + probe.prefill_tokens + 1)  # one token left: it stays a prompt
        self.engine.add("prompt", prompt, held_tokens=probe.done_tokens)
        try:
            return self.engine.step(scene.running_decodes + probe.prefill_tokens)
        finally:
            self.engine.abort(["prompt"])

    def _token_ids(self, count: int) -> list[int]:
        return self.rng.choices(range(self.engine.facts.vocab_size), k=count)
