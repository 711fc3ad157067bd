"""Settings of the step recorder: the `step_record` object inside the engine settings."""

from dataclasses import dataclass
from math import inf
from typing import Any

from vllm_kairos.settings_object import Reader, number, read_object, switched, text, whole

RECORD_KEY = "step_record"
_PREFIX = f"additional_config.kairos.{RECORD_KEY}"
_MIN_FILE_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecordSettings:
    """How steps are recorded.

    `profile` (a file or a shipped name) predicts them; without one nothing is held against their times. A
    step that takes more than `stall_factor` times its prediction counts as a stall. `file`, if any, gets a
    line per step and, with what it was rotated to, stays within `max_file_bytes`. `totals_file` carries the
    counts to the API server; it has a name of its own in the temporary directory unless one is given.
    """

    tbt_slo_s: float = 0.070
    stall_factor: float = 2.0
    profile: str | None = None
    file: str | None = None
    max_file_bytes: int = 256 * 2**20
    totals_file: str | None = None


def parse_step_record(raw: Any, default_profile: Any = None) -> StepRecordSettings | None:
    """Read the settings; None: off. ConfigError names the field, the rule and the value."""
    asked = switched(_PREFIX, raw)
    if asked is None:
        return None
    values = read_object(_PREFIX, asked, _READERS)
    values.setdefault("profile", default_profile)
    return StepRecordSettings(**values)


_READERS: dict[str, Reader] = {
    "tbt_slo_s": number("a finite number > 0", lambda value: 0 < value < inf),
    "stall_factor": number("a finite number > 1", lambda value: 1 < value < inf),
    "profile": text,
    "file": text,
    "max_file_bytes": whole(_MIN_FILE_BYTES),
    "totals_file": text,
}
