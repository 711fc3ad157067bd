"""Result documents as JSON text."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from math import isfinite
from typing import Any

_DIGITS = 9


def to_json(document: Mapping[str, Any]) -> str:
    """JSON text with floats to nine digits; what is not finite becomes null."""
    return json.dumps(plain(document), indent=2, allow_nan=False) + "\n"


def to_jsonl(rows: Iterable[Mapping[str, Any]]) -> str:
    """One JSON object per line, with floats as in `to_json`."""
    return "".join(json.dumps(plain(row), allow_nan=False) + "\n" for row in rows)


def plain(value: Any) -> Any:
    """Turn a value into what JSON has; anything it knows nothing of becomes its text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
