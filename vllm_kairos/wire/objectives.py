"""The objectives that a request may bring for its own tokens: numbers among its `vllm_xargs`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vllm_kairos.errors import WireError

XARGS_KEY = "vllm_xargs"
TBT_KEY = "kairos_tbt_slo_s"
TPOT_KEY = "kairos_tpot_slo_s"
LONGEST_S = 3600.0

_PREFIX = "kairos_"
_KNOWN = frozenset({TBT_KEY, TPOT_KEY})


class TokenObjectives(NamedTuple):
    """In seconds; None: not given."""

    tbt_slo_s: float | None
    tpot_slo_s: float | None


def read_objectives(extra_args: Any) -> TokenObjectives | None:
    """Read them from a request's extra arguments; None when it brings none.

    Raises WireError naming the field, the rule and the value.
    """
    if not isinstance(extra_args, Mapping) or (TBT_KEY not in extra_args and TPOT_KEY not in extra_args):
        return None
    return TokenObjectives(_seconds(extra_args, TBT_KEY), _seconds(extra_args, TPOT_KEY))


def check_objectives(extra_args: Any) -> None:
    """Raise WireError where `read_objectives` would, and for a name that begins like ours and is not."""
    if not isinstance(extra_args, Mapping):
        return
    for key in extra_args:
        if key.startswith(_PREFIX) and key not in _KNOWN:
            raise WireError(f"{XARGS_KEY}.{_PREFIX}* must be one of {', '.join(sorted(_KNOWN))}, got {key!r}")
    read_objectives(extra_args)


def _seconds(extra_args: Mapping[str, Any], key: str) -> float | None:
    value = extra_args.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LONGEST_S:
        raise WireError(f"{XARGS_KEY}.{key} must be a number of seconds > 0 and <= {LONGEST_S:g}, got {value!r}")
    return float(value)
