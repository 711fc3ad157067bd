"""Where the small model of `make demo` and the end-to-end tests lies."""

import os
from pathlib import Path

from vllm_kairos.errors import ClusterError

DEFAULT_MODEL = "smollm2-135m-instruct"


def cache_dir() -> Path:
    """The directory, outside the repository, of everything built once per machine."""
    return Path(os.environ.get("KAIROS_CACHE_DIR") or Path.home() / ".cache" / "vllm-kairos").absolute()


def default_model_dir() -> Path:
    """Where `make model` puts the converted checkpoint."""
    return cache_dir() / "models" / DEFAULT_MODEL


def find_model(model: str | None) -> str:
    """Return a checkpoint directory or a model name; None asks for the converted small model.

    Raises ClusterError when a path has no config.json. A name (`owner/name`) is left to vLLM.
    """
    path = Path(model).expanduser() if model else default_model_dir()
    if (path / "config.json").is_file():
        return str(path.absolute())
    if model is None:
        raise ClusterError(f"model: {path} must hold a checkpoint; `make model` converts it")
    if path.exists() or model.startswith(("/", ".", "~")) or model.count("/") != 1:
        raise ClusterError(f"model must be a directory with a config.json or an owner/name, got {model!r}")
    return model
