"""Steps of the real scheduler under a load that comes and goes, recorded to a file, give the law they follow."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.builder import make_request, run_model, schedule_params
from tests.engine.test_step_recorder import Played
from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost
from vllm_kairos.core.regime import Regime
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.profiler.from_log import fit_log
from vllm_kairos.profiler.options import LogOptions
from vllm_kairos.steps.step_file import FileHeader, encode_line

LAW = LinearStepModel(
    prefill=PrefillCost(fixed_s=5e-3, per_token_s=6e-5, per_done_token_s=1e-6, per_attention_work_s=2e-8),
    decode=DecodeCost(fixed_s=6e-3, per_decode_s=2e-4, per_kv_token_s=4e-7),
    extra=PrefillCost(fixed_s=1e-3, per_token_s=6e-5, per_done_token_s=1e-6, per_attention_work_s=2e-8),
)
HEADER = FileHeader(
    kairos_steps=1,
    node_id="d0",
    dp_rank=0,
    role="both",
    model="tiny",
    profile="",
    tbt_slo_s=0.07,
    stall_factor=2.0,
    boot_id="b",
    started_at_s=0.0,
    hardware="a law",
    vllm_version="0.32.0",
    block_size_tokens=16,
    token_budget_tokens=512,
    kv_bytes_per_token=1,
)


def _law_s(scheduler: Any, output: Any) -> float:
    """What LAW says of a step, from each request in it."""
    chunks, decodes, kv_tokens = [], 0, 0
    for request_id, tokens in output.num_scheduled_tokens.items():
        request = scheduler.requests[request_id]
        before = request.num_computed_tokens - tokens
        kv_tokens += before
        if before < request.num_prompt_tokens - 1:
            chunks.append((tokens, before))
        else:
            decodes += 1
    totals = PrefillTotals(1, sum(n for n, _ in chunks), sum(p for _, p in chunks), sum(n * p + n * n * 0.5 for n, p in chunks))
    return LAW.packed_step_s(decodes, kv_tokens, totals)


def _arrivals(rng: random.Random) -> Iterator[Any]:
    """Requests, or None for a while without; calm and busy times, long and short prompts, some of them deflected."""
    for number in range(140):
        prompt = min(3000, int(rng.lognormvariate(5.5, 1.2)) + 2)
        transfer = schedule_params(rng.choice((64, 128, 256))) if rng.random() < 0.3 else None
        output = 1 if number % 5 == 0 else rng.randint(5, 60)
        yield make_request(f"r{number}", prompt, transfer=transfer, max_tokens=output)
        busy = number // 20 % 2
        yield from [None] * (rng.randint(0, 4) if busy else rng.randint(5, 40))


def _play(node: Played, rng: random.Random) -> None:
    for request in _arrivals(rng):
        if request is not None:
            node.scheduler.add_request(request)
        output = node.scheduler.schedule()
        node.in_flight.append((output, run_model(node.scheduler, output)))
        if output.num_scheduled_tokens:
            stall = rng.uniform(2, 9) if rng.random() < 0.02 else 1.0
            node.now_s += _law_s(node.scheduler, output) * rng.gauss(1, 0.02) * stall
        node.finish()


def test_the_law_that_a_recorded_engine_follows_comes_back(build: Any, tmp_path: Path) -> None:
    node = Played(build(token_budget=512), model=None)
    _play(node, random.Random(6))
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"".join(encode_line(each) for each in (HEADER, *node.lines)))
    fitted = fit_log(LogOptions(files=(path,)))
    assert all(fitted.profile.accuracy[regime].mape < 0.04 for regime in Regime)
    for line in node.lines:
        batch = BatchShape(running_decodes=line.B, kv_tokens=line.K, prefill_tokens=line.n, done_tokens=line.p)
        assert fitted.profile.step_model.step_s(batch) == pytest.approx(LAW.step_s(batch), rel=0.06)
