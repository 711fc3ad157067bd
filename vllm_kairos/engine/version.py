"""The range of vLLM versions this release works with."""

import re

from vllm_kairos.errors import UnsupportedVersionError

OLDEST = (0, 30)
NEWEST = (0, 33)


def check_version(version: str) -> None:
    """Raise UnsupportedVersionError, in one line that names the range, unless `version` lies inside it."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or not OLDEST <= (int(match[1]), int(match[2])) <= NEWEST:
        supported = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise UnsupportedVersionError(f"vllm-kairos supports vLLM {supported}, found {version}")
