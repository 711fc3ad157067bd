"""Run the documentation's snippets, as a reader would.

A fenced block whose info string is `sh ci` or `python ci` is run; `yaml ci FILE` and `json ci FILE` are written to
FILE for later blocks. The blocks of one page run in order in one scratch directory with links to everything in the
checkout; `kairos`, `python` and `vllm` are this checkout's. Usage: ci/docs_test.py [file ...]
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT_S = 300
_FENCE = re.compile(r"^```(\w+) ci(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": ["python", "-c"]}


@dataclass(frozen=True)
class Block:
    """One marked snippet."""

    page: Path
    line: int
    language: str
    file_name: str | None
    text: str


def main(names: list[str]) -> int:
    """Run every block of every page; return how many pages failed, at most 1."""
    pages = [Path(name).resolve() for name in names] or sorted(_pages())
    failed = [page for page in pages if not _run_page(page)]
    sys.stdout.write(f"docs: {len(pages)} pages, {len(failed)} failed\n")
    return int(bool(failed))


def _pages() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    for folder in ("docs", "benchmarks", "patches", "csrc_notes"):
        yield from (ROOT / folder).rglob("*.md")


def blocks(page: Path) -> list[Block]:
    """The marked snippets of one page, in order."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2], found[3]) for found in _FENCE.finditer(text)
    ]


def _run_page(page: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        for entry in ROOT.iterdir():
            Path(folder, entry.name).symlink_to(entry)
        return all(_run(block, Path(folder)) for block in blocks(page))


def _run(block: Block, folder: Path) -> bool:
    where = f"{block.page.relative_to(ROOT)}:{block.line}"
    if block.file_name is not None:
        (folder / block.file_name).write_text(block.text)
        return True
    tools = f"{ROOT / '.kairos' / 'venv' / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": tools}
    command = [*_COMMANDS[block.language], block.text]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, timeout=TIME_LIMIT_S, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        sys.stdout.write(f"docs: {where}: still running after {TIME_LIMIT_S} s\n")
        return False
    sys.stdout.write(f"docs: {where}: status {done.returncode}\n")
    if done.returncode:
        sys.stdout.write(done.stdout + done.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
