"""The profile of the paper's testbed, calibrated to the numbers that the paper prints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from benchmarks.profiles.paper_numbers import KV_BYTES_PER_TOKEN, Printed, bandwidths_note, printed
from benchmarks.profiles.shipping import SEED, Identity, assemble, kv_capacity_tokens, rounded_model
from vllm_kairos.core.linear import DecodeCost, FittedLimits, LinearStepModel, PrefillCost, ShapeLimits
from vllm_kairos.fitting.artifact import Accuracy, Calibration, Profile

_A100_BYTES = 79.2 * 2**30
_WEIGHTS_BYTES = 31.4e9  # 15.7 billion parameters in two bytes
_LONGEST_PROMPT = 32768
_MOST_KV_TOKENS = 32 * 14013
_PROMPT_UNITS = (1e-2, 1e-5, 1e-6, 1e-9)  # of the order of each coefficient, so that the search sees equal axes
_DECODE_UNITS = (1e-2, 1e-4, 1e-8)
_UNITS = np.array([*_PROMPT_UNITS, *_DECODE_UNITS, *_PROMPT_UNITS])
_START = np.array([1.0, 4.0, 1.0, 1.0, 4.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
_STARTS = 16
_PULL = 1e-3  # towards zero, for coefficients on which no number has a say

_SOURCE = (
    "Calibrated to printed numbers, not measured. All eleven coefficients were chosen together by least squares with "
    "coefficients >= 0, each number weighted by the tolerance that its wording allows, bounds one-sided; `calibration` has "
    "every number with its residual. Decode: P50 TBT of section 3.2, at the batch that Little's law gives for each workload on "
    "two decode nodes. Mixed: the increases that the text reads off Figure 1, the chunks that it says fit a headroom of 17 to "
    "21 ms, section 6.2's P95 TBT 5 to 10 ms higher, and section 6.4's 500 deflections without a violation. Prefill: Table "
    "3's P95 execution times in steps of 2,048 tokens at the P95 prompt of each stratum, from a lognormal through the printed "
    "P90 and the high strata's median (below: the low strata's and P25); in part these times are of steps shared with other "
    "prompts, which is why they and "
    "the 7 requests/s that plain P/D sustains cannot hold together. There is no held-out set. period_overhead_s is 0: "
    "printed times are of whole steps."
)
_LEFT_OUT = " Table 2's SM utilization is a share of active cycles, not of time busy, and was not used."


def build(_data: Path) -> Profile:
    """Calibrate the profile; needs no measurements."""
    numbers = printed()
    model = rounded_model(_calibrated(numbers))
    unknown = Accuracy(mape=0.0, worst_error=0.0, configurations=0)
    identity = Identity(
        hardware="NVIDIA A100-SXM4-80GB",
        model="deepseek-ai/DeepSeek-V2-Lite",
        vllm_version="0.18.1",
        engine_flags=("--max-model-len=32768",),
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        kv_capacity_tokens=kv_capacity_tokens(
            device_bytes=_A100_BYTES, devices=1, weights_bytes=_WEIGHTS_BYTES, kv_bytes_per_token=KV_BYTES_PER_TOKEN
        ),
        token_budget_tokens=2048,
        period_overhead_s=0.0,
        note="calibrated to printed numbers, not measured. " + bandwidths_note(),
        source=_SOURCE + _LEFT_OUT,
    )
    profile = assemble(identity, model, {"prefill": unknown, "decode": unknown, "mixed": unknown})
    return _with_calibration(profile, numbers)


BUILDERS: Mapping[str, Callable[[Path], Profile]] = {"a100-deepseek-v2-lite-paper": build}


def _with_calibration(profile: Profile, numbers: Sequence[Printed]) -> Profile:
    return replace(profile, calibration=tuple(_row(number, profile.step_model) for number in numbers))


def _row(number: Printed, model: LinearStepModel) -> Calibration:
    predicted = number.predict(model)
    return Calibration(
        quantity=number.quantity,
        target=number.target,
        predicted=round(predicted, 3),
        unit=number.unit,
        residual=round(number.residual(predicted), 3),
        source=number.source,
    )


def _calibrated(numbers: Sequence[Printed]) -> LinearStepModel:
    """Search from several starts: bounds and the larger of two lines give the error several valleys."""

    def errors(scaled: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        model = _model(scaled)
        missed = [number.residual(number.predict(model)) / number.tolerance for number in numbers]
        return np.array([*missed, *(_PULL * scaled)])

    random = np.random.default_rng(SEED)
    starts = [_START, *(_START * random.lognormal(0.0, 1.0, len(_START)) for _ in range(_STARTS - 1))]
    found = [least_squares(errors, start, bounds=(0, np.inf), xtol=1e-10, ftol=1e-10, max_nfev=300) for start in starts]
    return _model(min(found, key=lambda result: float(result.cost)).x)


def _model(scaled: npt.NDArray[np.float64]) -> LinearStepModel:
    values = [float(value) for value in scaled * _UNITS]
    return LinearStepModel(
        prefill=PrefillCost(**dict(zip(PrefillCost.__dataclass_fields__, values[:4], strict=True))),
        decode=DecodeCost(**dict(zip(DecodeCost.__dataclass_fields__, values[4:7], strict=True))),
        extra=PrefillCost(**dict(zip(PrefillCost.__dataclass_fields__, values[7:], strict=True))),
        limits=_LIMITS,
    )


_LIMITS = FittedLimits(
    prefill=ShapeLimits(running_decodes=0, kv_tokens=_LONGEST_PROMPT, prefill_tokens=2048, done_tokens=_LONGEST_PROMPT),
    decode=ShapeLimits(running_decodes=100, kv_tokens=_MOST_KV_TOKENS, prefill_tokens=0, done_tokens=0),
    mixed=ShapeLimits(running_decodes=32, kv_tokens=_MOST_KV_TOKENS + 4 * 2044, prefill_tokens=2048, done_tokens=4 * 2044),
)
