"""A stand-in for the toy proxy that says what the emulated model in KAIROS_STUB_MODEL says."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.serving.failing.expected import Model
from tests.benchmarks.stub_app import serve

_MODEL = Model(Path(os.environ["KAIROS_STUB_MODEL"]))


def _events(body: dict[str, Any]) -> Iterator[bytes]:
    for word in _MODEL.answer(body["prompt"], body["max_tokens"]):
        yield json.dumps({"choices": [{"text": f" {word}"}]}).encode()


if __name__ == "__main__":
    serve(_events, pause_s=0.005)
