"""Layers of settings: flags over environment over settings file over defaults, one parser for all."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import yaml

from kairos_router.config import PrefillTarget
from kairos_router.flags import FLAGS, REFUSED, Flag, Shape
from vllm_kairos.cli.command import OneLineParser
from vllm_kairos.errors import ConfigError
from vllm_kairos.input_file import read_input

PREFIX = "KAIROS_ROUTER_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
_BY_FIELD = {flag.field: flag for flag in FLAGS}


class RouterParser(OneLineParser):
    """Refuses vllm-router's flags that we do not serve by saying why."""

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        _refuse(unknown)


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Build the parser; flags that were not given leave no attribute behind."""
    parser = RouterParser(
        prog=prog,
        argument_default=argparse.SUPPRESS,
        description="OpenAI-compatible router for disaggregated vLLM servers that deflects prefills to decode servers.",
        epilog=f"Every flag is also a key of the --config file and a variable {PREFIX}<NAME>; flags win over variables, "
        "variables over the file.",
    )
    parser.add_argument("--config", metavar="FILE", help=f"YAML file of the same settings (variable {CONFIG_VARIABLE})")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for flag in FLAGS:
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        _add(groups[flag.group], flag)
    return parser


def resolve(arguments: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return every flag's value by field name, from all layers.

    Raises ConfigError naming the flag, variable or file key, the rule and the value.
    """
    given = {name: value for name, value in vars(arguments).items() if name in _BY_FIELD}
    config_file = getattr(arguments, "config", None) or environment.get(CONFIG_VARIABLE)
    merged = {flag.field: flag.default for flag in FLAGS}
    merged |= _from_file(Path(config_file)) if config_file else {}
    merged |= _from_environment(environment)
    merged |= {name: _from_flag(_BY_FIELD[name], value) for name, value in given.items()}
    return merged


def _refuse(unknown: Sequence[str]) -> NoReturn:
    names = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    name = names[0] if names else unknown[0]
    reason = f": {REFUSED[name]}" if name in REFUSED else "; `kairos router --help` lists the flags"
    raise ConfigError(f"{name} is not supported{reason}")


def _add(group: argparse._ArgumentGroup, flag: Flag) -> None:
    names = (flag.name, *flag.aliases)
    help_text = flag.help.replace("%", "%%") + _default_note(flag)
    if flag.shape is Shape.SWITCH:
        group.add_argument(*names, dest=flag.field, action="store_true", help=help_text)
        return
    many = {Shape.LIST: ("*", "extend"), Shape.REPEATED: (None, "append"), Shape.PREFILL: ("+", "append")}
    nargs, action = many.get(flag.shape, (None, "store"))
    metavar: Any = (flag.metavar, "BOOTSTRAP") if flag.shape is Shape.PREFILL else flag.metavar
    options: dict[str, Any] = {"nargs": nargs} if nargs else {}
    group.add_argument(*names, dest=flag.field, action=action, metavar=metavar, help=help_text, **options)


def _default_note(flag: Flag) -> str:
    return "" if flag.default in (None, (), False) else f" (default {default_text(flag)})"


def default_text(flag: Flag) -> str:
    """Return the default as one would type it."""
    value = flag.default
    if isinstance(value, tuple):
        return " ".join(str(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _from_flag(flag: Flag, value: Any) -> Any:
    if flag.shape is Shape.SWITCH:
        return bool(value)
    if flag.shape is Shape.ONE:
        return _parse(flag, flag.name, value)
    words = [" ".join(each) for each in value] if flag.shape is Shape.PREFILL else value
    return _parse_all(flag, flag.name, words)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    by_variable = {flag.variable: flag for flag in FLAGS}
    for variable, raw in environment.items():
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        flag = by_variable.get(variable)
        if flag is None:
            raise ConfigError(f"{variable} is not a variable of this router, got {raw!r}")
        single = flag.shape in (Shape.ONE, Shape.SWITCH)
        found[flag.field] = _parse(flag, variable, raw) if single else _parse_all(flag, variable, _split(raw))
    return found


def _split(raw: str) -> list[str]:
    return [part.strip() for part in raw.split(",") if part.strip()]


def _from_file(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, raw in _read_yaml(file).items():
        field = str(key).removeprefix("--").replace("-", "_")
        flag = _BY_FIELD.get(field)
        where = f"{file}: {key}"
        if flag is None:
            reason = REFUSED.get("--" + field.replace("_", "-"))
            raise ConfigError(f"{where} is not a setting of this router" + (f": {reason}" if reason else f", got {raw!r}"))
        if raw is None:
            raise ConfigError(f"{where} must have a value, got nothing")
        found[field] = _from_yaml(flag, where, raw)
    return found


def _read_yaml(file: Path) -> Mapping[Any, Any]:
    try:
        document = yaml.safe_load(read_input(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"--config must be a readable file, got {str(file)!r} ({reason})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or number that cannot be
        raise ConfigError(f"--config {file} must be YAML: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"--config {file} must be a mapping of settings, got {type(document).__name__}")
    return document


def _from_yaml(flag: Flag, where: str, raw: Any) -> Any:
    if flag.shape in (Shape.ONE, Shape.SWITCH):
        return _parse(flag, where, _word(where, raw))
    items = raw if isinstance(raw, list) else [raw]
    if flag.shape is Shape.PREFILL:
        items = [" ".join(_word(where, part) for part in item) if isinstance(item, list) else item for item in items]
    return _parse_all(flag, where, [_word(where, item) for item in items])


def _word(where: str, raw: Any) -> str:
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, str | int | float):
        return str(raw)
    raise ConfigError(f"{where} must be a single value, got {type(raw).__name__}")


def _parse_all(flag: Flag, where: str, raw: Iterable[str]) -> tuple[Any, ...]:
    """Several values; a list's words may hold several with commas, as in variables and in `kairos simulate`."""
    words = (part for word in raw for part in (_split(word) or [word])) if flag.shape is Shape.LIST else raw
    return tuple(_parse(flag, where, each) for each in words)


def _parse(flag: Flag, where: str, raw: str) -> Any:
    try:
        value = flag.parse(raw)
    except ValueError as error:
        shown = "a value that is not shown" if flag.field == "api_key" else repr(raw)
        raise ConfigError(f"{where} {error}, got {shown}") from error
    if flag.shape is Shape.PREFILL:
        url, bootstrap = cast("tuple[str, int | None]", value)
        return PrefillTarget(url=url, bootstrap_port=bootstrap)
    return value
