"""The paper's three linear step-latency models (section 4.3.1) with an attention-work feature beside them."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from math import inf, sqrt
from typing import TypeVar

from vllm_kairos.core.bounds import LinearScheduleBound
from vllm_kairos.core.latency import Line, PrefillTotals
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import ProfileError

MAX_COEFFICIENT = 1e9
"""Seconds; far above any step, and low enough that no batch is predicted to take infinite time."""


class _NonNegative:
    """Refuse coefficients under which a larger batch would be predicted faster."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if not isinstance(value, int | float) or not 0 <= value <= MAX_COEFFICIENT:
                rule = f"must be a finite number >= 0 and <= {MAX_COEFFICIENT:g}"
                raise ProfileError(f"{type(self).__name__}.{item.name} {rule}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCost(_NonNegative):
    """Seconds for n prompt tokens behind p computed ones: fixed + n, p and attention work n*p + n*n/2."""

    fixed_s: float
    per_token_s: float
    per_done_token_s: float
    per_attention_work_s: float

    def at(self, tokens: int, done_tokens: int) -> float:
        """Cost of one chunk, in seconds."""
        work = tokens * done_tokens + tokens * tokens * 0.5
        return self.fixed_s + self.per_token_s * tokens + self.per_done_token_s * done_tokens + self.per_attention_work_s * work


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCost(_NonNegative):
    """Seconds for B running decodes that hold K KV tokens: fixed + B and K."""

    fixed_s: float
    per_decode_s: float
    per_kv_token_s: float

    def at(self, running_decodes: int, kv_tokens: int) -> float:
        """Cost of one decode-only step, in seconds."""
        return self.fixed_s + self.per_decode_s * running_decodes + self.per_kv_token_s * kv_tokens


_Cost = TypeVar("_Cost", PrefillCost, DecodeCost)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeLimits:
    """The largest value of each argument that a model was fitted on."""

    running_decodes: int
    kv_tokens: int
    prefill_tokens: int
    done_tokens: int

    def hold(self, batch: BatchShape) -> bool:
        """Say whether `batch` exceeds no limit."""
        return (
            batch.running_decodes <= self.running_decodes
            and batch.kv_tokens <= self.kv_tokens
            and batch.prefill_tokens <= self.prefill_tokens
            and batch.done_tokens <= self.done_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLimits:
    """What each of the three models was fitted on."""

    prefill: ShapeLimits
    decode: ShapeLimits
    mixed: ShapeLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearStepModel:
    """T = prefill(n, p) without decodes, decode(B, K) without a prompt, else the larger of
    prefill(n, p) and decode(B, K) + extra(n, p) (paper Eq. 4, bounded below by the prompt's own cost).

    K counts the prompt's own computed tokens. A step without any work takes no time, which keeps
    the prediction monotone where the regimes meet. Raises ProfileError for a coefficient below zero.
    """

    prefill: PrefillCost
    decode: DecodeCost
    extra: PrefillCost
    limits: FittedLimits | None = None  # None: every shape counts as fitted
    _flat: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # One tuple to unpack: reading eleven attributes would dominate a prediction.
        object.__setattr__(self, "_flat", (*astuple(self.prefill), *astuple(self.decode), *astuple(self.extra)))

    def step_s(self, batch: BatchShape) -> float:
        """Predict one engine step, in seconds."""
        return self.latency_s(batch.running_decodes, batch.kv_tokens, batch.prefill_tokens, batch.done_tokens)

    def latency_s(self, running_decodes: int, kv_tokens: int, prefill_tokens: int, done_tokens: int) -> float:
        """Predict one step from plain numbers.

        Every operation rounds monotonically, so that the float result, too, never decreases.
        """
        a0, a1, a2, a3, d0, d1, d2, x0, x1, x2, x3 = self._flat
        if not prefill_tokens:
            return d0 + d1 * running_decodes + d2 * kv_tokens if running_decodes else 0.0
        work = prefill_tokens * done_tokens + prefill_tokens * prefill_tokens * 0.5
        alone = a0 + a1 * prefill_tokens + a2 * done_tokens + a3 * work
        if not running_decodes:
            return alone
        mixed = d0 + d1 * running_decodes + d2 * kv_tokens + (x0 + x1 * prefill_tokens + x2 * done_tokens + x3 * work)
        return mixed if mixed > alone else alone

    def packed_step_s(self, running_decodes: int, kv_tokens: int, chunks: PrefillTotals) -> float:
        """Predict one step that carries chunks of several prompts, from what their features add up to."""
        a0, a1, a2, a3, d0, d1, d2, x0, x1, x2, x3 = self._flat
        steps, tokens, done_tokens, work = chunks
        if not tokens:
            return d0 + d1 * running_decodes + d2 * kv_tokens if running_decodes else 0.0
        alone = a0 * steps + a1 * tokens + a2 * done_tokens + a3 * work
        if not running_decodes:
            return alone
        mixed = d0 + d1 * running_decodes + d2 * kv_tokens + (x0 + x1 * tokens + x2 * done_tokens + x3 * work)
        return mixed if mixed > alone else alone

    def tokens_within(
        self, limit_s: float, running_decodes: int, kv_tokens: int, carried: PrefillTotals, done_tokens: int
    ) -> float:
        """Solve `packed_step_s` for the tokens of one more prompt."""
        a0, a1, a2, a3, d0, d1, d2, x0, x1, x2, x3 = self._flat
        _, tokens, other_done_tokens, work = carried
        all_done_tokens = other_done_tokens + done_tokens
        left_s = limit_s - (a0 + a1 * tokens + a2 * all_done_tokens + a3 * work)
        alone = _reach(0.5 * a3, a1 + a3 * done_tokens, left_s)
        if not running_decodes:
            return alone
        left_s = limit_s - (d0 + d1 * running_decodes + d2 * kv_tokens + x0 + x1 * tokens + x2 * all_done_tokens + x3 * work)
        mixed = _reach(0.5 * x3, x1 + x3 * done_tokens, left_s)
        return alone if alone < mixed else mixed

    def joined_steps_s(self, loads: Sequence[tuple[int, int]], kv_tokens: int) -> list[float]:
        """Predict the decode step beside each (B, K) of `loads` once a request of `kv_tokens` has joined it."""
        fixed_s, per_decode_s, per_kv_token_s = self._flat[4:7]
        return [
            fixed_s + per_decode_s * (decodes + 1) + per_kv_token_s * (held_tokens + kv_tokens)
            for decodes, held_tokens in loads
        ]

    def run_lines(self, first: BatchShape) -> tuple[Line, ...]:
        """Describe a run of equal chunks: the prompt's own line and, beside decodes, the mixed one."""
        decodes, chunk, done = first.running_decodes, first.prefill_tokens, first.done_tokens
        if not chunk:
            slope_s = self.decode.per_kv_token_s * decodes
            return (Line(self.step_s(first), slope_s),)
        alone = Line(self.prefill.at(chunk, done), _slope_s(self.prefill, chunk))
        if not decodes:
            return (alone,)
        mixed_s = self.decode.at(decodes, first.kv_tokens) + self.extra.at(chunk, done)
        slope_s = self.decode.per_kv_token_s * (chunk + decodes) + _slope_s(self.extra, chunk)
        return alone, Line(mixed_s, slope_s)

    def prefill_total_s(self, totals: PrefillTotals) -> float:
        """Predict a sequence of prefill-only steps from what its features add up to."""
        fixed_s, per_token_s, per_done_token_s, per_work_s = self._flat[:4]
        return (
            fixed_s * totals.steps
            + per_token_s * totals.tokens
            + per_done_token_s * totals.done_tokens
            + per_work_s * totals.attention_work
        )

    def schedule_bound(
        self, *, prompt_tokens: int, done_tokens: int, candidates: Sequence[int], limit_s: float
    ) -> LinearScheduleBound:
        """Return bounds on schedules; `candidates` must descend, as for `build_schedule`."""
        return LinearScheduleBound(self._flat, prompt_tokens - done_tokens, done_tokens, candidates, limit_s)

    def scaled(self, factor: float) -> "LinearStepModel":
        """Return the model with every coefficient times `factor`."""
        prefill, decode, extra = _times(self.prefill, factor), _times(self.decode, factor), _times(self.extra, factor)
        return LinearStepModel(prefill=prefill, decode=decode, extra=extra, limits=self.limits)

    def in_fitted_range(self, batch: BatchShape) -> bool:
        """Say whether `batch` exceeds nothing that its regime's model was fitted on."""
        if self.limits is None:
            return True
        if not batch.prefill_tokens:
            return self.limits.decode.hold(batch)
        return (self.limits.mixed if batch.running_decodes else self.limits.prefill).hold(batch)


def _reach(square_s: float, slope_s: float, left_s: float) -> float:
    """The n at which slope * n + square * n * n has used `left_s` up, without loss of digits where squares count little."""
    if left_s < 0:
        return -1.0
    bent_s = slope_s + sqrt(slope_s * slope_s + 4 * square_s * left_s)
    return 2 * left_s / bent_s if bent_s else inf


def _slope_s(cost: PrefillCost, chunk: int) -> float:
    return chunk * (cost.per_done_token_s + cost.per_attention_work_s * chunk)


def _times(cost: _Cost, factor: float) -> _Cost:
    return type(cost)(**{item.name: getattr(cost, item.name) * factor for item in fields(cost)})
