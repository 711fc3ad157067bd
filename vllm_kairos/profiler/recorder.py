"""Turn executed steps into samples: check each against its plan, condense repeats, say what was dropped."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vllm_kairos.core.regime import Regime
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.engine.compat_inprocess import StepRecord
from vllm_kairos.fitting.features import Sample, regime_of
from vllm_kairos.profiler.sweep import Probe, Scene

# A repeat this many times its configuration's median was disturbed from outside, by another process or a page fault.
OUTLIER_FACTOR = 2.0


@dataclass(slots=True)
class Recorder:
    """Collects the samples of a sweep and counts the steps that gave none."""

    samples: list[Sample] = field(default_factory=list)
    warmup_steps: int = 0
    unplanned_steps: int = 0

    def record(self, scene: Scene, probe: Probe, step: StepRecord) -> None:
        """Keep one step, unless the engine scheduled something else than the plan asked for."""
        batch = batch_of(step)
        planned = (scene.running_decodes, probe.prefill_tokens, probe.done_tokens)
        if (batch.running_decodes, batch.prefill_tokens, batch.done_tokens) != planned:
            self.unplanned_steps += 1
            return
        self.samples.append(
            Sample(batch=batch, step_s=step.step_s, period_s=step.period_s, configuration=scene.configuration(probe))
        )


def batch_of(step: StepRecord) -> BatchShape:
    """Read the batch shape off an executed step; K counts the prompt's own computed tokens too."""
    prompts = [part for part in step.parts if not part.is_decode]
    return BatchShape(
        running_decodes=len(step.parts) - len(prompts),
        kv_tokens=sum(part.held_tokens for part in step.parts),
        prefill_tokens=sum(part.scheduled_tokens for part in prompts),
        done_tokens=sum(part.held_tokens for part in prompts),
    )


def configurations(samples: Iterable[Sample]) -> dict[Regime, int]:
    """Count the distinct configurations measured for each model."""
    names: dict[Regime, set[str]] = {regime: set() for regime in Regime}
    for sample in samples:
        names[regime_of(sample.batch)].add(sample.configuration)
    return {regime: len(found) for regime, found in names.items()}


@dataclass(frozen=True, slots=True)
class Condensed:
    """One sample per configuration, and how many repeats were disturbed."""

    samples: tuple[Sample, ...]
    disturbed: int


def condense(samples: Sequence[Sample]) -> Condensed:
    """Take each configuration's median repeat; the batch stays one that was really measured."""
    repeats: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        repeats[sample.configuration].append(sample)
    medians = [_median(group) for group in repeats.values()]
    limit_s = {median.configuration: OUTLIER_FACTOR * median.step_s for median in medians}
    disturbed = sum(sample.step_s > limit_s[sample.configuration] for sample in samples)
    return Condensed(tuple(medians), disturbed)


def _median(repeats: Sequence[Sample]) -> Sample:
    """The lower median by step time: with two repeats the less disturbed one."""
    return sorted(repeats, key=lambda sample: sample.step_s)[(len(repeats) - 1) // 2]
