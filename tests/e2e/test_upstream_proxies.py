"""vLLM's own proxies, unchanged, in front of our servers."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.client import Client
from tests.e2e.prompts import LONG, SHORT, distinct
from vllm_kairos.cluster import LocalCluster
from vllm_kairos.cluster.machine import choose_ports
from vllm_kairos.cluster.plan import ProcessPlan
from vllm_kairos.cluster.process import Child, stop

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
TOY = "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
EXAMPLE = "examples/disaggregated/disaggregated_serving/disagg_proxy_demo.py"


@pytest.fixture(scope="session")
def vllm_source() -> Path:
    done = subprocess.run([ROOT / "ci/vllm_source.sh"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


@pytest.mark.parametrize("script", [TOY, EXAMPLE], ids=["toy", "example"])
async def test_answers_through_a_proxy_are_one_servers(
    cluster: LocalCluster, prefill: Client, vllm_source: Path, tmp_path: Path, script: str
) -> None:
    port = choose_ports(1, None)[0]
    plan = ProcessPlan(name="proxy", argv=_argv(vllm_source / script, cluster, port), environment={}, port=port)
    child = Child(plan, tmp_path / "proxy.log")
    try:
        async with Client(plan.url, prefill.model) as proxy:
            await _until_listening(proxy, child)
            for prompt in (distinct(SHORT, script), distinct(LONG, script)):
                through, direct = await proxy.complete(prompt), await prefill.complete(prompt)
                assert through.status == 200, child.log.read_text()
                assert through.texts == direct.texts
    finally:
        stop([child])


def _argv(script: Path, cluster: LocalCluster, port: int) -> Sequence[str]:
    first, second = cluster.plan.prefill[0].port, cluster.plan.decode[0].port
    if script.name == Path(TOY).name:
        hosts = ["--prefiller-hosts", "127.0.0.1", "--decoder-hosts", "127.0.0.1"]
        workers = [*hosts, "--prefiller-ports", str(first), "--decoder-ports", str(second)]
    else:
        workers = [
            "--prefill",
            f"127.0.0.1:{first}",
            "--decode",
            f"127.0.0.1:{second}",
            "--model",
            cluster.plan.served_model_name,
        ]
    return (sys.executable, str(script), *workers, "--port", str(port))


async def _until_listening(proxy: Client, child: Child) -> None:
    for _ in range(300):
        assert child.exit_status() is None, child.log.read_text()
        try:
            async with proxy.session.get("/healthcheck"):
                return
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.2)
    pytest.fail("the proxy does not listen after 60 s")
