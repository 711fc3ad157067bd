"""From a swept engine to a profile: what is fitted, what is refused, what is said."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.profiler.fakes import FakeEngine, facts
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import ProfileError
from vllm_kairos.fitting.artifact import load_profile, save_profile
from vllm_kairos.profiler.api import MeasuredProfile, conclude, engine_flags, hardware_of, model_name, sweep
from vllm_kairos.profiler.hardware import cpu_name, model_fingerprint
from vllm_kairos.profiler.options import ProfileOptions
from vllm_kairos.profiler.report import render

OPTIONS = ProfileOptions(model="org/model", quick=True, max_num_seqs=16, engine_args=("--enforce-eager",))


class TickingClock:
    """Advances by a fixed time whenever it is read."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def _measured(engine: FakeEngine, *, tick_s: float = 0.0, options: ProfileOptions = OPTIONS) -> MeasuredProfile:
    clock = TickingClock(tick_s)
    return conclude(sweep(engine, options, io.StringIO(), clock), engine.facts, options, clock.now_s)


@pytest.fixture(scope="module")
def measured() -> MeasuredProfile:
    return _measured(FakeEngine())


@pytest.mark.parametrize("batch", [(0, 0, 512, 0), (0, 3000, 256, 3000), (16, 20000, 0, 0), (7, 9000, 200, 1500)])
def test_the_profile_predicts_the_law_the_engine_follows(measured: MeasuredProfile, batch: tuple[int, ...]) -> None:
    decodes, kv, prefill, done = batch
    shape = BatchShape(running_decodes=decodes, kv_tokens=kv, prefill_tokens=prefill, done_tokens=done)
    attention = prefill * done + prefill * prefill / 2
    law_s = 0.040 + 5e-4 * decodes + 2.5e-6 * kv + 3e-4 * prefill + 1e-6 * done + 1.6e-7 * attention
    assert measured.profile.fitted.step_s(shape) == pytest.approx(law_s, rel=0.01)
    assert measured.profile.step_model.step_s(shape) == pytest.approx(law_s + 0.001, rel=0.01)


def test_cold_and_disturbed_steps_do_not_bend_the_models() -> None:
    slow = {1: 60.0, 2: 20.0, **{number: 60.0 for number in range(40, 900, 60)}}
    disturbed = _measured(FakeEngine(slow_steps=slow))
    assert disturbed.condensed.disturbed > 0
    assert all(found.mape < 0.05 for found in disturbed.profile.accuracy.values())


def test_a_time_budget_that_ends_after_the_corners_still_gives_a_profile() -> None:
    cut = _measured(FakeEngine(), tick_s=1.2)
    assert cut.outcome.cut
    assert all(found.mape < 0.01 for found in cut.profile.accuracy.values())


def test_a_time_budget_that_is_too_small_names_the_models_it_left_out() -> None:
    message = (
        r"--time-budget-s must allow to measure every model, 20 left out: decode \(\d of 6 .*mixed \(\d of 8 configurations\)"
    )
    with pytest.raises(ProfileError, match=message):
        _measured(FakeEngine(), tick_s=0.5, options=ProfileOptions(model="m", quick=True, time_budget_s=20))


def test_the_profile_survives_its_file_and_says_what_it_was_measured_on(measured: MeasuredProfile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(measured.profile, path)
    assert load_profile(path, model="org/model") == measured.profile
    written = json.loads(path.read_text())
    assert written["engine_flags"] == ["--dtype", "auto", "--max-num-seqs", "16", "--enforce-eager"]
    assert written["kv_bytes_per_token"] == 23040
    assert "CPUs" in written["hardware"]


def test_the_report_shows_errors_per_model_and_what_was_dropped(measured: MeasuredProfile) -> None:
    text = render(measured, Path("profile.json"))
    assert [line.split()[0] for line in text.splitlines()[:4]] == ["model", "prefill", "decode", "mixed"]
    assert "0.0%" in text
    assert "warm-up steps discarded" in text
    assert text.endswith("wrote profile.json\n")


def test_the_report_warns_when_other_work_took_the_cpu(measured: MeasuredProfile) -> None:
    assert "warning" not in render(replace(measured, cpu_share=0.97), Path("p.json"))
    assert "had its CPU 62% of the time" in render(replace(measured, cpu_share=0.62), Path("p.json"))


def test_a_local_model_is_named_by_its_folder_and_told_apart_by_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "small-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"1234")
    before = model_fingerprint(str(folder))
    (folder / "model.safetensors").write_bytes(b"12345")
    assert model_name(str(folder)) == "small-model"
    assert model_fingerprint(str(folder)) != before
    assert model_fingerprint("org/model") == ""
    assert engine_flags(ProfileOptions(model=str(folder))) == ("--dtype", "auto")


def test_hardware_is_the_processor_or_the_accelerator(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\n")
    assert cpu_name(cpuinfo) == "Fast CPU @ 3 GHz"
    assert cpu_name(tmp_path / "absent")
    assert hardware_of(facts(device="cuda", device_name="NVIDIA H200")) == "NVIDIA H200"
