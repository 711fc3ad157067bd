"""Chunk schedules: how a decode node runs a prompt without any decode missing its TBT objective."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf

from vllm_kairos.core.latency import Line, StepLatencyModel
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import StateError


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """`steps` consecutive engine steps of `batch_tokens` tokens each (chi), decodes included."""

    batch_tokens: int
    steps: int

    def __post_init__(self) -> None:
        if self.batch_tokens < 1 or self.steps < 1:
            raise StateError(f"chunk run: batch_tokens and steps must be >= 1, got {self.batch_tokens} and {self.steps}")

    def __str__(self) -> str:
        return f"{self.steps}x{self.batch_tokens}"


@dataclass(frozen=True, slots=True)
class ChunkSchedule:
    """Total batch tokens per step, in order, as runs of equal chunks; the last chunk repeats if needed.

    A step carries at most `chi - B` prompt tokens; the last one carries what is left.
    """

    runs: tuple[ChunkRun, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.runs))

    @property
    def steps(self) -> int:
        return sum(run.steps for run in self.runs)

    def batch_tokens(self) -> Iterator[int]:
        """Yield chi of every step."""
        for run in self.runs:
            for _ in range(run.steps):
                yield run.batch_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A safe schedule with what the model predicts for it."""

    schedule: ChunkSchedule
    ttft_s: float  # sum of its steps (paper Eq. 6)
    worst_step_s: float
    in_range: bool  # every step lies inside what the model was fitted on


