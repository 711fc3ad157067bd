"""The emulated device's time: when each step begins and ends."""

import random
from math import exp, inf

from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.emulation.sequences import StepLoad


class StepCost:
    """Seconds that a step takes: the model's prediction, times `bias`, times noise with median 1.

    `noise` is the standard deviation of the logarithm of the factor; 0 makes no draw.
    """

    def __init__(self, model: StepLatencyModel, *, bias: float, noise: float, seed: int) -> None:
        self._model, self._bias, self._noise = model, bias, noise
        self._random = random.Random(seed)

    def predicted_s(self, load: StepLoad) -> float:
        """The model's own prediction."""
        return self._model.packed_step_s(load.running_decodes, load.kv_tokens, load.chunks)

    def actual_s(self, predicted_s: float) -> float:
        """What the device takes for a step predicted to take `predicted_s`."""
        factor = exp(self._random.gauss(0.0, self._noise)) if self._noise else 1.0
        return predicted_s * self._bias * factor


class DeviceLine:
    """One step at a time, each from when it was handed over or from the end of the one before it.

    Profiles predict step-to-step periods, so the host's own work between two steps is part of what
    they predict. A step that follows straight on another begins where that one ended, as long as
    the host handed it over at most `host_slack_s` later; a slower host delays the device, as it
    would in truth. With async scheduling steps are handed over early and the line alone counts.
    """

    def __init__(self, host_slack_s: float) -> None:
        self._host_slack_s = host_slack_s
        self.end_s = -inf

    def run(self, handed_over_s: float, duration_s: float, *, follows: bool) -> float:
        """Add a step, and return when it ends. `follows`: the engine was never idle since the step before."""
        earliest_s = handed_over_s - (self._host_slack_s if follows else 0.0)
        self.end_s = max(earliest_s, self.end_s) + duration_s
        return self.end_s
