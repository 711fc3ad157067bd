"""A cluster whose servers are forked: they start, die, come back and end as others do."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from vllm_kairos.cluster import ClusterSpec, LocalCluster, local
from vllm_kairos.cluster.fork_server import ForkConnection
from vllm_kairos.cluster.machine import choose_ports
from vllm_kairos.cluster.plan import ClusterPlan, ProcessPlan
from vllm_kairos.errors import ClusterError

# The emulation's fork server with something lighter than vLLM to become.
FORK_SERVER = """
import http.server, os, socket, sys
from vllm_kairos.emulation.fork_server import ForkServer
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
if ForkServer(socket.socket(fileno=os.dup(0))).run() is not None:
    print("serving on", sys.argv[1], flush=True)
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def _server(name: str) -> ProcessPlan:
    port = choose_ports(1, None)[0]
    return ProcessPlan(name=name, argv=(sys.executable, "-m", "stand-in", str(port)), environment={}, port=port)


def _cluster(monkeypatch: pytest.MonkeyPatch, log_dir: Path, fork_server: str = FORK_SERVER) -> LocalCluster:
    plan = ClusterPlan(
        prefill=(_server("p0"),),
        decode=(_server("d0"),),
        model="tiny",
        served_model_name="tiny",
        router_port=1,
        metrics_port=1,
        fork_server=ProcessPlan(name="fork-server", argv=(sys.executable, "-c", fork_server), environment={}, port=0),
    )
    monkeypatch.setattr(local, "make_plan", lambda spec: plan)
    monkeypatch.setattr(local, "check_memory", lambda servers, each_gib: None)
    return LocalCluster(ClusterSpec(router=False, log_dir=str(log_dir)))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def _is_gone_soon(pid: int) -> bool:
    deadline_s = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return not _alive(pid)


async def test_servers_have_their_own_pids_and_logs_and_end_with_the_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with _cluster(monkeypatch, tmp_path) as cluster:
        pids = [cluster.pid(name) for name in ("p0", "d0", "fork-server")]
        assert len({os.getsid(pid) for pid in pids}) == 3
        for server in cluster.plan.servers:
            assert (tmp_path / f"{server.name}-output.log").read_text() == f"serving on {server.port}\n"
    assert not any(_alive(pid) for pid in pids)


async def test_a_killed_server_is_told_of_and_can_be_restarted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with _cluster(monkeypatch, tmp_path) as cluster:
        before = cluster.pid("d0")
        os.kill(before, signal.SIGKILL)
        with pytest.raises(ClusterError, match=f"d0 ended with status -{signal.SIGKILL.value}"):
            await cluster.watch()
        await cluster.restart("d0")
        assert cluster.pid("d0") != before


async def test_a_fork_server_that_dies_at_start_up_is_told_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = _cluster(monkeypatch, tmp_path, "raise ValueError('no such library')")
    with pytest.raises(ClusterError, match="fork-server ended with status 1: ValueError: no such library"):
        await cluster.start()


async def test_a_fork_server_that_dies_later_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with _cluster(monkeypatch, tmp_path) as cluster:
        os.kill(cluster.pid("fork-server"), signal.SIGKILL)
        with pytest.raises(ClusterError, match="ended with status -"):
            await cluster.watch()
        assert await asyncio.to_thread(_is_gone_soon, cluster.pid("p0")), "its servers end with it"


def test_a_fork_server_that_is_gone_starts_nothing() -> None:
    forks = ForkConnection()
    forks.theirs.close()
    with pytest.raises(ClusterError, match="fork server must answer"):
        forks.start((), {}, "log", frozenset())
    forks.close()
