"""Small trace files for tests."""

import gzip
import json
from pathlib import Path

# Three rows of "Azure LLM inference trace 2023" (conversation), Microsoft, CC BY 4.0.
AZURE_ROWS = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:51.2224670,879,55\n"
AZURE = f"TIMESTAMP,ContextTokens,GeneratedTokens\n{AZURE_ROWS}"
# Three rows of Mooncake's conversation trace (FAST'25), Apache-2.0.
MOONCAKE = [
    {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": list(range(14))},
    {"timestamp": 0, "input_length": 7322, "output_length": 490, "hash_ids": [0, *range(14, 28)]},
    {"timestamp": 3000, "input_length": 7236, "output_length": 794, "hash_ids": [0, *range(28, 42)]},
]


def write(folder: Path, name: str, content: str | list[dict]) -> Path:
    """A file of this text, or of these objects as JSON lines; gzipped when `name` says so."""
    text = content if isinstance(content, str) else "".join(f"{json.dumps(row)}\n" for row in content)
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def mooncake_row(**changes: object) -> dict:
    """A valid Mooncake row of one block."""
    return {"timestamp": 0, "input_length": 512, "output_length": 3, "hash_ids": [1]} | changes
