"""Flags and YAML keys from the fields of frozen sections: one table serves both."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from vllm_kairos.errors import ConfigError
from vllm_kairos.input_file import read_input

Values = dict[str, dict[str, Any]]
"""By section and key, of the right types; what nobody set is left out."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read from a flag's text or from YAML; `read` raises ValueError or TypeError."""

    rule: str
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One field of one section."""

    section: str
    key: str
    kind: Kind
    help: str

    @property
    def flag(self) -> str:
        """As on the command line."""
        if self.section in _PREFIXED:
            return f"--{self.section}-{self.key.replace('_', '-')}"
        return _FLAGS.get(self.key) or f"--{self.key.replace('_', '-')}"

    def converted(self, value: Any, name: str) -> Any:
        """`value` as the field's type. Raises ConfigError that calls the field `name`."""
        try:
            return self.kind.read(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{name} must be {self.kind.rule}, got {value!r}") from None


_PREFIXED = ("governor", "leases")
"""Sections whose flags begin with their name."""
# Where the plain name would mislead, or the router calls the same setting something else.
_FLAGS = {
    "nodes": "--cluster",
    "policies": "--policy",
    "racks": "--rack",
    "generate": "--workload",
    "alpha": "--deflect-alpha",
    "beta": "--deflect-beta",
    "chunk_candidates_tokens": "--deflect-chunk-candidates",
    "deflection_slot_share": "--deflect-slot-share",
    "deflections_per_node": "--deflect-per-node",
    "static_chunk_tokens": "--deflect-static-chunk",
    "unplanned_chunk_tokens": "--deflect-unplanned-chunk",
}


def options_of(sections: Mapping[str, type], about: Mapping[str, str] = MappingProxyType({})) -> tuple[Option, ...]:
    """Every field of every section, in order; `about` has the help of fields that carry none."""
    return tuple(option for name, section in sections.items() for option in _section_options(name, section, about))


def _section_options(name: str, section: type, helps: Mapping[str, str]) -> Iterator[Option]:
    hints = get_type_hints(section)
    for item in fields(section):
        about = item.metadata.get("help") or f"{helps[item.name]} ({_shown(item.default)})"
        yield Option(section=name, key=item.name, kind=_kind(hints[item.name]), help=about)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return ",".join(f"{item:g}" for item in default) if isinstance(default, tuple) else str(default)


def add_flags(parser: argparse.ArgumentParser, options: tuple[Option, ...]) -> None:
    """One flag for each option; its value stays text until `read_flags`."""
    groups: dict[str, Any] = {}
    for one in options:
        group = groups.setdefault(one.section, None) or parser.add_argument_group(one.section)
        groups[one.section] = group
        how: dict[str, Any] = {"metavar": one.kind.rule.split()[-1].upper()}
        if one.kind is _TRUTH:
            how = {"action": argparse.BooleanOptionalAction}
        elif one.kind in (_WORDS, _PAIRS):
            how |= {"action": "append"}
        group.add_argument(one.flag, dest=_dest(one), default=None, help=one.help.replace("%", "%%"), **how)


def read_flags(arguments: argparse.Namespace, options: tuple[Option, ...]) -> Values:
    """The options that flags set. Raises ConfigError naming the flag, the rule and the value."""
    values: Values = {}
    for one in options:
        given = getattr(arguments, _dest(one))
        if given is not None:
            values.setdefault(one.section, {})[one.key] = one.converted(given, one.flag)
    return values


def _dest(one: Option) -> str:
    return f"{one.section}.{one.key}"


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, where YAML's own loader goes by the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise ValueError(f"keys must be all different, got {twice!r} twice")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, options: tuple[Option, ...], others: tuple[str, ...] = ()) -> Values:
    """The options that a YAML file sets; the sections that `others` names are not read.

    Raises ConfigError naming the file, the key, the rule and the value.
    """
    try:
        raw = yaml.load(read_input(path), _OnceLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or number that cannot be
        raise ConfigError(f"{path}: must be YAML: {' '.join(str(error).split())}") from error
    known: dict[str, dict[str, Option]] = {}
    for one in options:
        known.setdefault(one.section, {})[one.key] = one
    sections = _mapping(raw, str(path))
    return {
        name: _section(f"{path}: {name}", body, _known(name, str(path), known))
        for name, body in sections.items()
        if name not in others
    }


def _section(place: str, body: Any, known: Mapping[str, Option]) -> dict[str, Any]:
    return {key: _known(key, place, known).converted(value, f"{place}.{key}") for key, value in _mapping(body, place).items()}


def _mapping(raw: Any, place: str) -> dict[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{place} must be a mapping of settings, got {raw!r}")
    return {str(key): value for key, value in raw.items()}


def _known(key: str, place: str, known: Mapping[str, Any]) -> Any:
    if key not in known:
        raise ConfigError(f"{place}: {key}: no such setting; known are {', '.join(known)}")
    return known[key]


def merged(first: Values, second: Values) -> Values:
    """`first` with what `second` sets in its place."""
    return {name: first.get(name, {}) | second.get(name, {}) for name in {**first, **second}}


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return float(value)


def _number_or_text(value: Any) -> float | str:
    try:
        return _number(value)
    except ValueError:
        return _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _list_of(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_all(value: Any) -> tuple[Any, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list):
            items = [items]
        return tuple(read(item) for item in items)

    return read_all


def _words(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    return tuple(_text(item) for item in items)


def _pairs(value: Any) -> dict[str, str]:
    if isinstance(value, list):
        return {name: place for name, place in (_text(item).split("=") for item in value)}
    return {str(name): str(place) for name, place in value.items()} if isinstance(value, dict) else _pairs([value])


_WHOLE, _NUMBER, _TEXT = Kind("a whole number", _whole), Kind("a number", _number), Kind("a text", _text)
_TRUTH, _WORDS = Kind("true or false", _truth), Kind("a list of texts", _words)
_PAIRS = Kind("pairs as in NODE=RACK", _pairs)
_WHOLES, _NUMBERS = Kind("a list of whole numbers", _list_of(_whole)), Kind("a list of numbers", _list_of(_number))
_LISTS = {str: _WORDS, int: _WHOLES, float: _NUMBERS}
_NUMBER_OR_TEXT = Kind("a number or a text", _number_or_text)
_SINGLES = {int: _WHOLE, float: _NUMBER, bool: _TRUTH}


def _kind(hint: Any) -> Kind:
    """The kind of a field by its annotation; None stands for what nobody set."""
    if set(get_args(hint)) == {float, str}:
        return _NUMBER_OR_TEXT
    if get_origin(hint) in (Union, UnionType):
        kind = _kind(next(choice for choice in get_args(hint) if choice is not type(None)))
        return _optional(kind) if type(None) in get_args(hint) else kind
    if get_origin(hint) is tuple:
        return _LISTS[get_args(hint)[0]]
    if get_origin(hint) is not None and issubclass(get_origin(hint), Mapping):
        return _PAIRS
    return _SINGLES.get(hint, _TEXT)


def _optional(kind: Kind) -> Kind:
    return Kind(kind.rule, lambda value: None if value is None else kind.read(value))
