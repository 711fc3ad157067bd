"""The counts of recorded steps in the file through which they reach the API server."""

from pathlib import Path
from typing import Any

from vllm_kairos.engine.shared_file import read_own, replace_file, shared_path
from vllm_kairos.engine.step_settings import StepRecordSettings
from vllm_kairos.errors import StateError
from vllm_kairos.steps.totals import StepTotals, decode_totals, encode_totals


def totals_path(vllm_config: Any, record: StepRecordSettings, dp_rank: int) -> Path:
    """Where the counts of one data-parallel rank are."""
    return shared_path(vllm_config, "steps", record.totals_file, dp_rank)


def write_totals(totals: StepTotals, path: Path) -> None:
    """Replace the file in one go; OSError when that is not possible."""
    replace_file(path, encode_totals(totals))


def read_totals(path: Path) -> StepTotals | None:
    """What the engine last wrote; None before it did, or where the file is not ours to trust."""
    data = read_own(path)
    try:
        return None if data is None else decode_totals(data)
    except StateError:
        return None
