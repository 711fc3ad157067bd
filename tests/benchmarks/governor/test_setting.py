"""Settings of the comparison as they are read, and the servers that they mean."""

import json

import pytest

from benchmarks.governor.contenders import of_name
from benchmarks.governor.servers import scaled_profile, server_spec, step_files
from benchmarks.governor.setting import PRESETS, Comparison, ObjectiveKind
from benchmarks.serving.setting import preset_names, workload_of
from tests.benchmarks.governor.records import RAW, case
from vllm_kairos.cluster.plan import make_plan
from vllm_kairos.engine.settings import parse_settings
from vllm_kairos.errors import ConfigError, ProfileError
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.profiles import shipped_profile_path

PROFILE = shipped_profile_path("cpu-smollm2-135m")


@pytest.mark.parametrize("name", preset_names(PRESETS))
def test_presets_are_whole(name, tmp_path):
    comparison = Comparison.read(name)
    assert comparison.name == name
    assert len({each.name for each in comparison.cases}) == len(comparison.cases)
    for each in comparison.cases:
        assert {"stock", "governor"} <= {contender.name for contender in each.contenders}
        assert workload_of(each.load, None, each.load.rates_rps[0], 0).requests
        for contender in each.contenders:
            assert server_spec(each, contender, tmp_path / contender.name).decode == 1


def test_the_presets_objectives():
    cpu, emulated = Comparison.read("cpu"), Comparison.read("emulated-h100")
    assert [each.engine_objective for each in cpu.cases] == [{"tbt_slo_s": 0.25}]
    assert {each.slo_s for each in emulated.cases} == {0.025, 0.010}
    assert {each.objective for each in emulated.cases} == {ObjectiveKind.TPOT}


@pytest.mark.parametrize("name", ["", "fixed", "fixed-0", "fixed-64k", "governor-x", "governor-x0", "governor-0.7"])
def test_an_unknown_contender_is_refused(name):
    with pytest.raises(ConfigError, match="contender must be"):
        of_name(name)


@pytest.mark.parametrize(
    ("name", "governed", "scaled"),
    [("stock", False, False), ("fixed-64", False, False), ("governor", True, False), ("governor-x1.4", True, True)],
)
def test_what_a_contender_is(name, governed, scaled):
    contender = of_name(name)
    assert (contender.is_governed, contender.is_scaled, contender.is_fixed) == (governed, scaled, not governed)


def _kairos(spec):
    """The plugin's settings as the engine reads them."""
    (server,) = make_plan(spec).servers
    return parse_settings(json.loads(server.argv[server.argv.index("--additional-config") + 1])), server.argv


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return {"cluster": RAW["cluster"] | {"model": str(tmp_path)}}


def test_servers_without_a_governor_schedule_as_stock(model, tmp_path):
    for name in ("stock", "fixed-256"):
        spec = server_spec(case(**model), of_name(name), tmp_path)
        settings, argv = _kairos(spec)
        assert not settings.enabled
        assert settings.step_record is not None
        assert settings.step_record.tbt_slo_s == 0.25
        assert settings.step_record.file == str(step_files(spec)[0])
        assert ("--max-num-batched-tokens" in argv) is (name != "stock")


def test_governed_servers_have_the_cases_objective(model, tmp_path):
    changed = model | {"objective": "tpot", "governor": {"beta": "measured"}}
    settings, argv = _kairos(server_spec(case(**changed), of_name("governor"), tmp_path))
    assert settings.governor is not None
    assert settings.governor.sizing.objective.tpot_s == 0.25
    assert settings.governor.sizing.objective.tbt_s is None
    assert settings.governor.sizing.beta == "measured"
    assert settings.default_chunk_tokens is None
    assert "--max-num-batched-tokens" not in argv


def test_a_scaled_profile_predicts_scaled_steps(model, tmp_path):
    settings, _ = _kairos(server_spec(case(**model), of_name("governor-x0.7"), tmp_path))
    assert settings.governor is not None
    assert settings.step_record is not None
    assert settings.step_record.profile == str(PROFILE)
    wrong, right = load_profile(settings.governor.profile).step_model, load_profile(PROFILE).step_model
    for shape in ((0, 0, 100, 0), (8, 4000, 0, 0), (8, 4000, 256, 512)):
        assert wrong.latency_s(*shape) == pytest.approx(0.7 * right.latency_s(*shape))


