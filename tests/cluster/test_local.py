"""A cluster of stand-in processes: it starts, fails and ends as a real one does."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from vllm_kairos.cluster import ClusterSpec, LocalCluster, local
from vllm_kairos.cluster.machine import choose_ports
from vllm_kairos.cluster.plan import ClusterPlan, ProcessPlan
from vllm_kairos.cluster.process import Child, stop
from vllm_kairos.errors import ClusterError

# Answers /health, and has a child of its own that ignores SIGTERM, as an engine process might.
SERVER = """
import http.server, subprocess, sys
ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
grandchild = subprocess.Popen([sys.executable, "-c", ignore])
print("grandchild", grandchild.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DIES = "import sys; print('INFO fine'); print('(Worker) ValueError: no such thing: 7'); sys.exit(3)"


def _process(name: str, code: str) -> ProcessPlan:
    port = choose_ports(1, None)[0]
    return ProcessPlan(name=name, argv=(sys.executable, "-c", code, str(port)), environment={}, port=port)


def _cluster(monkeypatch: pytest.MonkeyPatch, log_dir: Path, prefill: str, decode: str, **fields: float) -> LocalCluster:
    ports = choose_ports(2, None)
    plan = ClusterPlan(
        prefill=(_process("p0", prefill),),
        decode=(_process("d0", decode),),
        model="tiny",
        served_model_name="tiny",
        router_port=ports[0],
        metrics_port=ports[1],
    )
    monkeypatch.setattr(local, "make_plan", lambda spec: plan)
    monkeypatch.setattr(local, "check_memory", lambda servers, each_gib: None)
    return LocalCluster(ClusterSpec(router=False, log_dir=str(log_dir), **fields))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def _grandchild(log: Path) -> int:
    return int(log.read_text().split()[1])


async def test_everything_a_cluster_started_is_gone_after_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vllm_kairos.cluster.process.GRACE_S", 1.0)
    async with _cluster(monkeypatch, tmp_path, SERVER, SERVER) as cluster:
        pids = [
            cluster.pid("p0"),
            cluster.pid("d0"),
            _grandchild(tmp_path / "p0-output.log"),
            _grandchild(tmp_path / "d0-output.log"),
        ]
        assert all(_alive(pid) for pid in pids)
    await asyncio.sleep(0.1)
    assert not any(_alive(pid) for pid in pids)


async def test_a_death_at_start_up_is_told_with_its_cause_and_ends_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = _cluster(monkeypatch, tmp_path, SERVER, DIES)
    with pytest.raises(ClusterError, match=r"d0 ended with status 3: ValueError: no such thing: 7 \(log: .*d0-output\.log\)"):
        await cluster.start()
    with pytest.raises(KeyError):
        cluster.pid("p0")


async def test_a_death_later_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with _cluster(monkeypatch, tmp_path, SERVER, SERVER) as cluster:
        os.kill(cluster.pid("d0"), 9)
        with pytest.raises(ClusterError, match="d0 ended with status -9"):
            await cluster.watch()


async def test_a_server_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = "import time; time.sleep(600)"
    cluster = _cluster(monkeypatch, tmp_path, silent, silent, startup_timeout_s=0.3)
    with pytest.raises(ClusterError, match=r"p0 must be healthy within 0\.3 s; its log is .*p0-output\.log"):
        await cluster.start()


def test_error_lines_are_reported_once(tmp_path: Path) -> None:
    code = "print('INFO 1'); print('ERROR 11-30 [core.py] broke'); import time; time.sleep(600)"
    child = Child(ProcessPlan(name="x", argv=(sys.executable, "-u", "-c", code), environment={}, port=1), tmp_path / "x.log")
    try:
        found: list[str] = []
        while not found:
            found = child.new_error_lines()
            time.sleep(0.02)
        assert found == ["ERROR 11-30 [core.py] broke"]
        assert child.new_error_lines() == []
    finally:
        stop([child])
