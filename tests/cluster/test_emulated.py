"""Servers that emulate a device."""

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_kairos.cluster.emulated import server_memory_gib
from vllm_kairos.cluster.plan import ProcessPlan, make_plan, router_plan
from vllm_kairos.cluster.spec import ClusterSpec, Device, Scheduler, make_spec, read_settings
from vllm_kairos.errors import ConfigError, ProfileError
from vllm_kairos.profiles import load_shipped, shipped_profile_path

PROFILE = "a100-llama3-8b"


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


def _value(plan: ProcessPlan, flag: str) -> str:
    return plan.argv[plan.argv.index(flag) + 1]


def _emulation(plan: ProcessPlan) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(_value(plan, "--additional-config"))["kairos"]["emulation"]
    return settings


def test_every_server_emulates_the_profile(model: str) -> None:
    plan = make_plan(ClusterSpec(prefill=2, decode=2, model=model, emulate=PROFILE))
    profile = load_shipped(PROFILE)
    assert plan.served_model_name == profile.model
    for server in plan.servers:
        assert _value(server, "--distributed-executor-backend") == "vllm_kairos.emulation.EmulatedExecutor"
        assert _value(server, "--block-size") == str(profile.block_size_tokens)
        assert _emulation(server)["profile"] == str(shipped_profile_path(PROFILE))
        transfer = json.loads(_value(server, "--kv-transfer-config"))
        assert transfer["kv_connector"] == "KairosNixlConnector"
        assert transfer["kv_connector_extra_config"] == {"kairos_inner": "EmulatedNixlConnector"}
        assert server.environment["KAIROS_PLATFORM"] == "emulated"
        assert server.environment["VLLM_PLUGINS"].endswith("kairos-emulation")
        assert not server.cpus
    assert len({_emulation(server)["seed"] for server in plan.servers}) == 4


def test_stock_servers_emulate_with_nothing_else_of_ours(model: str) -> None:
    for server in make_plan(ClusterSpec(model=model, emulate=PROFILE, scheduler=Scheduler.STOCK)).servers:
        assert "--scheduler-cls" not in server.argv
        assert json.loads(_value(server, "--kv-transfer-config"))["kv_connector"] == "EmulatedNixlConnector"
        assert set(json.loads(_value(server, "--additional-config"))["kairos"]) == {"emulation"}


def test_the_router_predicts_with_the_emulated_profile_unless_told_otherwise(model: str, tmp_path: Path) -> None:
    spec = ClusterSpec(model=model, emulate=PROFILE)
    assert _value(router_plan(spec, make_plan(spec), policy=None, log_dir=tmp_path), "--profile") == str(
        shipped_profile_path(PROFILE)
    )
    other = str(shipped_profile_path("h100-llama3.1-8b"))
    spec = ClusterSpec(model=model, emulate=PROFILE, profile=other)
    assert _value(router_plan(spec, make_plan(spec), policy=None, log_dir=tmp_path), "--profile") == other


def test_further_settings_come_from_the_file(model: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("emulate: a100-llama3-8b\nemulation:\n  bias: 1.1\n  record: /tmp/steps\n  seed: 4\n")
    prefill, decode = make_plan(ClusterSpec(model=model, **read_settings(path))).servers
    assert (_emulation(prefill)["bias"], _emulation(prefill)["record"]) == (1.1, "/tmp/steps.p0")
    assert (_emulation(decode)["seed"], _emulation(decode)["record"]) == (4001, "/tmp/steps.d0")


def test_further_settings_of_the_plugin_reach_every_server(model: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("emulate: a100-llama3-8b\nengine:\n  step_record: {tbt_slo_s: 0.05}\n")
    for server in make_plan(ClusterSpec(model=model, **read_settings(path))).servers:
        kairos = json.loads(_value(server, "--additional-config"))["kairos"]
        assert (kairos["step_record"], kairos["node_id"]) == ({"tbt_slo_s": 0.05}, server.name)
    with pytest.raises(ConfigError, match="engine needs scheduler kairos"):
        ClusterSpec(engine={"step_record": True}, scheduler=Scheduler.STOCK)


def test_emulated_servers_need_little_memory(model: str) -> None:
    assert server_memory_gib(ClusterSpec(emulate=PROFILE, kv_cache_gib=100)) < 2 < server_memory_gib(ClusterSpec())


@pytest.mark.parametrize("settings", [{"emulation": {"bias": 2}}, {"emulate": PROFILE, "device": Device.CUDA}])
def test_what_cannot_go_together_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="emulat"):
        ClusterSpec(**settings)


def test_an_unknown_profile_is_refused_by_name(model: str) -> None:
    with pytest.raises(ProfileError, match="a999"):
        make_plan(ClusterSpec(model=model, emulate="a999"))


def test_emulation_must_be_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("emulation: fast\n")
    with pytest.raises(ConfigError, match="mapping"):
        read_settings(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("emulation: {noise: x}", r"emulation\.noise must be a finite number"),
        ("emulation: {bias: .nan}", r"emulation\.bias must be a finite number"),
        ("emulation: {seed: 2001-01-01}", r"emulation\.seed must be a whole number"),
        ("emulation: {faults: [{kind: slow, count: 1}]}", r"faults\[0\]\.count: no such setting"),
        ("emulation: {profile: h100-llama3.1-8b}", "emulation.profile must be left out"),
        ("engine: {zz: 1}", r"p0: additional_config\.kairos\.zz: no such setting"),
        ("engine: {leases: 5}", r"p0: .*leases must be an object"),
        ("engine: {leases: {ttl_s: 0.01}}", r"d0: .*leases\.ttl_s must be > heartbeat_period_s"),
        ("engine: {governor: {tpot_slo_s: .inf}}", r"p0: .*tpot_slo_s must be a number in"),
        ("engine: {step_record: {file: x, when: 2001-01-01}}", r"step_record\.when: no such setting"),
        ("engine: {step_record: {file: 5}}", r"step_record\.file must be a non-empty string, got 5"),
        ("engine: {node_id: x}", r"engine\.node_id must be left out: every server is given its own, got 'x'"),
        ("engine: {emulation: {noise: 1}}", r"engine\.emulation must be left out"),
    ],
)
def test_what_a_server_would_refuse_is_refused_before_any_starts(
    tmp_path: Path, model: str, settings: str, message: str
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"emulate: {PROFILE}\nmodel: {model}\n{settings}\n")
    with pytest.raises(ConfigError, match=message):
        make_plan(make_spec(read_settings(path)))
