"""Files of recorded steps that follow a known law, as engines under changing load write them.

`python -m tests.profiler.recorded` writes the files of docs/examples.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.core.linear import LinearStepModel
from vllm_kairos.profiles import load_shipped
from vllm_kairos.steps.step_file import FileHeader, StepLine, encode_line

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
EXAMPLE_PROFILE = "a100-llama3-8b"
EXAMPLE_SLOWDOWN = 1.25
_STALL_SHARE = 0.02


def header(node_id: str, **more: object) -> FileHeader:
    """A header that says nothing of the hardware, unless told."""
    known = FileHeader(
        kairos_steps=1,
        node_id=node_id,
        dp_rank=0,
        role=node_id[0].replace("p", "prefill").replace("d", "decode"),
        model="meta-llama/Meta-Llama-3-8B",
        profile=EXAMPLE_PROFILE,
        tbt_slo_s=0.07,
        stall_factor=2.0,
        boot_id=node_id,
        started_at_s=1_790_000_000.0,
    )
    return msgspec.structs.replace(known, **more)


def prefill_steps(law: LinearStepModel, count: int, *, budget_tokens: int = 2048, **more: float) -> Iterator[StepLine]:
    """A prefill node's: several short prompts at once, long ones in chunks of the budget."""
    rng = random.Random(3)
    for _ in range(count):
        chunks, room = [], budget_tokens
        for _ in range(rng.choice((1, 1, 2, 4))):
            if room > 0:
                chunks.append((min(room, int(rng.lognormvariate(6, 1)) + 1), rng.choice((0, 0, 0, 2048, 6144))))
                room -= chunks[-1][0]
        yield _line(law, rng, 0, 0, chunks, **more)


def decode_steps(law: LinearStepModel, count: int, *, mixed_share: float = 0.3, **more: float) -> Iterator[StepLine]:
    """A decode node's as its load comes and goes, some of them with one chunk of a deflected prompt."""
    rng = random.Random(4)
    decodes, context = 12.0, 1200.0
    for _ in range(count):
        decodes = min(64.0, max(1.0, decodes * rng.lognormvariate(0, 0.08)))
        context = min(4000.0, max(300.0, context * rng.lognormvariate(0, 0.05)))
        chunks = [(rng.choice((64, 128, 256, 512, 1024)) - int(decodes) % 32, rng.choice((0, 0, 512, 1024, 4096)))]
        mixed = rng.random() < mixed_share
        yield _line(law, rng, int(decodes), int(decodes) * int(context), chunks if mixed else [], **more)


def _line(
    law: LinearStepModel,
    rng: random.Random,
    decodes: int,
    kv_tokens: int,
    chunks: list[tuple[int, int]],
    *,
    noise: float = 0.03,
) -> StepLine:
    tokens, done = sum(n for n, _ in chunks), sum(p for _, p in chunks)
    work = sum(n * p + n * n * 0.5 for n, p in chunks)
    exact_s = law.packed_step_s(decodes, kv_tokens + done, PrefillTotals(1, tokens, done, work))
    stall = rng.uniform(1.5, 20) if rng.random() < _STALL_SHARE else 1.0
    took_s = exact_s * max(0.1, rng.gauss(1, noise)) * stall
    return StepLine(
        step=0,
        at=0.0,
        B=decodes,
        K=kv_tokens + done,
        n=tokens,
        p=done,
        work=None if work == tokens * done + tokens * tokens * 0.5 else work,
        took=took_s,
        run=took_s,
        cause="decode",
    )


def write(path: Path, first: FileHeader, lines: Iterator[StepLine]) -> Path:
    """One file, a step every 50 ms."""
    numbered = [msgspec.structs.replace(line, step=number, at=number * 0.05) for number, line in enumerate(lines, 1)]
    path.write_bytes(b"".join(encode_line(line) for line in (first, *numbered)))
    return path


def write_examples(folder: Path) -> None:
    """What docs/profiling.md fits: a GPU whose steps take a quarter longer than its profile says."""
    law = load_shipped(EXAMPLE_PROFILE).step_model.scaled(EXAMPLE_SLOWDOWN)
    write(folder / "steps-p0.jsonl", header("p0"), prefill_steps(law, 200))
    write(folder / "steps-d0.jsonl", header("d0"), decode_steps(law, 400))


if __name__ == "__main__":
    write_examples(EXAMPLES)
