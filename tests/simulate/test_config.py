"""A YAML file and flags say the same, and every fault is one line that names field, rule and value."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.simulate.runs import config_of
from vllm_kairos.core.governor import GovernorMode, GovernorSettings, Objective
from vllm_kairos.errors import ConfigError, KairosError
from vllm_kairos.simulate.build import build_cluster, build_workload
from vllm_kairos.simulate.config import OPTIONS, SECTIONS, NodeCounts, load_config
from vllm_kairos.simulate.plan_settings import PLAN_OPTIONS
from vllm_kairos.simulate.sweep import Cell, _engines_of, check
from vllm_kairos.workload.transforms import mean_rate_rps

EXAMPLE = Path(__file__).parents[2] / "docs/examples/simulate.yaml"


def written(tmp_path, text):
    path = tmp_path / "simulate.yaml"
    path.write_text(text)
    return path


def test_a_file_and_flags_make_the_same_configuration(tmp_path):
    path = written(
        tmp_path,
        """
        cluster: {nodes: 2P2D, routers: 2, kv_tokens: 90000, prefix_caching: false}
        network: {nic_gb_per_s: 12.5, racks: {p0: a, d1: b}}
        router: {heartbeat_loss: 0.1, prefix_aware: true}
        decision: {alpha: 1.5, chunk_candidates_tokens: [512, 64]}
        governor: {mode: guarded, tpot_slo_ms: 25, beta: measured}
        leases: {ttl_s: 1, horizon_s: 2, tbt_slo_ms: 60, beta: 0.8}
        objectives: {tbt_slo_ms: 50}
        workload: {generate: LPLD, requests: 12}
        sweep: {policies: [never, "static-length:2048"], rates: [4, 5.5], seeds: [1, 2]}
        """,
    )
    flags = "--cluster 2P2D --kv-tokens 90000 --no-prefix-caching --nic-gb-per-s 12.5 --rack p0=a --rack d1=b"
    flags += " --heartbeat-loss 0.1 --prefix-aware --deflect-alpha 1.5 --deflect-chunk-candidates 512,64 --tbt-slo-ms 50"
    flags += " --governor-mode guarded --governor-tpot-slo-ms 25 --governor-beta measured"
    flags += " --routers 2 --leases-ttl-s 1 --leases-horizon-s 2 --leases-tbt-slo-ms 60 --leases-beta 0.8"
    flags += " --workload LPLD --requests 12 --policy never --policy static-length:2048 --rates 4,5.5 --seeds 1,2"
    assert load_config(path, {}) == config_of(*flags.split())


def test_flags_override_the_file(tmp_path):
    path = written(tmp_path, "cluster: {nodes: 1P1D, kv_tokens: 5000}\nsweep: {rates: [1]}")
    config = load_config(path, {"cluster": {"nodes": "3D"}, "sweep": {"seeds": (4,)}})
    assert (config.cluster.nodes, config.cluster.kv_tokens) == ("3D", 5000)
    assert (config.sweep.rates, config.sweep.seeds) == ((1.0,), (4,))


def test_the_documented_example_has_every_setting_and_is_valid():
    config = load_config(EXAMPLE, {})
    assert len(check(config).requests) == config.workload.requests
    text = re.sub(r"^  # (?=\w+:)", "  ", EXAMPLE.read_text(), flags=re.MULTILINE)
    for section, kind in SECTIONS.items():
        named = yaml.safe_load(text)[section]
        assert list(named) == [item.name for item in fields(kind)]


def test_every_option_has_a_flag_of_its_own_and_a_help_text():
    assert len({option.flag for option in PLAN_OPTIONS}) == len(PLAN_OPTIONS)
    assert all(option.help for option in OPTIONS)


@given(*[st.integers(0, 99)] * 3)
def test_node_counts_are_read_as_they_are_shown(prefill, decode, both):
    counts = NodeCounts(prefill, decode, both)
    if decode + both:
        assert NodeCounts.parse(str(counts)) == counts
    else:
        with pytest.raises(ConfigError, match="nodes must"):
            NodeCounts.parse(str(counts) or "0P")


FILE_FAULTS = {
    "cluster: {nodez: 1P1D}": "cluster: nodez: no such setting; known are nodes, routers",
    "clusters: {}": "clusters: no such setting; known are cluster, network",
    "cluster: 2P2D": "cluster must be a mapping of settings, got '2P2D'",
    "- cluster": "must be a mapping of settings, got",
    "cluster: {kv_tokens: many}": "cluster.kv_tokens must be a whole number, got 'many'",
    "cluster: {kv_tokens: 1.5}": "cluster.kv_tokens must be a whole number, got 1.5",
    "cluster: {prefix_caching: 1}": "cluster.prefix_caching must be true or false, got 1",
    "cluster: {nodes: 2}": "cluster.nodes must be a text, got 2",
    "network: {racks: [p0]}": "network.racks must be pairs as in NODE=RACK, got ['p0']",
    "sweep: {rates: [a]}": "sweep.rates must be a list of numbers, got ['a']",
    "sweep: {policies: [1]}": "sweep.policies must be a list of texts, got [1]",
    "sweep: {rates: [4, 4]}": "sweep: rates must be all different, got 4.0 twice",
    "sweep: {policies: []}": "sweep: policies must be one or more, got none",
    "router: {heartbeat_loss: 2}": "router: heartbeat_loss must be in [0, 1), got 2.0",
    "decision: {alpha: 0.5}": "decision: alpha must be a finite number >= 1, got 0.5",
    "decision: {prefill_unavailable: no}": "decision.prefill_unavailable must be a text, got False",
    "governor: {mode: safe}": "governor: mode must be one of strict, guarded, adaptive, got 'safe'",
    "governor: {beta: 0}": "governor: beta must be measured or a number > 0 and <= 1, got 0.0",
    "governor: {beta: most}": "governor: beta must be measured or a number > 0 and <= 1, got 'most'",
    "governor: {tpot_slo_ms: -1}": "governor: tpot_slo_ms must be in 0.1..3600000 ms, got -1.0",
    "governor: {tbt_slo_ms: 4000000}": "governor: tbt_slo_ms must be in 0.1..3600000 ms, got 4000000.0",
    "governor: {ttft_slo_ms: 0}": "governor: ttft_slo_ms must be a finite number > 0, got 0.0",
    "leases: {ttl_s: 0}": "leases: ttl_s must be > 0 and <= 3600 s, got 0.0",
    "leases: {horizon_s: .inf}": "leases: horizon_s must be > 0 and <= 3600 s, got inf",
    "leases: {tbt_slo_ms: -1}": "leases: tbt_slo_ms must be > 0 and <= 3600000 ms, got -1.0",
    "leases: {tbt_slo_ms: 1e+9}": "leases: tbt_slo_ms must be > 0 and <= 3600000 ms, got 1000000000.0",
    "leases: {beta: 1.5}": "leases: beta must be > 0 and <= 1, got 1.5",
    "leases: {tbt_slo_s: 0.07}": "leases: tbt_slo_s: no such setting; known are ttl_s, horizon_s, tbt_slo_ms, beta",
    "cluster: {routers: 0}": "cluster: routers must be >= 1 and <= 64, got 0",
    "cluster: {routers: 65}": "cluster: routers must be >= 1 and <= 64, got 65",
    "objectives: {ttft_slo_ms: 0}": "objectives: ttft_slo_ms must be a finite number > 0, got 0.0",
    "objectives: {tbt_slo_ms: 4000000}": "objectives: tbt_slo_ms must be > 0 and <= 3600000 ms, got 4000000.0",
    "workload: {requests: 0}": "workload: requests must be >= 1, got 0",
    "workload: {speed: .nan}": "workload: speed must be a finite number > 0, got nan",
    "workload: {trace: a, generate: LPLD}": "workload: trace must be left out when a workload is generated, got 'a'",
    "a: [": "must be YAML",
}


@pytest.mark.parametrize("text", FILE_FAULTS)
def test_a_faulty_file_is_refused_in_one_line(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, text), {})
    assert FILE_FAULTS[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "none.yaml", {})


def test_sizes_follow_from_the_profile_unless_given():
    plain = build_cluster(config_of("--cluster", "1P1D1B"))
    assert [engine.name for engine in plain.engines] == ["p0", "d0", "b0"]
    assert {(engine.token_budget_tokens, engine.block_size_tokens) for engine in plain.engines} == {(2048, 16)}
    assert plain.settings.kv_bytes_per_token == plain.engines[0].kv_bytes_per_token > 0
    set_by_hand = build_cluster(
        config_of("--prefill-budget-tokens", "8192", "--kv-tokens", "3200", "--default-chunk-tokens", "0")
    )
    assert [engine.token_budget_tokens for engine in set_by_hand.engines] == [8192, 2048]
    assert [engine.kv_blocks for engine in set_by_hand.engines] == [200, 200]
    assert set_by_hand.engines[1].default_chunk_tokens is None


def test_a_governor_goes_by_its_own_objectives_or_else_by_those_of_the_load():
    def governor(*flags):
        return build_cluster(config_of("--cluster", "1B", "--governor-mode", "adaptive", *flags)).engines[0].governor

    assert build_cluster(config_of("--cluster", "1B")).engines[0].governor is None
    assert governor().objective == Objective(tbt_s=0.07)
    assert governor("--tpot-slo-ms", "25").objective == Objective(tpot_s=0.025)
    assert governor("--tpot-slo-ms", "25", "--governor-tbt-slo-ms", "50").objective == Objective(tbt_s=0.05)
    assert governor("--governor-beta", "0.8", "--governor-starvation-s", "2") == GovernorSettings(
        mode=GovernorMode.ADAPTIVE, objective=Objective(tbt_s=0.07), beta=0.8, starvation_s=2.0
    )


def test_a_governor_takes_the_place_of_the_default_chunk():
    def chunk(*flags):
        return build_cluster(config_of("--cluster", "1P1D", *flags)).engines[1].default_chunk_tokens

    assert chunk() == 512
    assert chunk("--governor-mode", "guarded") is None
    assert chunk("--governor-mode", "guarded", "--default-chunk-tokens", "256") == 256


def test_an_aggregated_policy_with_a_budget_is_stock_vllm():
    config = config_of("--cluster", "1B", "--governor-mode", "guarded", "--profile", "h100-llama3.1-8b")
    governed, stock, small = (
        build_cluster(_engines_of(Cell(config=config, policy=policy, rate_rps=None, seed=0))).engines[0]
        for policy in ("aggregated", "aggregated:2048", "aggregated:64")
    )
    assert (governed.governor is None, governed.token_budget_tokens) == (False, 8192)
    assert (stock.governor, stock.token_budget_tokens, stock.max_running_requests) == (None, 2048, 256)
    assert (small.token_budget_tokens, small.max_running_requests) == (64, 64)


def test_each_role_may_have_a_profile_of_its_own():
    cluster = build_cluster(config_of("--prefill-profile", "h100-llama3.1-8b"))
    assert cluster.prefill_model != cluster.decode_model
    assert cluster.engines[0].model == cluster.prefill_model


TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.0,374,44
2023-11-16 18:15:50.0,396,109
2023-11-16 18:15:54.0,879,55
2023-11-16 18:15:58.0,90,5
"""


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(TRACE)
    return str(path)


