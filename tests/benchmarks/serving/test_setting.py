"""Settings as they are read, and the requests that they mean."""

from pathlib import Path

import pytest

from benchmarks.serving.contenders import CONTENDERS, of_name
from benchmarks.serving.record import load_summary
from benchmarks.serving.setting import Setting, preset_names, workload_of
from benchmarks.serving.simulated import config_of, simulate
from vllm_kairos.errors import ConfigError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
RAW = {
    "title": "small",
    "cluster": {"emulate": "a100-llama3-8b", "prefill": 1, "decode": 1},
    "load": {"workload": "LPLD"},
    "rates_rps": [2.0, 4.0],
    "duration_s": 5.0,
}


def _setting(**changed):
    return Setting.of(Path("small.yaml"), RAW | changed)


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_whole(name):
    setting = Setting.read(name)
    assert setting.name == name
    assert set(setting.contenders) <= set(CONTENDERS)
    assert setting.cluster_spec(None).servers == 4
    assert config_of(setting, setting.cluster_spec(None)).cluster.nodes == "2P2D"


def test_the_papers_setting():
    setting = Setting.read("paper")
    assert (setting.rates_rps[0], setting.rates_rps[-1]) == (6, 12)
    assert (setting.ttft_slo_ms, setting.tbt_slo_ms) == (4000, 70)
    assert config_of(setting, setting.cluster_spec(None)).decision.chunk_candidates_tokens[2:6] == (768, 512, 448, 384)


@pytest.mark.parametrize(("words", "mode"), [([], True), (["--no-async-scheduling"], False), (["--async-scheduling"], True)])
def test_simulated_engines_schedule_as_the_emulated_ones(words, mode):
    setting = _setting(cluster=RAW["cluster"] | {"vllm_args": words})
    assert config_of(setting, setting.cluster_spec(None)).cluster.async_scheduling is mode


def test_equal_repeats_have_equal_requests_and_others_have_others():
    one, same, other = (workload_of(_setting(), None, 4.0, repeat) for repeat in (0, 0, 1))
    assert load_summary(one) == load_summary(same)
    assert load_summary(one)["fingerprint"] != load_summary(other)["fingerprint"]
    assert len(one.requests) == 20
    assert one.requests[0].ttft_slo_s == 4.0
    assert one.requests[0].tbt_slo_s == 0.07


def test_repeats_take_successive_stretches_of_a_trace(tmp_path):
    rows = [f"2023-11-16 18:00:{at:02d}.0000000,{100 + at},{10 + at}\n" for at in range(12)]
    (tmp_path / "trace.csv").write_text(HEADER + "".join(rows))
    setting = _setting(load={"trace": "trace.csv"}, requests=4)
    for repeat in range(3):
        workload = workload_of(setting, tmp_path, 2.0, repeat)
        assert [one.prompt_tokens for one in workload.requests] == [100 + 4 * repeat + at for at in range(4)]
        assert workload.requests[-1].arrival_s == pytest.approx(1.5)
    with pytest.raises(ConfigError, match="must have 16 requests, got 12"):
        workload_of(setting, tmp_path, 2.0, 3)


def test_a_trace_needs_its_folder():
    with pytest.raises(ConfigError, match="--traces"):
        workload_of(_setting(load={"trace": "trace.csv"}), None, 2.0, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rates_rps": []}, "rates_rps must be"),
        ({"rates_rps": [0.0]}, r"rates_rps\[0\] must be"),
        ({"duration_s": 0.0}, "duration_s must be"),
        ({"speed": 2}, "speed: no such setting"),
        ({"load": {"workload": "LPLD", "trace": "t"}}, "workload or as trace"),
        ({"load": {"workload": "LPLD", "output_scale": 0}}, "output_scale must be"),
        ({"load": {"rate": 3}}, "load: rate: no such setting"),
        ({"load": None}, "mapping `load`"),
        ({"rates_rps": 5}, r"small\.yaml: rates_rps must be a list of numbers, got 5"),
        ({"rates_rps": ["6"]}, r"rates_rps\[0\] must be a finite number > 0, got '6'"),
        ({"rates_rps": [float("nan")]}, r"rates_rps\[0\] must be a finite number > 0, got nan"),
        ({"rates_rps": [6, 6.0]}, "rates_rps must be .* all different"),
        ({"rates_rps": [1e9]}, "rates_rps times duration_s must be <= 1000000, got 1e\\+09 for 5 s"),
        ({"rates_rps": None}, "rates_rps must be given"),
        ({"requests": -5}, "requests must be a whole number >= 1, got -5"),
        ({"requests": 10**400}, r"requests must be a whole number in 1\.\.1000000, got 1000"),
        ({"tbt_slo_ms": True}, "tbt_slo_ms must be a finite number > 0, got True"),
        ({"contenders": "kairos"}, "contenders must be a list of names, got 'kairos'"),
        ({"cluster": 5}, "cluster must be a mapping, got 5"),
        ({"cluster": {"prefill": "2"}}, r"small\.yaml: cluster: prefill must be a whole number, got '2'"),
        ({"cluster": {1: 2}}, "cluster: 1: no such setting"),
        ({"load": {"workload": 7}}, "load: workload must be a non-empty string, got 7"),
        ({"load": {"trace": "t", "slice_start_s": float("nan")}}, "load: slice_start_s must be a finite number >= 0, got nan"),
        ({"load": {"workload": "LPLD", "max_prompt_tokens": 0}}, "load: max_prompt_tokens must be a whole number >= 1, got 0"),
    ],
)
def test_what_is_wrong_is_named(changed, message):
    with pytest.raises(ConfigError, match=message):
        _setting(**changed)


def test_an_unknown_preset_is_refused():
    with pytest.raises(ConfigError, match=r"one of .*paper"):
        Setting.read("no-such-setting")


def test_the_twin_serves_the_same_requests():
    figures = simulate(_setting(), None, of_name("never"), 4.0, 0)
    assert (figures.requests, figures.rejected, figures.deflected) == (20, 0, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cluster": {"prefill": 1, "decode": 1}}, "emulate must name"),
        ({"cluster": RAW["cluster"] | {"emulation": {"faults": []}}}, "faults"),
        ({"cluster": RAW["cluster"] | {"vllm_args": ["--enforce-eager"]}}, "--enforce-eager"),
        ({"router_args": ["--queue-size", "3"]}, "--queue-size"),
    ],
)
def test_what_the_simulator_has_not_is_refused(changed, message):
    setting = _setting(**changed)
    with pytest.raises(ConfigError, match=message):
        config_of(setting, setting.cluster_spec(None))


def test_lengths_are_scaled_and_then_cut():
    scaled = {"workload": "LPLD", "prompt_scale": 0.5, "output_scale": 2, "max_prompt_tokens": 400}
    changed, plain = (workload_of(_setting(load=load), None, 4.0, 0) for load in (scaled, RAW["load"]))
    for one, other in zip(changed.requests, plain.requests, strict=True):
        assert (one.prompt_tokens, one.output_tokens) == (min(400, round(other.prompt_tokens / 2)), other.output_tokens * 2)
