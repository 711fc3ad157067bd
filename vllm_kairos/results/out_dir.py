"""The directory that results go to."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from vllm_kairos.errors import ConfigError


def make_out_dir(path: Path) -> Path:
    """Make it before anything long starts. Raises ConfigError when nothing could be written there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out must be a directory that can be made, got {str(path)!r}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"--out must be a writable directory, got {str(path)!r}")
    return path


def remove_stale(out: Path, names: Iterable[str]) -> None:
    """Remove those of `names` that an earlier command left. Raises ConfigError when one cannot be removed."""
    for name in names:
        try:
            (out / name).unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: {out / name} cannot be removed: {error.strerror}") from error


def write_all(out: Path, files: Mapping[str, str | bytes]) -> None:
    """Write `files` by name; a text may hold file names that are no UTF-8. Raises ConfigError when one cannot be written."""
    for name, content in files.items():
        try:
            (out / name).write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        except OSError as error:
            raise ConfigError(f"--out: {out / name} cannot be written: {error.strerror}") from error
