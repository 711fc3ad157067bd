"""The exact processes that a spec becomes."""

import json
import os
import socket
from pathlib import Path

import pytest

from vllm_kairos.cluster.machine import check_memory, choose_ports, parse_cpus, spread_cpus
from vllm_kairos.cluster.plan import ProcessPlan, make_plan, router_plan
from vllm_kairos.cluster.spec import ClusterSpec, Device, Scheduler
from vllm_kairos.errors import ClusterError, ConfigError


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    return str(folder)


def _value(plan: ProcessPlan, flag: str) -> str:
    return plan.argv[plan.argv.index(flag) + 1]


def test_servers_get_their_role_and_no_port_twice(model: str) -> None:
    plan = make_plan(ClusterSpec(prefill=2, decode=2, model=model))
    assert [server.name for server in plan.servers] == ["p0", "p1", "d0", "d1"]
    for server in plan.servers:
        settings = json.loads(_value(server, "--additional-config"))["kairos"]
        transfer = json.loads(_value(server, "--kv-transfer-config"))
        is_prefill = server in plan.prefill
        assert settings["node_id"] == server.name
        assert settings["role"] == ("prefill" if is_prefill else "decode")
        assert transfer["kv_connector"] == "KairosNixlConnector"
        assert transfer["kv_role"] == ("kv_producer" if is_prefill else "kv_consumer")
    ports = [port for server in plan.servers for port in _ports(server)] + [plan.router_port, plan.metrics_port]
    assert len(set(ports)) == len(ports) == 14


def _ports(server: ProcessPlan) -> list[int]:
    state = json.loads(_value(server, "--additional-config"))["kairos"]["state_endpoint"]
    return [server.port, int(server.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"]), int(state.rsplit(":")[-1])]


def test_stock_servers_carry_nothing_of_ours(model: str) -> None:
    for server in make_plan(ClusterSpec(model=model, scheduler=Scheduler.STOCK)).servers:
        assert "--scheduler-cls" not in server.argv
        assert "--additional-config" not in server.argv
        assert json.loads(_value(server, "--kv-transfer-config"))["kv_connector"] == "NixlConnector"


def test_aggregated_servers_stand_alone(model: str) -> None:
    spec = ClusterSpec(model=model, prefill=0, router=False, aggregated=True, engine={"step_record": True})
    (server,) = make_plan(spec).servers
    assert "--kv-transfer-config" not in server.argv
    assert json.loads(_value(server, "--additional-config")) == {"kairos": {"step_record": True}}


def test_servers_write_steps_to_files_of_their_own(model: str) -> None:
    record = {"tbt_slo_s": 0.1, "file": "/logs/steps"}
    plan = make_plan(ClusterSpec(model=model, engine={"step_record": record}))
    for server in plan.servers:
        settings = json.loads(_value(server, "--additional-config"))["kairos"]
        assert settings["step_record"] == record | {"file": f"/logs/steps.{server.name}"}


def test_cpu_servers_are_pinned_and_cuda_servers_see_their_devices(model: str) -> None:
    cpu = str(min(os.sched_getaffinity(0)))
    first, second = make_plan(ClusterSpec(model=model, pins=(cpu, cpu))).servers
    assert first.cpus == second.cpus == {int(cpu)}
    assert first.environment["OMP_NUM_THREADS"] == "1"
    first, second = make_plan(ClusterSpec(model=model, device=Device.CUDA, pins=("0,1", "2"))).servers
    assert (first.environment["CUDA_VISIBLE_DEVICES"], second.environment["CUDA_VISIBLE_DEVICES"]) == ("0,1", "2")
    assert not first.cpus
    assert "--enforce-eager" not in first.argv


def test_extra_flags_go_where_they_are_meant(model: str) -> None:
    spec = ClusterSpec(model=model, vllm_args=("--seed", "1"), prefill_args=("--a",), decode_args=("--b",))
    first, second = make_plan(spec).servers
    assert first.argv[-3:] == ("--seed", "1", "--a")
    assert second.argv[-3:] == ("--seed", "1", "--b")


def test_the_router_knows_every_server(model: str, tmp_path: Path) -> None:
    spec = ClusterSpec(prefill=1, decode=2, model=model, router_args=("--max-retries", "2"))
    plan = make_plan(spec)
    router = router_plan(spec, plan, policy="static-queue:2", log_dir=tmp_path)
    assert [value for flag, value in zip(router.argv, router.argv[1:], strict=False) if flag == "--decode"] == [
        server.url for server in plan.decode
    ]
    assert _value(router, "--prefill") == plan.prefill[0].url
    assert _value(router, "--deflect-policy") == "static-queue:2"
    assert _value(router, "--tokenizer") == model
    assert router.argv[-2:] == ("--max-retries", "2")
    assert "--decision-headers" in router.argv, "kairos replay reports decisions"


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port} must be free"):
            choose_ports(1, port)


@pytest.mark.parametrize("text", ["", "a", "0-", "-1", "0,,1", "99999"])
def test_a_bad_cpu_list_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="pins must"):
        parse_cpus(text)


@pytest.mark.parametrize("servers", [1, 2, 3, 500])
def test_every_server_gets_a_cpu(servers: int) -> None:
    shares = spread_cpus(servers)
    assert len(shares) == servers
    assert all(share and share <= os.sched_getaffinity(0) for share in shares)


def test_too_little_memory_is_named() -> None:
    with pytest.raises(ClusterError, match=r"memory must be at least .* GiB for 10000 servers, got .* GiB free"):
        check_memory(10_000, 1)


@pytest.mark.parametrize("name", ["/no/such/model", "./nothing", "one/two/three", "plainname"])
def test_a_model_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ClusterError, match=r"model must be a directory with a config\.json or an owner/name, got"):
        make_plan(ClusterSpec(model=name))


def test_chosen_ports_differ_and_are_none_of_outgoing_connections() -> None:
    """A port that the system may hand out meanwhile would be taken when its server comes to bind it."""
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = choose_ports(40, None)
    assert len(set(ports)) == 40
    assert all(port < first_outgoing for port in ports) or first_outgoing < 10_100