def arrivals(*flags, rate=None):
    return [request.arrival_s for request in build_workload(config_of(*flags).workload, rate, seed=0).requests]


def test_a_trace_is_sliced_limited_and_sped_up(trace):
    assert arrivals("--trace", trace) == [0, 4, 8, 12]
    assert arrivals("--trace", trace, "--speed", "2", "--limit", "3") == [0, 2, 4]
    assert arrivals("--trace", trace, "--slice-start-s", "4", "--slice-duration-s", "5") == [0, 4]
    assert arrivals("--trace", trace, "--gap-cap-s", "1") == [0, 1, 2, 3]
    assert arrivals("--trace", trace, rate=1.0) == [0, 1, 2, 3]
    clipped = build_workload(config_of("--trace", trace, "--max-prompt-tokens", "100").workload, None, seed=0)
    assert max(request.prompt_tokens for request in clipped.requests) == 100
    assert arrivals("--trace", trace, "--max-prompt-tokens", "100", "--drop-longer") == [0]


def test_rates_replay_the_same_requests():
    slow, fast = (build_workload(config_of("--workload", "LPLD", "--requests", "9").workload, rate, 3) for rate in (1.0, 2.0))
    assert [one.prompt_tokens for one in slow.requests] == [one.prompt_tokens for one in fast.requests]
    assert slow.duration_s == pytest.approx(2 * fast.duration_s)


