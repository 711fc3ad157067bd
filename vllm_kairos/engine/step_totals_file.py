"""The small file through which the counts of an engine core reach the API server, which is another process."""

import os
import tempfile
from pathlib import Path
from typing import Any

from vllm_kairos.engine.step_settings import StepRecordSettings
from vllm_kairos.errors import StateError
from vllm_kairos.steps.totals import StepTotals, decode_totals, encode_totals


def totals_path(vllm_config: Any, record: StepRecordSettings, dp_rank: int) -> Path:
    """Where the counts of one data-parallel rank are; both processes come to the same path by themselves."""
    from vllm_kairos.engine.compat_steps import instance_name

    name = f"kairos-steps-{os.getuid()}-{instance_name(vllm_config)}.json"
    base = Path(record.totals_file) if record.totals_file else Path(tempfile.gettempdir()) / name
    return base if dp_rank == 0 else base.with_name(f"{base.name}.{dp_rank}")


def write_totals(totals: StepTotals, path: Path) -> None:
    """Replace the file in one go; OSError when that is not possible."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(encode_totals(totals))
    new.replace(path)


def read_totals(path: Path) -> StepTotals | None:
    """What the engine last wrote; None before it did, or where the file is not ours to trust."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            return decode_totals(file.read())
    except (OSError, StateError):
        return None
