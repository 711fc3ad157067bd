"""What one engine step may give to prefills. Pure arithmetic; knows nothing of vLLM."""

from collections.abc import Collection, Sequence
from typing import Any

from vllm_kairos.core.governor import BoundedStep


class StepPlan:
    """One step: decodes are served whole, prefills share what is left of chi in the order they come.

    The step's total stays within the smallest chi of the prefills it carries; a prefill without
    chi is bounded by vLLM's own token budget alone and does not count against the others' chi.
    `bounded`, if any, says how much prefill the running decodes' deadlines allow.
    `floor_for` is the prefill that has waited too long and gets `floor_tokens` whatever its chi.
    """

    __slots__ = (
        "_granted",
        "_used_tokens",
        "bounded",
        "budget_tokens",
        "chi_tokens",
        "decode_tokens",
        "floor_for",
        "floor_tokens",
        "skipped",
    )

    def __init__(self, *, budget_tokens: int, decode_tokens: int) -> None:
        self.budget_tokens = budget_tokens
        self.decode_tokens = decode_tokens
        self.chi_tokens = budget_tokens
        self.bounded: BoundedStep | None = None
        self.floor_for: Any = None
        self.floor_tokens = 0
        self.skipped: Collection[Any] = ()  # decodes that sit this step out: the budget holds no token for them
        self._used_tokens = 0  # by prefills under a chi
        self._granted: dict[Any, tuple[int, bool]] = {}  # lives for one step

    @property
    def spare_tokens(self) -> int:
        """Tokens of vLLM's budget that no decode needs and no prefill has taken; may be negative."""
        return self.budget_tokens - self.decode_tokens - sum(tokens for tokens, _ in self._granted.values())

    def room(self, chi: int) -> int:
        """Prefill tokens that a request with entry `chi` may take; <= 0 when there is no headroom."""
        return min(min(chi, self.chi_tokens) - self.decode_tokens - self._used_tokens, self.spare_tokens)

    def grant(self, request: Any, tokens: int, chi: int | None, done_tokens: int = 0, *, in_time: bool = True) -> None:
        """Book `tokens` of prefill for `request`, behind `done_tokens`; its `chi`, if any, then bounds the step's total.

        `in_time`: `bounded`, if there is one, had so many left for it.
        """
        self._granted[request] = (tokens, chi is not None)
        if chi is not None:
            self.chi_tokens = min(self.chi_tokens, chi)
            self._used_tokens += tokens
        if self.bounded is not None:
            self.bounded.grant(request, done_tokens, tokens, under_bound=in_time)

    def give_back(self, request: Any) -> None:
        """Undo what `request` was granted, if anything: it was asked again, or preempted in this very step."""
        tokens, counted = self._granted.pop(request, (0, False))
        if counted:
            self._used_tokens -= tokens
        if self.bounded is not None:
            self.bounded.give_back(request)


def skipped_decodes(widths: Sequence[int], deficit_tokens: int, start: int) -> list[int]:
    """Indices of decodes that sit out so that `deficit_tokens` come free, beginning at `start` and wrapping.

    `widths` are the tokens each decode would take. Moving `start` on by the number skipped makes
    every decode the victim equally often.
    """
    skipped: list[int] = []
    count = len(widths)
    while deficit_tokens > 0 and len(skipped) < count:
        index = (start + len(skipped)) % count
        skipped.append(index)
        deficit_tokens -= widths[index]
    return skipped