INPUT_FAULTS = {
    "--cluster 2P": "nodes must have >= 1 that decode",
    "--cluster x": "nodes must be counts by role",
    "--rates 0": "sweep: rates must be finite numbers > 0, got 0.0",
    "--rates -1": "sweep: rates must be finite numbers > 0, got -1.0",
    "--rates fast": "--rates must be a list of numbers, got 'fast'",
    "--policy nope": "policy must be one of never",
    "--policy static-length:x": "policy 'static-length' must carry a whole number",
    "--profile nope": "profile must be one of a100-",
    "--profile ./nope.json": "nope.json: cannot be read",
    "--trace ./nope.csv": "nope.csv: cannot be read",
    "--format nope": "format must be auto or one of",
    "--slice-start-s 100": "must have at least one request",
    "--kv-tokens 0": "kv_tokens must be >= 1, got 0",
    "--block-size-tokens 0": "block_size_tokens must be >= 1, got 0",
    "--max-num-seqs 9000": "cluster: max_num_seqs must be <= the token budget of a step on p0 (2048), got 9000",
    "--max-num-seqs 0": "cluster: max_num_seqs must be >= 1, got 0",
    "--kv-tokens 1": "cluster: kv_tokens must be >= block_size_tokens (16), got 1",
    "--decode-budget-tokens 0": "cluster: decode_budget_tokens must be >= 1, got 0",
    "--step-factor 0": "step_factor must be in [0.001, 1000], got 0.0",
    "--governor-mode guarded --tbt-slo-ms 0.05": "objectives: tbt_slo_ms must be in 0.1..3600000 ms where the governor goes",
    "--governor-mode guarded --tpot-slo-ms 0.05": "objectives: tpot_slo_ms must be in 0.1..3600000 ms where the governor goes",
    "--nic-gb-per-s 0": "network: nic_gb_per_s must be > 0, got 0.0",
    "--rack x9=a": "network: racks must name nodes of the cluster (d0, p0), got 'x9'",
    "--rack x9": "--rack must be pairs as in NODE=RACK, got ['x9']",
    "--profile cpu-smollm2-135m --kv-tokens nope": "--kv-tokens must be a whole number, got 'nope'",
}


