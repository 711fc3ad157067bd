"""One cluster for the whole session: a prefill and a decode server in float32 and a router in front."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.e2e.client import Client
from vllm_kairos.cluster import ClusterSpec, LocalCluster

DEFLECT_BELOW_TOKENS = 200
"""The router's rule in these tests, so that a prompt's length says which path it takes."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    # float32: in bfloat16 another split of a prompt may round to another token.
    spec = ClusterSpec(dtype="float32", policy=f"static-length:{DEFLECT_BELOW_TOKENS}", router_args=("--decision-headers",))
    local = LocalCluster(spec, report=lambda name, text: print(f"{name}: {text}"))  # noqa: T201 (seen when it fails)
    asyncio.run(local.start())
    yield local
    local.stop()


@pytest_asyncio.fixture
async def router(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with Client(cluster.router_url, cluster.plan.served_model_name) as client:
        yield client


@pytest_asyncio.fixture
async def prefill(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with Client(cluster.plan.prefill[0].url, cluster.plan.served_model_name) as client:
        yield client


@pytest_asyncio.fixture
async def decode(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with Client(cluster.plan.decode[0].url, cluster.plan.served_model_name) as client:
        yield client