def test_a_scaled_profile_can_be_written_twice(tmp_path):
    first = scaled_profile(PROFILE, 1.4, tmp_path).read_bytes()
    assert scaled_profile(PROFILE, 1.4, tmp_path).read_bytes() == first


def test_emulated_servers_run_no_more_requests_than_the_budget_holds(tmp_path):
    emulated = case(cluster=RAW["cluster"] | {"emulate": "h100-llama3.1-8b", "vllm_args": ["--seed", "1"]})
    small, large = (server_spec(emulated, of_name(f"fixed-{budget}"), tmp_path).vllm_args for budget in (64, 512))
    assert small == ("--seed", "1", "--max-num-batched-tokens", "64", "--max-num-seqs", "64")
    assert large == ("--seed", "1", "--max-num-batched-tokens", "512")


def test_of_a_decode_node_the_routers_chunk_is_fixed(tmp_path):
    node = case(cluster={"prefill": 1, "decode": 1, "policy": "always"})
    fixed, stock = (server_spec(node, of_name(name), tmp_path) for name in ("fixed-256", "stock"))
    assert fixed.vllm_args == stock.vllm_args == ()
    assert fixed.router_args[:2] == ("--deflect-static-chunk", "256")
    assert stock.router_args[:2] == ("--deflect-static-chunk", "2048")
    assert fixed.profile == str(PROFILE)
    assert [path.name for path in step_files(fixed)] == ["steps.jsonl.d0"]


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"profile": "no-such-profile"}, (ConfigError, ProfileError), "no-such-profile"),
        ({"objective": "ttft"}, ConfigError, "objective must be one of tbt, tpot"),
        ({"contenders": ["fixed"]}, ConfigError, "contender must be"),
        ({"patience_s": 0}, ConfigError, "patience_s must be"),
        ({"recovery_rps": -1}, ConfigError, "recovery_rps must be"),
        ({"speed": 2}, ConfigError, "speed: no such setting"),
    ],
)
def test_what_is_wrong_is_named(changed, error, message):
    with pytest.raises(error, match=message):
        case(**changed)


def test_servers_that_cannot_be_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"small\.yaml: cluster: speed"):
        server_spec(case(cluster={"speed": 1}), of_name("stock"), tmp_path)


def test_a_file_needs_cases(tmp_path):
    path = tmp_path / "none.yaml"
    path.write_text("title: none\n")
    with pytest.raises(ConfigError, match="cases"):
        Comparison.read(str(path))
    with pytest.raises(ConfigError, match="one of cpu"):
        Comparison.read("no-such-setting")


def test_flags_change_every_case():
    read = Comparison.read("emulated-h100")
    changed = read.with_changes({"rates_rps": (9.0,)}, names=["mixed-10ms", "chat-25ms"], profile="h100-llama3.1-8b")
    assert [each.name for each in changed.cases] == ["chat-25ms", "mixed-10ms"]
    assert {each.load.rates_rps for each in changed.cases} == {(9.0,)}
    assert {each.profile for each in changed.cases} == {"h100-llama3.1-8b"}
    (cpu,) = Comparison.read("cpu").with_changes({"rates_rps": (0.5, 0.7)}, names=None, profile=None).cases
    assert cpu.rates_of(of_name("governor-x0.7")) == (0.7,)
    with pytest.raises(ConfigError, match="--cases must be of"):
        read.with_changes({}, names=["chat"], profile=None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cases: {one: 5}", "one must be a mapping, got 5"),
        ("cases: {a/b: {profile: p}}", "names that a folder may have, got 'a/b'"),
        ("cases: {one: {profile: 5}}", "one: profile must be a non-empty string, got 5"),
        ("cases: {one: {profile: p, patience_s: soon}}", "one: patience_s must be a finite number > 0, got 'soon'"),
        ("cases: {one: {profile: p, governor: 1}}", "one: governor must be a mapping, got 1"),
        ("cases: {one: {profile: p, objective: [tbt]}}", "one: objective must be a non-empty string"),
        ("[" * 3000, "setting must be a YAML file"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_key(tmp_path, text, message):
    (tmp_path / "odd.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Comparison.read(str(tmp_path / "odd.yaml"))