@pytest.mark.parametrize("flags", INPUT_FAULTS)
def test_a_faulty_input_is_found_before_anything_runs(flags, trace):
    given_trace = () if "--trace" in flags else ("--trace", trace)
    with pytest.raises(KairosError) as caught:
        check(config_of(*given_trace, *flags.split()))
    assert INPUT_FAULTS[flags] in str(caught.value)


def test_no_workload_is_an_error():
    with pytest.raises(ConfigError, match="workload must be given"):
        check(config_of())


def test_a_trace_without_rows_is_an_error(tmp_path):
    (tmp_path / "empty.csv").write_text(TRACE.splitlines()[0] + "\n")
    with pytest.raises(KairosError):
        check(config_of("--trace", str(tmp_path / "empty.csv")))


def test_the_nodes_of_a_cluster_are_bounded():
    with pytest.raises(ConfigError, match="nodes must be <= 10000 in all, got '99999P1D'"):
        NodeCounts.parse("99999P1D")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--policy aggregated", "policy 'aggregated' needs nodes of both phases, as in 4B, got none of 2"),
        ("--policy aggregated:0", "policy 'aggregated' must have a token budget >= 1 behind its colon, got 'aggregated:0'"),
        ("--policy crossflow --leases-ttl-s 0.1", "leases: ttl_s must be > heartbeat_period_s, which is 0.1, got 0.1"),
        ("--policy taichi --routers 2", "cluster: routers must be 1 under 'taichi', which moves decodes, got 2"),
        ("--policy kairo", "oracle, aggregated[:BUDGET], taichi[:CHUNK], got 'kairo'"),
    ],
)
def test_a_policy_that_cannot_run_here_is_refused(flags, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check(config_of("--workload", "LPLD", "--requests", "2", *flags.split()))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--trace {trace} --requests 5", "requests must be left out for a trace, of which limit takes the first, got 5"),
        ("--trace {trace} --scv 4", "scv must be left out for a trace with arrival times, got 4"),
        ("--trace {trace} --drop-longer", "max_prompt_tokens must be given where longer prompts are dropped, got nothing"),
        ("--trace {trace} --speed 2 --rates 4", "speed must be left out where rates are given, got 2"),
        ("--workload LPLD --format azure", "format must be left out when a workload is generated, got azure"),
        ("--governor-tpot-slo-ms 20", "governor: tpot_slo_ms must be left out where no mode turns the governor on, got 20.0"),
        ("--governor-beta measured", "governor: beta must be left out where no mode turns the governor on, got measured"),
        (
            "--leases-ttl-s 1 --policy never --policy kairos",
            "leases: ttl_s must be left out where no policy spends leases, as crossflow does, got 1.0",
        ),
        ("--leases-beta 0.9", "leases: beta must be left out where no policy spends leases, as crossflow does, got 0.9"),
        ("--workload LPLD --slice-start-s -1", "start_s must be a finite number >= 0, got -1.0"),
        ("--workload LPLD --gap-cap-s -1", "most_s must be a finite number >= 0, got -1.0"),
    ],
)
def test_a_setting_that_would_have_no_effect_is_refused(flags, message, tmp_path):
    trace = written(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,10\n1,10,10\n")
    with pytest.raises(KairosError, match=re.escape(message)):
        check(config_of(*flags.format(trace=trace).split()))


@pytest.mark.parametrize(
    "flags",
    [
        "--leases-ttl-s 1 --policy never --policy crossflow",
        "--governor-mode strict --governor-tpot-slo-ms 20",
        "--governor-beta 0.9 --leases-ttl-s 0.5",
    ],
)
def test_a_setting_that_one_policy_reads_or_that_is_at_its_default_is_taken(flags):
    check(config_of("--workload", "LPLD", "--requests", "2", *flags.split()))


def test_a_drawn_workload_is_shaped_as_a_trace_is():
    flags = "--workload Bursty --requests 50 --limit 20 --max-prompt-tokens 1000 --rates 4"
    workload = check(config_of(*flags.split()))
    assert len(workload.requests) == 20
    assert max(request.prompt_tokens for request in workload.requests) == 1000
    assert mean_rate_rps(workload) == pytest.approx(4)


@pytest.mark.parametrize("text", ["cluster: {kv_tokens: 1, kv_tokens: 2}", "cluster: {}\ncluster: {nodes: 1P1D}"])
def test_a_setting_given_twice_is_refused(text, tmp_path):
    with pytest.raises(ConfigError, match=r"keys must be all different, got '(kv_tokens|cluster)' twice"):
        load_config(written(tmp_path, text), {})


def test_one_file_serves_a_simulation_and_a_plan(tmp_path):
    path = written(tmp_path, "cluster: {nodes: 2P1D}\nplan: {attainment: 0.9}")
    assert load_config(path, {}).cluster.nodes == "2P1D"
