"""Lower bounds on what a chunk schedule takes under a linear model: cheap enough to ask of every decode node."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import inf, sqrt

_ROUNDING = 1e-9  # relative slack: a schedule adds the same terms up in another order
_SAFE = 1 - _ROUNDING

Chunk = Callable[[int, float], int]
"""First safe chunk, in prompt tokens, beside B decodes with so many seconds to spare; 0: none."""


def mixed_floor(
    coefficients: Sequence[float], left: int, done: int, candidates: Sequence[int], limit_s: float
) -> Callable[[int, int], float]:
    """Return the bound, in seconds, on computing `left` prompt tokens behind `done` beside (B, K); inf: infeasible.

    Chunks never grow along a schedule. So with c tokens in its first one it takes at least left / c
    steps, and the k-th step from the end has at least `left - k*c` tokens of progress behind it;
    attention work adds up to the same in any split.
    """
    a0, a1, a2, a3, d0, d1, d2, x0, x1, x2, x3 = coefficients
    work = left * done + left * left * 0.5
    alone_s = a1 * left + a3 * work
    mixed_s = x1 * left + x3 * work
    fixed_s = d0 + x0 + (d2 + x2) * done
    spare_s = limit_s * (1 + _ROUNDING) - fixed_s
    growth_s, last_s = d2 + x2, d2 + x2 + x3
    first_chunk = _first_chunk(x1 + x3 * done, 2 * x3, left, sorted(candidates))

    def floor_s(decodes: int, kv_tokens: int) -> float:
        load_s = d1 * decodes + d2 * kv_tokens
        room_s = spare_s - load_s
        chunk = first_chunk(decodes, room_s)
        if chunk < 1:
            return inf
        full = (left - 1) // chunk
        if full and last_s * (left - chunk) + x1 > room_s:
            return inf  # even the last step, if it were one token long, would be too slow
        steps = full + 1
        behind = full * left - chunk * full * steps // 2
        alone = alone_s + a0 * steps + a2 * (steps * done + behind)
        mixed = mixed_s + (fixed_s + load_s) * steps + growth_s * behind + d2 * decodes * (steps * full // 2)
        return (mixed if mixed > alone else alone) * _SAFE

    return floor_s


def idle_floor_s(coefficients: Sequence[float], left: int, done: int, candidates: Sequence[int]) -> float:
    """Bound the schedule of a node without decodes, where nothing limits a step but the largest candidate."""
    a0, a1, a2, a3 = coefficients[:4]
    chunk = min(max(candidates), left)
    full = (left - 1) // chunk
    steps = full + 1
    done_sum = steps * done + full * left - chunk * full * steps // 2
    return (a0 * steps + a1 * left + a2 * done_sum + a3 * (left * done + left * left * 0.5)) * _SAFE


def _first_chunk(linear_s: float, twice_quadratic_s: float, left: int, chis: Sequence[int]) -> Chunk:
    """Solve linear * c + quadratic * c * c <= room for c, then round down to a candidate (`chis` ascending)."""
    most = chis[-1]
    square_s = linear_s * linear_s

    def first_chunk(decodes: int, room_s: float) -> int:
        if room_s < 0:
            return 0
        divisor = linear_s + sqrt(square_s + twice_quadratic_s * room_s)  # the root's form in which nothing cancels
        safe = 2 * room_s / divisor if divisor else inf
        if safe >= left:
            return min(left, most - decodes)
        at = bisect_right(chis, safe + decodes)
        return chis[at - 1] - decodes if at else 0

    return first_chunk
