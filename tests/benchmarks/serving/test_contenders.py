"""Command lines of every contender."""

import sys
from pathlib import Path

import pytest

from benchmarks.serving.contenders import CONTENDERS, Front, Programs, find, free_ports, front_plan, front_plans
from vllm_kairos.cluster.plan import ClusterPlan, ProcessPlan
from vllm_kairos.cluster.spec import ClusterSpec
from vllm_kairos.errors import ConfigError

PROGRAMS = Programs(vllm_router=Path("VR"), toy_proxy=Path("TOY"))


def _server(name: str, port: int) -> ProcessPlan:
    return ProcessPlan(name=name, argv=(), environment={}, port=port)


CLUSTER = ClusterPlan(
    prefill=(_server("p0", 1), _server("p1", 2)),
    decode=(_server("d0", 3), _server("d1", 4)),
    model="no-such-folder",
    served_model_name="model",
    router_port=0,
    metrics_port=0,
)
P = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
D = ["http://127.0.0.1:3", "http://127.0.0.1:4"]


def _argv(name: str, spec: ClusterSpec | None = None) -> list[str]:
    plan = front_plan(CONTENDERS[name], spec or ClusterSpec(), CLUSTER, PROGRAMS, ports=(90, 91), log_dir=Path("LOG"))
    assert plan.url == "http://127.0.0.1:90"
    return list(plan.argv)


def test_our_router_gets_the_policy_and_the_settings_own_flags():
    spec = ClusterSpec(router_args=("--deflect-beta", "0.99"))
    words = [sys.executable, "-m", "vllm_kairos", "router", "--prefill", P[0], "--prefill", P[1], "--decode", D[0]]
    words += ["--decode", D[1], "--host", "127.0.0.1", "--port", "90", "--prometheus-port", "91", "--log-dir", "LOG"]
    words += ["--decision-headers", "--deflect-policy", "kairos", "--deflect-beta", "0.99"]
    assert _argv("kairos", spec) == words


def test_vllm_router_disaggregated():
    words = ["VR", "--vllm-pd-disaggregation", "--kv-connector", "nixl", "--prefill", P[0], "none", "--prefill", P[1], "none"]
    words += ["--decode", D[0], "--decode", D[1], "--policy", "round_robin", "--host", "127.0.0.1", "--port", "90"]
    words += ["--prometheus-port", "91", "--worker-startup-check-interval", "1"]
    assert _argv("vllm-router-round-robin") == words


def test_aggregated_is_vllm_router_before_all_four():
    words = ["VR", "--worker-urls", *P, *D, "--policy", "round_robin", "--host", "127.0.0.1", "--port", "90"]
    assert _argv("aggregated") == [*words, "--prometheus-port", "91", "--worker-startup-check-interval", "1"]


def test_toy_proxy():
    words = [sys.executable, "TOY", "--host", "127.0.0.1", "--port", "90", "--prefiller-hosts", "127.0.0.1", "127.0.0.1"]
    words += ["--prefiller-ports", "1", "2", "--decoder-hosts", "127.0.0.1", "127.0.0.1", "--decoder-ports", "3", "4"]
    assert _argv("toy-proxy") == words


@pytest.mark.parametrize("policy", ["round_robin", "power_of_two", "cache_aware"])
def test_every_policy_of_vllm_router_is_there(policy):
    contender = CONTENDERS[f"vllm-router-{policy.replace('_', '-')}"]
    assert (contender.front, contender.policy, contender.disaggregated) == (Front.VLLM_ROUTER, policy, True)


def test_any_policy_of_our_router_can_be_named():
    (found,) = find(["kairos:static-length:512"], Programs())
    assert (found.front, found.policy) == (Front.KAIROS, "static-length:512")


def test_only_the_toy_proxy_has_another_health_path():
    assert {name for name, each in CONTENDERS.items() if each.health_path != "/health"} == {"toy-proxy"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "one or more"),
        (["never", "never"], "different"),
        (["nobody"], "must be one of never"),
        (["aggregated"], "--vllm-router must be the path"),
        (["toy-proxy"], "--toy-proxy must be the path"),
    ],
)
def test_what_cannot_be_run_is_refused(names, message):
    with pytest.raises(ConfigError, match=message):
        find(names, Programs())


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="no-such-router"):
        find(["aggregated"], Programs(vllm_router=Path("no-such-router")))


def test_a_contenders_own_flags_follow_the_settings():
    words = _argv("kairos-4-per-node", ClusterSpec(router_args=("--deflect-per-node", "2")))
    assert words[words.index("--deflect-policy") + 1] == "kairos"
    assert [word for at, word in enumerate(words) if words[at - 1] == "--deflect-per-node"] == ["2", "4"]  # the last one counts


@pytest.mark.parametrize("policy", ["kairos", "crossflow"])
def test_two_routers_differ_in_ports_and_logs_alone(policy):
    contender = CONTENDERS[f"{policy}-two-routers"]
    plans = front_plans(contender, ClusterSpec(), CLUSTER, PROGRAMS, ports=(90, 91, 92, 93), log_dir=Path("LOG"))
    assert [plan.process.url for plan in plans] == ["http://127.0.0.1:90", "http://127.0.0.1:92"]
    assert len({plan.log_dir for plan in plans}) == 2
    first, second = (plan.process.argv for plan in plans)
    places = {"90": "92", "91": "93", "LOG/0": "LOG/1"}
    assert [places.get(word, word) for word in first] == list(second)
    assert first[first.index("--deflect-policy") + 1] == policy


def test_a_single_front_logs_in_the_folder_itself():
    (plan,) = front_plans(CONTENDERS["crossflow"], ClusterSpec(), CLUSTER, PROGRAMS, ports=(90, 91), log_dir=Path("LOG"))
    assert (plan.process.port, plan.log_dir) == (90, Path("LOG"))


@pytest.mark.parametrize(("name", "count"), [("crossflow", 2), ("crossflow-two-routers", 4)])
def test_every_process_has_ports_of_its_own(name, count):
    ports = free_ports(CONTENDERS[name])
    assert len(set(ports)) == len(ports) == count
