"""The step file, and what `kairos steps` says of one."""

import json
from pathlib import Path

import pytest

from vllm_kairos.errors import ConfigError
from vllm_kairos.steps.command import COMMAND
from vllm_kairos.steps.report import report
from vllm_kairos.steps.step_file import FileHeader, GapEntry, StepLine, encode_line, read_steps


def header(node_id: str = "d0", dp_rank: int = 0, kairos_steps: int = 1) -> FileHeader:
    return FileHeader(
        kairos_steps=kairos_steps,
        node_id=node_id,
        dp_rank=dp_rank,
        role="decode",
        model="tiny",
        profile="tiny.json",
        tbt_slo_s=0.070,
        stall_factor=2.0,
        boot_id="b",
        started_at_s=0.0,
    )


def line(took: float, *gaps: GapEntry, n: int = 0, B: int = 2, predicted: float | None = 0.010) -> StepLine:
    return StepLine(
        step=1, at=1.0, B=B, K=100, n=n, deflected=n, predicted=predicted, took=took, run=took, cause="decode", gaps=list(gaps)
    )


def write(path: Path, *lines: FileHeader | StepLine) -> Path:
    path.write_bytes(b"".join(encode_line(each) for each in lines))
    return path


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    steps = [
        line(0.010, ("decode", 98, 0.010)),
        line(0.080, ("deflected", 1, 0.080), n=64),
        line(0.012, ("stall", 1, 0.071)),
        line(0.011, n=64, B=0, predicted=None),
    ]
    return write(tmp_path / "steps.jsonl", header(), *steps)


def test_gaps_and_violations_by_cause(recorded: Path) -> None:
    (found,) = report([recorded]).values()
    assert (found.steps, found.prefill_tokens, found.deflected_tokens) == (4, 128, 128)
    assert {name: (each.gaps, each.violations) for name, each in found.causes.items()} == {
        "decode": (98, 0),
        "deflected": (1, 1),
        "unplanned": (0, 0),
        "preempted": (0, 0),
        "stall": (1, 1),
    }
    assert (found.total.gaps, found.total.violations, found.total.violation_share) == (100, 2, 0.02)
    assert (found.total.p50_s, found.total.p99_s, found.total.longest_s) == (0.010, 0.071, 0.080)
    assert found.causes["deflected"].violation_share == 0.01
    assert found.causes["unplanned"].p50_s is None


def test_prediction_error_by_regime(recorded: Path) -> None:
    (found,) = report([recorded]).values()
    decode, mixed, prefill = (found.regimes[name] for name in ("decode", "mixed", "prefill"))
    assert (decode.steps, decode.error_p50, decode.ratio_p50) == (2, pytest.approx(0.1), pytest.approx(1.1))
    assert (mixed.steps, mixed.ratio_p95) == (1, pytest.approx(8.0))
    assert (prefill.steps, prefill.predicted_steps, prefill.error_p50, prefill.mean_s) == (1, 0, None, pytest.approx(0.011))


def test_another_objective(recorded: Path) -> None:
    assert report([recorded], 0.005)["d0"].total.violations == 100


def test_steps_of_a_time(recorded: Path) -> None:
    assert report([recorded], within_s=(1.0, 2.0))["d0"].steps == 4
    assert report([recorded], within_s=(0.0, 1.0))["all"].steps == 0


def test_several_nodes_and_ranks_are_told_apart_and_summed(tmp_path: Path) -> None:
    gap = line(0.010, ("decode", 2, 0.010))
    one = write(tmp_path / "one", header("d0"), gap, header("d1", dp_rank=1), gap, gap)
    found = report([one])
    assert {name: each.steps for name, each in found.items()} == {"d0": 1, "d1/dp1": 2, "all": 3}
    assert found["all"].nodes == ("d0", "d1/dp1")
    assert found["all"].total.gaps == 6


def test_a_rotated_file_is_read_from_its_beginning_and_a_torn_line_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "steps.old", header(), line(1.0))
    path = write(tmp_path / "steps", header(), line(2.0))
    with path.open("ab") as file:
        file.write(b'{"step": 3, "at"')
    assert [each.took for _, each in read_steps(path)] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"step":1}\n', "steps:1: a header with kairos_steps must come first"),
        (encode_line(header()) + b"nonsense\n", "steps:2: not a step"),
        (encode_line(header(kairos_steps=2)), "steps:1: not a step: kairos_steps must be 1, got 2"),
        (encode_line(header()) + b'{"x":' + b"[" * 100_000 + b"\n", "steps:2: not a step"),
        (encode_line(header()) + encode_line(line(-0.1)), r"steps:2: not a step: .*>= 0.0 - at `\$\.took`"),
        (encode_line(header()) + encode_line(line(0.1, ("decode", -1, 0.1))), r"steps:2: not a step: .*gaps"),
        (
            encode_line(header()) + encode_line(line(0.1, ("luck", 1, 0.1))),
            "steps:2: not a step: gaps must have causes of .*luck",
        ),
    ],
)
def test_what_is_no_step_file_is_refused_by_line(tmp_path: Path, text: bytes, problem: str) -> None:
    path = tmp_path / "steps"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=problem):
        report([path])


def test_a_line_that_an_engine_was_killed_in_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    torn = encode_line(line(0.010))[:30]
    path.write_bytes(encode_line(header()) + torn + encode_line(header("d0")) + encode_line(line(0.020)) + torn)
    assert [step.took for _, step in read_steps(path)] == [0.020]


def steps(*words: str) -> int:
    return COMMAND.run(COMMAND.make_parser("kairos steps").parse_args(words))


def test_the_command(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert steps(str(recorded)) == 0
    table = capsys.readouterr().out
    assert "d0: 4 steps, 128 prefill tokens, 128 of them deflected" in table
    assert "1.000%" in table
    assert steps(str(recorded), "--json", "--tbt-slo-ms", "75") == 0
    assert json.loads(capsys.readouterr().out)["d0"]["total"]["violations"] == 1


def test_the_command_says_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none: cannot be read"):
        steps(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="--tbt-slo-ms must be a finite number > 0, got 0"):
        steps("x", "--tbt-slo-ms", "0")


def test_a_file_without_steps(tmp_path: Path) -> None:
    (found,) = report([write(tmp_path / "steps", header())]).values()
    assert (found.steps, found.total.gaps, found.total.violation_share) == (0, 0, 0.0)
