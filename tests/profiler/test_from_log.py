"""From recorded steps to a profile: a known law comes back, and what does not give a profile is refused by name."""

import random
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from tests.profiler.recorded import EXAMPLE_PROFILE, EXAMPLES, decode_steps, header, prefill_steps, write, write_examples
from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost
from vllm_kairos.core.regime import Regime
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import ConfigError, ProfileError
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.profiler.command import COMMAND
from vllm_kairos.profiler.from_log import FittedLog, fit_log
from vllm_kairos.profiler.options import LogOptions
from vllm_kairos.profiles import load_shipped
from vllm_kairos.steps.step_file import StepLine

LAW = LinearStepModel(
    prefill=PrefillCost(fixed_s=8e-3, per_token_s=6e-5, per_done_token_s=2e-7, per_attention_work_s=4e-9),
    decode=DecodeCost(fixed_s=9e-3, per_decode_s=4.4e-5, per_kv_token_s=8e-8),
    extra=PrefillCost(fixed_s=2e-3, per_token_s=6e-5, per_done_token_s=3e-7, per_attention_work_s=4e-9),
)
KNOWN = {"hardware": "GPU X", "vllm_version": "0.32.0", "block_size_tokens": 32, "kv_bytes_per_token": 4096}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes' files that follow LAW, and say what they ran on but for the profile."""
    path = tmp_path_factory.mktemp("recorded")
    write(path / "p0", header("p0", profile="", token_budget_tokens=2048, **KNOWN), prefill_steps(LAW, 1500))
    write(path / "d0", header("d0", profile="", token_budget_tokens=512, **KNOWN), decode_steps(LAW, 3000))
    return path


@pytest.fixture(scope="module")
def fitted(folder: Path) -> FittedLog:
    return fit_log(LogOptions(files=(folder / "p0", folder / "d0")))


def _law_shapes() -> list[BatchShape]:
    rng = random.Random(1)
    alone = [
        BatchShape(running_decodes=0, kv_tokens=p, prefill_tokens=n, done_tokens=p) for n in (64, 512, 2048) for p in (0, 4096)
    ]
    beside = [
        BatchShape(running_decodes=b, kv_tokens=b * rng.randint(500, 3000) + p, prefill_tokens=n, done_tokens=p)
        for b in (1, 8, 40)
        for n in (0, 64, 256, 900)
        for p in ((0, 3000) if n else (0,))
    ]
    return alone + beside


@pytest.mark.parametrize("shape", _law_shapes(), ids=str)
def test_the_law_that_noisy_steps_with_stalls_follow_comes_back(fitted: FittedLog, shape: BatchShape) -> None:
    assert fitted.profile.step_model.step_s(shape) == pytest.approx(LAW.step_s(shape), rel=0.03)


def _any_law(rng: random.Random) -> LinearStepModel:
    """A law of some machine between a small model on a fast one and a large model on a slow one."""

    def between(low: float, high: float) -> float:
        return float(low * (high / low) ** rng.random())

    prefill = PrefillCost(
        fixed_s=between(1e-3, 2e-2),
        per_token_s=between(1e-5, 3e-4),
        per_done_token_s=rng.choice((0.0, between(1e-8, 1e-6))),
        per_attention_work_s=between(1e-10, 3e-8),
    )
    return LinearStepModel(
        prefill=prefill,
        decode=DecodeCost(fixed_s=between(3e-3, 2e-2), per_decode_s=between(3e-6, 3e-4), per_kv_token_s=between(1e-8, 3e-7)),
        extra=replace(
            prefill, fixed_s=rng.choice((0.0, between(1e-4, 3e-3))), per_token_s=prefill.per_token_s * between(0.7, 1.2)
        ),
    )


@pytest.mark.parametrize("seed", range(6))
def test_any_law_comes_back_for_every_step_that_followed_it(seed: int, tmp_path: Path) -> None:
    law = _any_law(random.Random(seed))
    steps = {"p0": list(prefill_steps(law, 600)), "d0": list(decode_steps(law, 1500))}
    files = [
        write(tmp_path / node, header(node, profile="", token_budget_tokens=1, **KNOWN), iter(steps[node])) for node in steps
    ]
    model = fit_log(LogOptions(files=tuple(files))).profile.step_model
    for line in chain(*steps.values()):
        work = line.n * line.p + line.n * line.n * 0.5 if line.work is None else line.work
        chunks = PrefillTotals(1, line.n, line.p, work)
        true_s = law.packed_step_s(line.B, line.K, chunks)
        assert model.packed_step_s(line.B, line.K, chunks) == pytest.approx(true_s, rel=0.05)


def test_errors_are_those_of_shapes_held_out(fitted: FittedLog) -> None:
    for regime in Regime:
        found = fitted.profile.accuracy[regime]
        assert found.configurations == pytest.approx(0.2 * fitted.shapes[regime], rel=0.2)
        assert 0 < found.mape < 0.05


def test_the_profile_says_what_was_recorded(fitted: FittedLog, folder: Path) -> None:
    profile = fitted.profile
    assert (profile.hardware, profile.vllm_version, profile.block_size_tokens) == ("GPU X", "0.32.0", 32)
    assert (profile.kv_bytes_per_token, profile.token_budget_tokens) == (4096, 2048)
    assert profile.model == "meta-llama/Meta-Llama-3-8B"
    assert profile.note == "4500 steps of d0, p0, 2026-09-21 14:13 UTC to 2026-09-21 14:15 UTC"
    assert (fitted.previous, profile.period_overhead_s) == (None, 0.0)
    assert fit_log(LogOptions(files=(folder / "p0", folder / "d0"), model="mine")).profile.model == "mine"


