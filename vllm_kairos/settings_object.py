"""Reading an object of settings, as JSON has it: every fault names the field, the rule and the value."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from vllm_kairos.errors import ConfigError

Reader = Callable[[str, Any], Any]
"""Takes a field's full name and its value, and returns the setting. Raises ConfigError."""

_Choice = TypeVar("_Choice", bound=StrEnum)


def switched(place: str, raw: Any) -> Mapping[Any, Any] | None:
    """The object that turns something on, `true` standing for an empty one; None: off. Raises ConfigError."""
    if raw is None or raw is False:
        return None
    if raw is True:
        return {}
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{place} must be an object, true or false, got {raw!r}")
    return raw


def read_object(
    place: str, raw: Mapping[Any, Any], readers: Mapping[str, Reader], *, also_known: Iterable[str] = ()
) -> dict[str, Any]:
    """The settings that `raw` has, those that are null left out. `also_known`: others, to be named where one is unknown."""
    unknown = sorted(str(name) for name in raw if name not in readers)  # YAML has names that are no texts
    if unknown:
        known = ", ".join(sorted([*readers, *also_known]))
        raise ConfigError(f"{place}.{unknown[0]}: no such setting; known are {known}")
    return {name: readers[name](f"{place}.{name}", value) for name, value in raw.items() if value is not None}


def refused(name: str, rule: str, value: Any) -> ConfigError:
    """What to raise when field `name` breaks `rule`."""
    return ConfigError(f"{name} must be {rule}, got {value!r}")


def text(name: str, value: Any) -> str:
    """Read a text that is not empty; names of files hold no NUL, and halves of characters cannot be sent."""
    if not isinstance(value, str) or not value:
        raise refused(name, "a non-empty string", value)
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
        raise refused(name, "a non-empty string without NUL and half characters", value)
    return value


def flag(name: str, value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise refused(name, "true or false", value)
    return value


def choice(kind: type[_Choice]) -> Callable[[str, Any], _Choice]:
    """Make a reader of one of `kind`."""

    def read(name: str, value: Any) -> _Choice:
        if not isinstance(value, str) or value not in tuple(kind):
            raise refused(name, "one of " + ", ".join(kind), value)
        return kind(value)

    return read


def whole(least: int, most: int = 2**53) -> Callable[[str, Any], int]:
    """Make a reader of whole numbers; larger ones than `most` are named as such."""

    def read(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise refused(name, f"a whole number >= {least}", value)
        if value > most:
            raise refused(name, f"a whole number in {least}..{most}", value)
        return value

    return read


def number(rule: str, holds: Callable[[float], bool]) -> Callable[[str, Any], float]:
    """Make a reader of numbers for which `rule`, in words, holds."""

    def read(name: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise refused(name, rule, value)
        try:
            found = float(value)
        except OverflowError:  # JSON sets no limit to whole numbers
            raise refused(name, rule, value) from None
        if not holds(found):
            raise refused(name, rule, value)
        return found

    return read
