"""A stand-in for the toy proxy: answers completions with as many tokens as asked for, at once, and says so."""

import json
import sys
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.stub_app import serve


def _events(body: dict[str, Any]) -> Iterator[bytes]:
    sys.stderr.write("answered\n")
    for at in range(body["max_tokens"]):
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": at + 1}
        yield json.dumps({"choices": [{"text": "x"}], "usage": usage}).encode()


if __name__ == "__main__":
    serve(_events)