def build_schedule(
    model: StepLatencyModel,
    *,
    running_decodes: int,
    kv_tokens: int,
    prompt_tokens: int,
    done_tokens: int = 0,
    candidates: Sequence[int],
    limit_s: float,
) -> Planned | None:
    """Plan a prompt greedily from the largest safe chunk down (paper section 4.3.2); None: no safe schedule.

    Each step carries `chi - B` prompt tokens (the paper's Algorithm 1 counts chi), and the decodes'
    `kv_tokens` grow by B a step besides what the prompt adds. Since latency never decreases with
    progress, a chunk once unsafe stays so: each candidate's run is solved for, and the cost grows with
    `candidates` (chi, descending), not with the prompt. Without decodes nothing bounds a step.
    """
    plan = _Plan(model, running_decodes, kv_tokens, done_tokens, limit_s if running_decodes else inf)
    left = prompt_tokens - done_tokens
    for at, chi in enumerate(candidates):
        chunk = chi - running_decodes
        if chunk < 1:
            return None
        left -= chunk * plan.run(chi, left // chunk)
        if left < chunk and plan.finish(candidates[at:], left):
            return plan.planned()
    return None


class _Plan:
    """A schedule under construction: where the prompt stands and what its steps add up to."""

    __slots__ = ("_decodes", "_done", "_first", "_kv", "_last", "_limit_s", "_model", "_runs", "_total_s", "_worst_s")

    def __init__(self, model: StepLatencyModel, decodes: int, kv_tokens: int, done_tokens: int, limit_s: float) -> None:
        self._model, self._decodes, self._limit_s = model, decodes, limit_s
        self._done, self._kv = done_tokens, kv_tokens + done_tokens
        self._runs: list[ChunkRun] = []
        self._total_s = self._worst_s = 0.0
        self._first = self._last = 0  # prompt tokens of the first and of the last step

    def run(self, chi: int, most: int) -> int:
        """Append as many full steps of `chi` as stay safe, at most `most`; return their number."""
        chunk = chi - self._decodes
        if not most or self._after_s(chunk, 0) > self._limit_s:
            return 0
        lines = self._model.run_lines(self._batch(chunk))
        steps = self._safe_steps(chunk, most, lines)
        self._append(chi, chunk, steps, _sum_of_largest(lines, steps))
        return steps

    def finish(self, candidates: Sequence[int], left: int) -> bool:
        """Append the last, partial step if it is safe; say whether the prompt is complete.

        It gets the largest of `candidates` that would be safe in full, so that an engine that has more
        left to do than planned goes on with a useful chunk; none: just what is left.
        """
        if not left:
            return True
        step_s = self._after_s(left, 0)
        if step_s > self._limit_s:
            return False
        covering = (chi for chi in candidates if chi - self._decodes >= left)
        safe = (chi for chi in covering if self._after_s(chi - self._decodes, 0) <= self._limit_s)
        self._append(next(safe, self._decodes + left), left, 1, step_s)
        return True

    def planned(self) -> Planned:
        return Planned(
            schedule=ChunkSchedule(tuple(self._runs)),
            ttft_s=self._total_s,
            worst_step_s=self._worst_s,
            in_range=self._in_range(),
        )

    def _safe_steps(self, chunk: int, most: int, lines: Sequence[Line]) -> int:
        """Solve for the steps that stay within the limit, then settle the edge with the model itself."""
        steps = most
        for first_s, slope_s in lines:
            if first_s + (most - 1) * slope_s > self._limit_s:
                steps = min(steps, int((self._limit_s - first_s) / slope_s) + 1)
        steps = max(steps, 1)
        while steps > 1 and self._after_s(chunk, steps - 1) > self._limit_s:
            steps -= 1
        while steps < most and self._after_s(chunk, steps) <= self._limit_s:
            steps += 1
        return steps

    def _append(self, chi: int, chunk: int, steps: int, total_s: float) -> None:
        self._worst_s = max(self._worst_s, self._after_s(chunk, steps - 1))
        self._total_s += total_s
        self._done += steps * chunk
        self._kv += steps * (chunk + self._decodes)
        self._first, self._last = self._first or chunk, chunk
        if self._runs and self._runs[-1].batch_tokens == chi:
            steps += self._runs.pop().steps
        self._runs.append(ChunkRun(chi, steps))

    def _in_range(self) -> bool:
        """One look for all steps: chunks never grow, progress and K never shrink, and a range is a limit on each."""
        return self._model.in_fitted_range(
            BatchShape(
                running_decodes=self._decodes,
                kv_tokens=self._kv - self._last - self._decodes,
                prefill_tokens=self._first,
                done_tokens=self._done - self._last,
            )
        )

    def _batch(self, chunk: int) -> BatchShape:
        return BatchShape(running_decodes=self._decodes, kv_tokens=self._kv, prefill_tokens=chunk, done_tokens=self._done)

    def _after_s(self, chunk: int, steps: int) -> float:
        """Predict the step of `chunk` tokens that follows `steps` more of its kind."""
        kv = self._kv + steps * (chunk + self._decodes)
        return self._model.latency_s(self._decodes, kv, chunk, self._done + steps * chunk)


def _sum_of_largest(lines: Sequence[Line], steps: int) -> float:
    """Sum, over `steps` steps, the largest of `lines` at each, in time that grows with the lines alone."""
    top = max(lines)
    last = steps - 1
    top_last_s = top.first_s + last * top.slope_s
    if all(line.first_s + last * line.slope_s <= top_last_s for line in lines):
        return _series_s(top, 0, steps)  # the line on top at the start stays there
    total_s, step = 0.0, 0
    while step < steps:
        top = max(lines, key=lambda line: (line.first_s + step * line.slope_s, line.slope_s))
        end = min([steps, *(_overtakes(line, top, step) for line in lines if line.slope_s > top.slope_s)])
        total_s += _series_s(top, step, end)
        step = end
    return total_s


def _series_s(line: Line, start: int, end: int) -> float:
    """Sum `line` over the steps from `start` up to, not including, `end`."""
    return (end - start) * (line.first_s + line.slope_s * (start + end - 1) / 2)


def _overtakes(line: Line, top: Line, after: int) -> int:
    """First step past `after` at which the steeper `line` is no longer below `top`."""
    crossing = (top.first_s - line.first_s) / (line.slope_s - top.slope_s)
    return max(after + 1, ceil(crossing)) if crossing < 2**62 else 2**62
