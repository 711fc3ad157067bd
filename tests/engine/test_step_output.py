"""Where recorded steps go: the bounded file, the counts on /metrics, and the settings of both."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from starlette.testclient import TestClient

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.engine.endpoint import KairosEndpoint
from vllm_kairos.engine.settings import parse_settings
from vllm_kairos.engine.step_metrics import StepCollector
from vllm_kairos.engine.step_settings import StepRecordSettings
from vllm_kairos.engine.step_totals_file import read_totals, totals_path, write_totals
from vllm_kairos.engine.step_writer import BoundedFile, StepWriter
from vllm_kairos.errors import ConfigError
from vllm_kairos.fitting.features import Regime
from vllm_kairos.steps.analyst import StepAnalyst
from vllm_kairos.steps.gap_tracker import Gap, Mark
from vllm_kairos.steps.recorded import NO_CHUNKS, RecordedStep, StepLoad
from vllm_kairos.steps.step_file import FileHeader, read_steps
from vllm_kairos.steps.totals import StepTotals

HEADER = FileHeader(
    kairos_steps=1,
    node_id="d0",
    dp_rank=0,
    role="decode",
    model="tiny",
    profile="",
    tbt_slo_s=0.07,
    stall_factor=2.0,
    boot_id="b",
    started_at_s=0.0,
)


def step(number: int) -> RecordedStep:
    return RecordedStep(number, StepLoad(1, 20, NO_CHUNKS, 0, frozenset()), number - 0.1, True, Mark(float(number)), ())


def analyst() -> StepAnalyst:
    return StepAnalyst(None, StepTotals(), tbt_slo_s=0.07, stall_factor=2.0, started_s=0.0)


def counted() -> StepTotals:
    totals = StepTotals()
    totals.add_step(Regime.DECODE, 0.011, 0.010)
    totals.add_gaps([Gap(Cause.DEFLECTED, 3, 0.080), Gap(Cause.DECODE, 2, 0.010)], 0.070)
    return totals


@pytest.mark.parametrize("value", [None, False])
def test_recording_is_off_by_default(value: Any) -> None:
    assert parse_settings({"kairos": {"node_id": "d0", "step_record": value}}).step_record is None
    assert parse_settings({}).step_record is None


def test_recording_alone_changes_nothing_else() -> None:
    settings = parse_settings({"kairos": {"step_record": True, "emulation": {"profile": "a100-llama3-8b"}}})
    assert (settings.enabled, settings.step_record) == (False, StepRecordSettings(profile="a100-llama3-8b"))


def test_every_setting(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text("{}")
    record = {"tbt_slo_s": 0.1, "stall_factor": 3, "file": "f", "max_file_bytes": 100_000, "totals_file": "t"}
    settings = parse_settings({"kairos": {"profile": str(profile), "step_record": record}})
    assert settings.enabled
    assert settings.step_record == StepRecordSettings(**(record | {"profile": str(profile)}))  # type: ignore[arg-type]
    other = parse_settings({"kairos": {"profile": str(profile), "step_record": {"profile": "a100-llama3-8b"}}})
    assert other.step_record == StepRecordSettings(profile="a100-llama3-8b")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tbt_slo_s", 0),
        ("tbt_slo_s", "0.07"),
        ("stall_factor", 1.0),
        ("stall_factor", float("inf")),
        ("profile", ""),
        ("file", 5),
        ("max_file_bytes", 1000),
        ("max_file_bytes", True),
        ("totals_file", ""),
    ],
)
def test_error_names_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings({"kairos": {"step_record": {field: value}}})
    assert f"additional_config.kairos.step_record.{field} must be" in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "problem"), [([], "must be an object"), ({"files": 1}, r"step_record\.files: no such setting")]
)
def test_what_is_no_setting_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_settings({"kairos": {"step_record": value}})


def test_a_file_never_exceeds_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    file = BoundedFile(path, b"header\n", 200)
    for number in range(100):
        file.write(b"%08d\n" % number)
        file.flush()
        assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 200
    file.close()
    assert path.read_bytes().startswith(b"header\n")
    assert path.read_bytes().endswith(b"00000099\n")
    assert (tmp_path / "steps.old").exists()


@pytest.mark.parametrize("left", [b"", b"header\nline\n", b"header\nlin", b"lin"])
def test_what_an_engine_was_killed_in_is_no_line_of_the_next_one(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(left)
    BoundedFile(path, b"header\n", 1000).close()
    assert path.read_bytes() == left[: left.rfind(b"\n") + 1] + b"header\n"


def test_a_restarted_engine_appends(tmp_path: Path) -> None:
    for number in (1, 2):
        writer = StepWriter(HEADER, analyst(), tmp_path / "totals", str(tmp_path / "steps"), 100_000)
        writer.put(step(number))
        writer.close()
        writer.close()
    assert [each.step for _, each in read_steps(tmp_path / "steps")] == [1, 2]


def test_a_file_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"step_record\.file must be a file that can be written"):
        StepWriter(HEADER, analyst(), tmp_path / "totals", str(tmp_path / "no" / "steps"), 100_000)


def test_a_disk_that_fails_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, line: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(BoundedFile, "write", fail)
    writer = StepWriter(HEADER, analyst(), tmp_path / "totals", str(tmp_path / "steps"), 100_000)
    writer.put(step(1))
    writer.close()
    writer.put(step(2))
    assert list(read_steps(tmp_path / "steps")) == []


def test_a_stuck_disk_costs_lines_but_no_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, stuck = threading.Event(), threading.Event()
    write = BoundedFile.write

    def wait(self: Any, line: bytes) -> None:
        asked.set()
        stuck.wait()
        write(self, line)

    monkeypatch.setattr(BoundedFile, "write", wait)
    monkeypatch.setattr("vllm_kairos.engine.step_writer._QUEUED_STEPS", 3)
    monkeypatch.setattr("vllm_kairos.engine.step_writer._PERIOD_S", 0.001)
    counts = analyst()
    writer = StepWriter(HEADER, counts, tmp_path / "totals", str(tmp_path / "steps"), 100_000)
    writer.put(step(1))
    asked.wait()
    for number in range(2, 11):
        writer.put(step(number))
    assert (counts.totals.regimes["decode"].steps, counts.totals.dropped_lines) == (7, 6)
    stuck.set()
    writer.close()
    assert counts.totals.regimes["decode"].steps == 10
    assert [each.step for _, each in read_steps(tmp_path / "steps")] == [1, 8, 9, 10]


def test_counts_reach_another_process(tmp_path: Path) -> None:
    path = tmp_path / "totals"
    assert read_totals(path) is None
    write_totals(StepTotals(), path)
    write_totals(counted(), path)
    assert read_totals(path) == counted()
    assert [each.name for each in tmp_path.iterdir()] == ["totals"]
    path.write_bytes(b"{")
    assert read_totals(path) is None


def test_both_processes_find_the_same_path() -> None:
    config = SimpleNamespace(instance_id="abc12")
    path = totals_path(config, StepRecordSettings(), 0)
    assert path.name == f"kairos-steps-{os.getuid()}-abc12.json"
    assert totals_path(config, StepRecordSettings(totals_file="/x/t"), 2) == Path("/x/t.2")


def test_metrics(tmp_path: Path) -> None:
    write_totals(counted(), tmp_path / "t.1")
    registry = CollectorRegistry()
    registry.register(StepCollector([tmp_path / "t", tmp_path / "t.1"]))
    text = generate_latest(registry).decode()
    for expected in (
        'kairos_token_gaps_total{cause="deflected",engine="1"} 3.0',
        'kairos_tbt_violations_total{cause="deflected",engine="1"} 3.0',
        'kairos_tbt_violations_total{cause="decode",engine="1"} 0.0',
        'kairos_token_gap_seconds_bucket{cause="deflected",engine="1",le="0.08"} 3.0',
        'kairos_token_gap_seconds_count{cause="decode",engine="1"} 2.0',
        'kairos_steps_total{engine="1",regime="decode"} 1.0',
        'kairos_step_time_ratio_bucket{engine="1",le="1.05",regime="decode"} 0.0',
        'kairos_step_time_ratio_bucket{engine="1",le="1.1",regime="decode"} 1.0',
        'kairos_step_actual_seconds_total{engine="1",regime="decode"} 0.011',
        'kairos_step_lines_dropped_total{engine="1"} 0.0',
    ):
        assert expected in text
    assert 'engine="0"' not in text


async def _client(record: Any) -> TestClient:
    app, endpoint = FastAPI(), KairosEndpoint()
    endpoint.attach_router(app)
    config = SimpleNamespace(
        additional_config={"kairos": {"step_record": record}},
        model_config=SimpleNamespace(model="tiny", max_model_len=4096),
        parallel_config=SimpleNamespace(data_parallel_size=1),
        cache_config=SimpleNamespace(block_size=32),
        instance_id="abc12",
    )
    engine = SimpleNamespace(vllm_config=config, generate=None)
    await endpoint.init_state(engine, app.state, SimpleNamespace(served_model_name=None))
    return TestClient(app)


async def test_the_server_shows_what_its_engine_counted(tmp_path: Path) -> None:
    path = tmp_path / "totals"
    client = await _client({"totals_file": str(path)})
    try:
        assert client.get("/kairos/metrics").text == ""
        write_totals(counted(), path)
        own = client.get("/kairos/metrics")
        assert own.headers["content-type"].startswith("text/plain")
        for text in (own.text, generate_latest(REGISTRY).decode()):
            assert 'kairos_tbt_violations_total{cause="deflected",engine="0"} 3.0' in text
    finally:
        (collector,) = [each for each in REGISTRY._collector_to_names if isinstance(each, StepCollector)]
        REGISTRY.unregister(collector)


async def test_a_server_that_records_nothing_says_so() -> None:
    client = await _client(False)
    assert client.get("/kairos/metrics").status_code == 404
    assert not any(isinstance(each, StepCollector) for each in REGISTRY._collector_to_names)
