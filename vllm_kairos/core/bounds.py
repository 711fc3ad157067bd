"""Lower bounds on what a chunk schedule takes under a linear model, so that few schedules need to be built."""

from collections.abc import Sequence
from math import ceil, inf

_ROUNDING = 1e-9  # relative slack: a schedule adds the same terms up in another order
_SAFE = 1 - _ROUNDING
_WIDTH = 16  # running decodes that share one loose bound


class LinearScheduleBound:
    """Bounds, in seconds, on computing one prompt beside the decodes of any node; inf: surely infeasible.

    A step of at most c prompt tokens that starts at progress q is safe up to a q one can solve for, so
    how many tokens may go in chunks of c or more is known, and with it the fewest steps. Attention
    work adds up to the same however a prompt is split. What decodes add to K as they go is left out of
    what is safe and kept in what steps take.
    """

    def __init__(self, coefficients: Sequence[float], left: int, done: int, candidates: Sequence[int], limit_s: float) -> None:
        a0, a1, a2, a3, d0, d1, d2, x0, x1, x2, x3 = coefficients
        work = left * done + left * left * 0.5
        self._left, self._chis = left, candidates
        self._load = d1, d2
        self._alone_s, self._alone_step_s, self._alone_done_s = a1 * left + a3 * work, a0 + a2 * done, a2
        self._mixed_s, self._mixed_step_s = x1 * left + x3 * work, d0 + x0 + (d2 + x2) * done
        self._growth_s, self._work_s = d2 + x2, x3
        self._token_s = x1 + x3 * done
        self._spare_s = limit_s * (1 + _ROUNDING) - self._mixed_step_s

    def tight_s(self, load: tuple[int, int]) -> float:
        """Bound the schedule beside B decodes with K KV tokens; `load` is (B, K)."""
        decodes, kv_tokens = load
        if not decodes:
            return self._idle_s()
        per_decode_s, per_kv_token_s = self._load
        load_s = per_decode_s * decodes + per_kv_token_s * kv_tokens
        fixed_s, steps, per_decode_s, alone_s = self._terms(decodes, decodes, load_s)
        return max(fixed_s + steps * load_s + per_decode_s * decodes, alone_s)

    def loose_s(self, loads: Sequence[tuple[int, int]]) -> list[float]:
        """Bound them all; nodes of similar B share the fewest steps that the least loaded of them needs."""
        per_decode_s, per_kv_token_s = self._load
        loads_s = [per_decode_s * decodes + per_kv_token_s * kv_tokens for decodes, kv_tokens in loads]
        groups = [(decodes + _WIDTH - 1) // _WIDTH for decodes, _ in loads]
        least_s: dict[int, float] = {}
        for group, load_s in zip(groups, loads_s, strict=True):
            if load_s < least_s.get(group, inf):
                least_s[group] = load_s
        terms = {
            group: self._terms((group - 1) * _WIDTH + 1, group * _WIDTH, load_s) for group, load_s in least_s.items() if group
        }
        terms[0] = (self._idle_s(), 0.0, 0.0, 0.0)
        floors = []
        for group, load_s, (decodes, _) in zip(groups, loads_s, loads, strict=True):
            fixed_s, steps, growth_s, alone_s = terms[group]
            mixed_s = fixed_s + steps * load_s + growth_s * decodes
            floors.append(mixed_s if mixed_s > alone_s else alone_s)
        return floors

    def _terms(self, fewest: int, most: int, load_s: float) -> tuple[float, float, float, float]:
        """Bound as fixed seconds, weights of the load's seconds and of B, and a bound by the prompt alone.

        Holds for any node with `fewest` to `most` decodes and no less load.
        """
        steps, behind = self._fewest_steps(fewest, most, self._spare_s - load_s)
        if steps == inf:
            return inf, 0.0, 0.0, inf
        fixed_s = self._mixed_s + self._mixed_step_s * steps + self._growth_s * behind
        alone_s = self._alone_s + self._alone_step_s * steps + self._alone_done_s * behind
        growth_s = self._load[1] * (steps * (steps - 1) / 2)
        return fixed_s * _SAFE, steps * _SAFE, growth_s * _SAFE, alone_s * _SAFE

    def _fewest_steps(self, fewest: int, most: int, room_s: float) -> tuple[float, float]:
        """Return the least number of steps, and the least sum over them of tokens computed before.

        `room_s` is what the prompt may add to the first step. Chunks of a candidate begin at most where
        they turn unsafe, and the prompt's last, partial one at most a chunk later. Over a range of B,
        chunks are as long as beside the fewest decodes and as safe as beside the most.
        """
        left, token_s, work_s, growth_s = self._left, self._token_s, self._work_s, self._growth_s
        if left <= self._chis[0] - fewest and left * (token_s + work_s * left * 0.5) <= room_s:
            return 1, 0.0
        start = steps = area = 0.0
        for chi in self._chis:
            longest, safest = chi - fewest, max(1, chi - most)
            spare_s = room_s - safest * (token_s + work_s * safest * 0.5)
            if longest < 1 or spare_s < 0:
                continue
            slope_s = growth_s + work_s * safest
            end = min(left, spare_s / slope_s + 2 * longest) if slope_s else left
            if end > start:
                steps += (end - start) / longest
                area += (end * end - start * start) / (2 * longest)
                start = end
        if start < left:
            return inf, inf
        return ceil(steps * _SAFE), max(0.0, area * _SAFE - left)

    def _idle_s(self) -> float:
        """Bound the schedule of a node without decodes, where nothing limits a step but the largest candidate."""
        full, chunk = (self._left - 1) // self._chis[0], self._chis[0]
        steps = full + 1
        behind = full * self._left - chunk * full * steps // 2
        return (self._alone_s + self._alone_step_s * steps + self._alone_done_s * behind) * _SAFE
