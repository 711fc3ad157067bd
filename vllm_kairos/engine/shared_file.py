"""A small file through which an engine core tells the API server, which is another process, what it has counted."""

import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

_Content = TypeVar("_Content")


def shared_path(vllm_config: Any, stem: str, given: str | None, dp_rank: int) -> Path:
    """Where one data-parallel rank's file is; both processes come to the same path by themselves."""
    from vllm_kairos.engine.compat_steps import instance_name

    name = f"kairos-{stem}-{os.getuid()}-{instance_name(vllm_config)}.json"
    base = Path(given) if given else Path(tempfile.gettempdir()) / name
    return base if dp_rank == 0 else base.with_name(f"{base.name}.{dp_rank}")


def replace_file(path: Path, data: bytes) -> None:
    """Replace the file in one go; OSError when that is not possible."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    new.replace(path)


def read_own(path: Path) -> bytes | None:
    """What was last written; None before that, or where the file is not ours to trust."""
    try:
        with path.open("rb") as file:
            return file.read() if os.fstat(file.fileno()).st_uid == os.getuid() else None
    except OSError:
        return None


def read_json(path: Path, decoder: msgspec.json.Decoder[_Content]) -> _Content | None:
    """What `replace_file` last put there; None where there is nothing, or nothing of ours to trust."""
    data = read_own(path)
    try:
        return None if data is None else decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
