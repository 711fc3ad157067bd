"""The Grafana dashboard, as tests read it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[1] / "docs/grafana/kairos-router.json"
_METRIC = re.compile(r"\b(?:kairos|vllm)[a-z0-9_:]+")


def dashboard_panels() -> list[dict[str, Any]]:
    """All of them, rows included."""
    panels: list[dict[str, Any]] = json.loads(_FILE.read_text())["panels"]
    return panels


def asked_by(panels: Sequence[dict[str, Any]], *prefixes: str) -> set[str]:
    """The metrics that the panels ask for and whose names begin with one of `prefixes`."""
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return {name for text in expressions for name in _METRIC.findall(text) if name.startswith(prefixes)}
