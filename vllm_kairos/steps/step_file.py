"""The file of steps: one JSON object per line, a header first. Written by the engine, read by `kairos steps`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.errors import ConfigError

FILE_SCHEMA = 1
OLD_SUFFIX = ".old"
"""What a full file is renamed to, once; the one before it is lost."""

_DIGITS = 7

_HEADER_BEGINS = b'{"kairos_steps"'
_CAUSES = frozenset(cause.label for cause in Cause)

# Checked where a file is read; what the engine makes is not.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]

GapEntry = tuple[str, _Count, _Seconds]
"""Cause, requests, seconds."""


class FileHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the lines below it are of. `profile` is empty where steps were not predicted."""

    kairos_steps: int
    node_id: str
    dp_rank: _Count
    role: str
    model: str
    profile: str
    tbt_slo_s: Annotated[float, msgspec.Meta(gt=0.0)]
    stall_factor: float
    boot_id: str
    started_at_s: _Seconds  # Unix time
    # What a profile fitted to the steps is of; empty and zero: not known.
    hardware: str = ""
    vllm_version: str = ""
    block_size_tokens: _Count = 0
    token_budget_tokens: _Count = 0
    kv_bytes_per_token: _Count = 0


class StepLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step. B decodes that hold K KV tokens with the prompts' own, n prefill tokens behind p computed ones.

    `at` is the end, in seconds since `started_at_s`; `idle` and `run` are those of a StepSpan, `took` is what
    is held against `predicted`. `gaps` are those that the step's tokens ended.
    """

    step: _Count
    at: _Seconds
    B: _Count = 0
    K: _Count = 0
    n: _Count = 0
    p: _Count = 0
    work: float | None = None  # attention work of chunks of several prompts; None: that of one, n*p + n*n/2
    deflected: _Count = 0  # of n
    predicted: float | None = None
    took: _Seconds
    idle: _Seconds = 0.0
    run: _Seconds
    cause: str
    gaps: list[GapEntry] = []


def encode_line(line: FileHeader | StepLine) -> bytes:
    """One line of the file, seconds to a tenth of a microsecond."""
    return msgspec.json.encode(_rounded(line) if isinstance(line, StepLine) else line) + b"\n"


def _rounded(line: StepLine) -> StepLine:
    return msgspec.structs.replace(
        line,
        at=round(line.at, _DIGITS),
        predicted=None if line.predicted is None else round(line.predicted, _DIGITS),
        took=round(line.took, _DIGITS),
        idle=round(line.idle, _DIGITS),
        run=round(line.run, _DIGITS),
        gaps=[(cause, count, round(gap_s, _DIGITS)) for cause, count, gap_s in line.gaps],
    )


def read_steps(path: Path) -> Iterator[tuple[FileHeader, StepLine]]:
    """Each step in `path` with its header, what a rotation moved to PATH.old before it.

    A line that was cut off is passed over: the last one, or one whose engine was killed and started anew. ConfigError
    names the file, the line and what is wrong.
    """
    old = path.with_name(path.name + OLD_SUFFIX)
    for each in (old, path) if old.is_file() else (path,):
        yield from _read_one(each)


def _read_one(path: Path) -> Iterator[tuple[FileHeader, StepLine]]:
    header = None
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    if (at := line.find(_HEADER_BEGINS)) >= 0:
                        header = _header(line[at:])
                    elif header is None:
                        raise ConfigError(f"{path}:{number}: a header with kairos_steps must come first")
                    else:
                        yield header, _step(line)
                except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                    raise ConfigError(f"{path}:{number}: not a step: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _step(line: bytes) -> StepLine:
    step = msgspec.json.decode(line, type=StepLine)
    for cause, *_ in step.gaps:
        if cause not in _CAUSES:
            raise msgspec.ValidationError(f"gaps must have causes of {', '.join(sorted(_CAUSES))}, got {cause!r}")
    return step


def _header(line: bytes) -> FileHeader:
    header = msgspec.json.decode(line, type=FileHeader)
    if header.kairos_steps != FILE_SCHEMA:
        raise msgspec.ValidationError(f"kairos_steps must be {FILE_SCHEMA}, got {header.kairos_steps}")
    return header
