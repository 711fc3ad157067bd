"""Calibration gives back what the measured phases were made of."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.sim.calibration import HOP_S, decode_factors, delays, link, prefill_factors, ratio, spread
from benchmarks.sim.packed import packed_steps, totals
from benchmarks.sim.served import Phase, in_order
from benchmarks.sim.steps import Feed, between_steps_s
from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost
from vllm_kairos.demo.client import Sample
from vllm_kairos.wire.messages import NodeStateMessage, StepSample, TransferSample

MODEL = LinearStepModel(
    prefill=PrefillCost(fixed_s=0.05, per_token_s=5e-4, per_done_token_s=3e-6, per_attention_work_s=2e-7),
    decode=DecodeCost(fixed_s=0.05, per_decode_s=5e-4, per_kv_token_s=3e-6),
    extra=PrefillCost(fixed_s=0.01, per_token_s=4e-4, per_done_token_s=0.0, per_attention_work_s=2e-7),
)
BUDGET = 2048


def message(node: str, *, steps: Sequence[StepSample] = (), sent_at_s: float = 0.0, queued: int = 0) -> NodeStateMessage:
    return NodeStateMessage(
        schema=1,
        node_id=node,
        role="prefill" if node == "p0" else "decode",
        dp_rank=0,
        boot_id="b",
        sequence=1,
        sent_at_s=sent_at_s,
        model="m",
        engine_id="e",
        running_decodes=0,
        kv_tokens=0,
        queued_prompt_tokens=[queued] if queued else [],
        queued_prefill_tokens=queued,
        running_prefill_tokens=0,
        token_budget_tokens=BUDGET,
        max_running_requests=16,
        max_model_len_tokens=4096,
        block_size_tokens=32,
        free_kv_blocks=100,
        total_kv_blocks=100,
        kv_bytes_per_token=100,
        remote_kv_requests=0,
        remote_kv_tokens=0,
        deflected_tokens_left=[],
        step_samples=list(steps),
    )


def phase(
    steps: dict[str, Sequence[StepSample]],
    *,
    prompts: Sequence[int] = (),
    records: Sequence[dict[str, float]] = (),
    client_s: float = 0.0,
    transfers: Sequence[TransferSample] = (),
) -> Phase:
    feed = Feed({node: [message(node, steps=samples)] for node, samples in steps.items()})
    if transfers:
        last = message("d0")
        last.transfer_samples.extend(transfers)
        feed.messages["d0"].append(last)
    records = records or [{"prompt_tokens": tokens, "ttft_s": 1.0} for tokens in prompts]
    samples = tuple(
        Sample(due_s=0.0, prompt_tokens=tokens, wanted_tokens=1, token_times_s=(record["ttft_s"] + client_s,))
        for tokens, record in zip(prompts, records, strict=True)
    )
    kept = tuple({"decision": "prefill-decode"} | dict(record) for record in records)
    return Phase(name="x", policy="never", samples=samples, records=kept, feed=feed)


def prefill_step(tokens: int, done: int = 0, *, factor: float = 1.0) -> StepSample:
    return StepSample(0, done, tokens, done, factor * MODEL.latency_s(0, done, tokens, done))


def decode_step(decodes: int, kv_tokens: int, *, factor: float = 1.0) -> StepSample:
    return StepSample(decodes, kv_tokens, 0, 0, factor * MODEL.latency_s(decodes, kv_tokens, 0, 0))


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=12), st.integers(0, 2**32))
@settings(max_examples=50)
def test_a_prefill_node_s_steps_tell_which_prompts_they_held(prompts: list[int], seed: int) -> None:
    source, steps, expected = random.Random(seed), [], []
    waiting = [(tokens, 0) for tokens in prompts]
    while waiting:
        chunks, left = [], BUDGET
        for tokens, done in waiting[: source.randint(1, 4)]:
            if left:
                chunks.append((min(left, tokens), done))
                left -= min(left, tokens)
        waiting = [(t - c, d + c) for (t, d), (c, _) in zip(waiting, chunks, strict=False) if t > c] + waiting[len(chunks) :]
        expected.append(totals(chunks))
        steps.append(StepSample(0, 0, sum(tokens for tokens, _ in chunks), 0, 1.0))
    assert [found for _, found in packed_steps(steps, prompts, BUDGET)] == expected


def test_steps_that_do_not_fit_the_prompts_end_the_reading() -> None:
    steps = [StepSample(0, 0, tokens, 0, 1.0) for tokens in (100, 300, 200)]
    assert len(list(packed_steps(steps, [100, 200], BUDGET))) == 1


def test_prefill_factor_of_packed_steps_is_what_they_were_slowed_by() -> None:
    sizes = [(300, 500, 200), (1000,), (64, 64)]
    steps = []
    for chunks in sizes:
        packed = totals([(tokens, 0) for tokens in chunks])
        steps.append(StepSample(0, 0, packed.tokens, 0, 1.25 * MODEL.packed_step_s(0, 0, packed)))
    never = phase({"p0": steps}, prompts=[tokens for chunks in sizes for tokens in chunks])
    found = prefill_factors([never, never], "p0", MODEL, BUDGET)
    assert found.prefill == pytest.approx(1.25)
    assert found.steps == 6
    assert found.noise == pytest.approx(0.0)


def test_decode_factors_tell_decodes_chunks_and_mixed_steps_apart() -> None:
    steps = [decode_step(n, 500 * n, factor=1.1) for n in range(1, 9)] + [prefill_step(128, factor=1.05)]
    for done in (0, 126, 252):
        mixed_s = 1.1 * MODEL.decode.at(2, 900 + done) + 1.3 * MODEL.extra.at(126, done)
        steps.append(StepSample(2, 900 + done, 126, done, mixed_s))
    alone = phase({"d0": [prefill_step(128, factor=1.05), decode_step(1, 128, factor=9.0)]})
    found = decode_factors([phase({"d0": steps})], "d0", MODEL, one_by_one=[alone])
    assert (found.decode, found.prefill, found.extra) == (pytest.approx(1.1), pytest.approx(1.05), pytest.approx(1.3))
    mixed_s = 1.1 * MODEL.decode.at(2, 900) + 1.3 * MODEL.extra.at(126, 0)
    assert found.served(MODEL).latency_s(2, 900, 126, 0) == pytest.approx(mixed_s)


def test_a_node_that_took_no_deflected_prompt_is_slowed_as_its_decodes_are() -> None:
    found = decode_factors([phase({"d0": [decode_step(1, 100, factor=1.2)] * 3})], "d0", MODEL)
    assert (found.prefill, found.extra) == (pytest.approx(1.2), pytest.approx(1.2))


def test_ratio_leaves_stalls_out() -> None:
    assert ratio([(1.1, 1.0)] * 399 + [(50.0, 1.0)]) == pytest.approx(1.1)
    assert spread([(1.1, 1.0)] * 399 + [(50.0, 1.0)]) == pytest.approx(0.0)


def test_link_of_transfers_on_a_line() -> None:
    found = link([TransferSample("p", size, 0.004 + size / 5e8) for size in (10**6, 10**7, 4 * 10**7)])
    assert (found.latency_s, found.bytes_per_s) == (pytest.approx(0.004), pytest.approx(5e8))


def test_link_of_transfers_that_bytes_do_not_lengthen_has_the_median_rate() -> None:
    found = link([TransferSample("p", size, seconds) for size, seconds in ((1000, 0.03), (2000, 0.02), (3000, 0.01))])
    assert (found.latency_s, found.bytes_per_s) == (0.0, pytest.approx(100_000))


def test_delays_are_what_legs_take_beyond_their_steps() -> None:
    prompts, frontends_s = (400, 900), {"p": 0.02, "d": 0.03, "pull": 0.005, "transfer": 0.01}
    remote_steps = {
        "p0": [prefill_step(n) for n in prompts],
        "d0": [decode_step(1, n - 1 + k) for n in prompts for k in (0, 1)],
    }
    remote_records = []
    for tokens in prompts:
        leg_s = MODEL.latency_s(0, 0, tokens, 0) + frontends_s["p"] + 2 * HOP_S
        after_s = (
            MODEL.latency_s(1, tokens - 1, 0, 0) + sum(frontends_s[name] for name in ("d", "pull", "transfer")) + 2 * HOP_S
        )
        remote_records.append({"prompt_tokens": tokens, "prefill_leg_s": leg_s, "ttft_s": leg_s + after_s})
    local_steps = {"d0": [prefill_step(128, done) for done in (0, 128, 256)] + [prefill_step(16, 384), decode_step(1, 400)]}
    local_s = sum(step.step_s for step in local_steps["d0"][:4]) + frontends_s["d"] + 2 * HOP_S
    remote = phase(
        remote_steps,
        prompts=prompts,
        records=remote_records,
        client_s=0.001,
        transfers=[TransferSample("p", 1000, frontends_s["transfer"])],
    )
    local = phase(local_steps, prompts=[400], records=[{"prompt_tokens": 400, "ttft_s": local_s}], client_s=0.001)
    found = delays(remote, local, prefill_node="p0", decode_node="d0")
    assert found.client_s == pytest.approx(0.001)
    assert found.prefill_frontend_s == pytest.approx(frontends_s["p"])
    assert found.decode_frontend_s == pytest.approx(frontends_s["d"])
    assert found.pull_s == pytest.approx(frontends_s["pull"])


def test_time_between_steps_is_measured_only_while_work_is_left() -> None:
    step = StepSample(0, 0, 100, 0, 0.5)
    busy = [message("p0", steps=[step], sent_at_s=10.0, queued=5), message("p0", sent_at_s=10.1, queued=5)]
    busy.append(message("p0", steps=[step, step], sent_at_s=11.02))
    idle = message("p0", steps=[step], sent_at_s=99.0)
    assert between_steps_s([*busy, idle]) == pytest.approx(0.01)
    assert between_steps_s([idle]) == 0.0


def test_records_are_told_apart_by_length_where_they_came_in_one_millisecond() -> None:
    samples = phase({}, prompts=[400, 300, 300, 500]).samples
    rows = [("t2", 500, "d"), ("t1", 300, "b"), ("t1", 400, "a"), ("t2", 300, "c")]
    records = [{"time": time, "prompt_tokens": tokens, "decision": name} for time, tokens, name in rows]
    assert [record["decision"] for record in in_order(samples, records)] == ["a", "b", "c", "d"]


def test_prompts_that_were_deflected_are_not_looked_for_on_the_prefill_node() -> None:
    found = phase(
        {}, prompts=[100, 200], records=[{"prompt_tokens": 100, "ttft_s": 1.0}, {"prompt_tokens": 200, "ttft_s": 1.0}]
    )
    found.records[0]["decision"] = "decode-only"
    assert found.kept_prompts == [200]
