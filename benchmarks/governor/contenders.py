"""Who is compared: the same servers, with prefill sized by a fixed budget or by deadlines."""

import re
from dataclasses import dataclass

from vllm_kairos.errors import ConfigError

STOCK, GOVERNOR = "stock", "governor"
_FIXED = re.compile(r"fixed-([1-9][0-9]{0,6})")
_SCALED = re.compile(rf"{GOVERNOR}-x([0-9]{{1,3}}(?:\.[0-9]{{1,4}})?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One configuration. Without `budget_tokens` a step may carry as much as vLLM's default.

    `profile_factor` is by how much the governor's profile is multiplied; None: no governor.
    """

    name: str
    budget_tokens: int | None = None
    profile_factor: float | None = None

    @property
    def is_governed(self) -> bool:
        """Whether deadlines size its prefill."""
        return self.profile_factor is not None

    @property
    def is_scaled(self) -> bool:
        """Whether its profile is made wrong, to see how soon that is corrected."""
        return self.profile_factor not in (None, 1.0)

    @property
    def is_fixed(self) -> bool:
        """Whether one budget holds for all its steps, vLLM's default among them."""
        return not self.is_governed


def of_name(name: str) -> Contender:
    """`stock`, `fixed-N`, `governor` or `governor-xF`. Raises ConfigError."""
    if name == STOCK:
        return Contender(name=name)
    if name == GOVERNOR:
        return Contender(name=name, profile_factor=1.0)
    if found := _FIXED.fullmatch(name):
        return Contender(name=name, budget_tokens=int(found.group(1)))
    if (found := _SCALED.fullmatch(name)) and float(found.group(1)) > 0:
        return Contender(name=name, profile_factor=float(found.group(1)))
    raise ConfigError(f"contender must be {STOCK}, fixed-TOKENS, {GOVERNOR} or {GOVERNOR}-xFACTOR, got {name!r}")