def test_the_files_order_does_not_matter(fitted: FittedLog, folder: Path) -> None:
    turned = fit_log(LogOptions(files=(folder / "d0", folder / "p0"))).profile
    shape = BatchShape(running_decodes=8, kv_tokens=9000, prefill_tokens=256, done_tokens=512)
    assert turned.step_model.step_s(shape) == pytest.approx(fitted.profile.step_model.step_s(shape), rel=0.02)


def test_what_the_files_do_not_say_is_that_of_the_profile_that_predicted_them() -> None:
    fitted = fit_log(LogOptions(files=(EXAMPLES / "steps-p0.jsonl", EXAMPLES / "steps-d0.jsonl")))
    before = load_shipped(EXAMPLE_PROFILE)
    for name in ("hardware", "vllm_version", "engine_flags", "kv_capacity_tokens", "chunk_candidates_tokens"):
        assert getattr(fitted.profile, name) == getattr(before, name)
    assert fitted.previous is not None
    assert fitted.previous.name == EXAMPLE_PROFILE
    for regime in Regime:
        assert fitted.previous.ratios[regime] == pytest.approx(1.25, rel=0.03)
        assert fitted.previous.accuracy[regime].mape == pytest.approx(0.2, abs=0.03)


def test_the_examples_are_what_the_generator_writes(tmp_path: Path) -> None:
    write_examples(tmp_path)
    for name in ("steps-p0.jsonl", "steps-d0.jsonl"):
        assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes()


def test_a_profile_that_is_not_at_hand_is_said_or_replaced(tmp_path: Path) -> None:
    files = tuple(
        write(tmp_path / node, header(node, profile="/gone/old.json", model="/models/tiny"), lines)
        for node, lines in (("p0", prefill_steps(LAW, 300)), ("d0", decode_steps(LAW, 600)))
    )
    with pytest.raises(
        ProfileError, match=r"--like must name a profile that says what these files do not: hardware, vllm_version, "
    ):
        fit_log(LogOptions(files=files))
    fitted = fit_log(LogOptions(files=files, like=EXAMPLE_PROFILE, chunk_candidates=(64, 256)))
    assert (fitted.profile.model, fitted.profile.chunk_candidates_tokens) == ("tiny", (256, 64))
    known = [
        write(path, header(path.name, profile="/gone/old.json", token_budget_tokens=8, **KNOWN), steps(LAW, 900))
        for path, steps in ((tmp_path / "p1", prefill_steps), (tmp_path / "d1", decode_steps))
    ]
    assert "/gone/old.json" in fit_log(LogOptions(files=tuple(known))).notes[0]


def _flat(batch: dict[str, int]) -> list[StepLine]:
    return [StepLine(step=1, at=0.0, took=0.01, run=0.01, cause="decode", **batch) for _ in range(60)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            list(decode_steps(LAW, 900, mixed_share=0)),
            r"\(prefill: 0 of 50 steps; mixed: 0 of 50 steps\): add files of other nodes",
        ),
        (list(prefill_steps(LAW, 900)), r"\(decode: 0 of 50 steps; mixed: 0 of 50 steps\)"),
        (list(prefill_steps(LAW, 49)), r"prefill: 49 of 50 steps"),
        (_flat({"B": 1, "K": 100}), r"decode: 1 of 6 shapes"),
        ([line for k in range(1, 9) for line in _flat({"B": 4, "K": k * 1000})], r"decode: decodes 4 to 4, needs 2 times"),
        (
            [line for p in range(9) for line in _flat({"n": 512, "p": p * 512})],
            r"prefill: prefill tokens 512 to 512, needs 4 times",
        ),
        (
            [line for b in range(1, 40) for line in _flat({"B": b, "K": b * 900})],
            r"decode: KV tokens each \d+ to \d+, needs 1.5 times",
        ),
        ([], r"--from-log must name files with steps, got none in .*p0"),
    ],
)
def test_what_does_not_span_the_models_is_refused_with_all_that_is_missing(
    tmp_path: Path, lines: list[StepLine], said: str
) -> None:
    path = write(tmp_path / "p0", header("p0"), iter(lines))
    with pytest.raises(ProfileError, match=said):
        fit_log(LogOptions(files=(path,)))


@pytest.mark.parametrize("name", ["model", "hardware"])
def test_files_of_several_models_or_machines_are_refused(tmp_path: Path, name: str) -> None:
    files = [write(tmp_path / each, header("p0", **{name: each}), prefill_steps(LAW, 9)) for each in "ab"]
    with pytest.raises(ProfileError, match=f"{name} must be the same in all files, got 'a', 'b'"):
        fit_log(LogOptions(files=tuple(files)))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match=r"x:1: a header"):
        fit_log(LogOptions(files=(tmp_path / "x",)))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(EXAMPLES / name) for name in ("steps-p0.jsonl", "steps-d0.jsonl")]
    line = ["--out", str(tmp_path / "p.json"), "--from-log", *files]
    assert COMMAND.run(COMMAND.make_parser("kairos profile").parse_args(line)) == 0
    said = capsys.readouterr().out
    assert "MAPE before  actual/before" in said
    assert "before: a100-llama3-8b, over all shapes" in said
    assert load_profile(tmp_path / "p.json").source.startswith("steps recorded in production")
