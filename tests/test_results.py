"""Published figures speak of no machine's folders."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[1] / "benchmarks/results"


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for each in value.values() for text in texts(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in texts(each))
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: path.name)
def test_no_figure_names_a_path_of_the_machine_it_comes_from(path: Path) -> None:
    found = list(texts(json.loads(path.read_text())))
    assert not [text for text in found if text.startswith("/") or " /" in text]
