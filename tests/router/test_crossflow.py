"""`--deflect-policy crossflow` from the node's word to the deflected request, over real sockets, with stub engines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import pytest

from kairos_router.config import DeflectSettings, RouterConfig
from kairos_router.node_feed import FeedIntake, FeedSubscriber
from kairos_router.registry import Worker
from kairos_router.serve import Profiles, build_policy, new_router_id
from tests.router.cluster import Cluster, router_over, until
from tests.router.leasing_engine import KEY, LeasingEngine, leasing_engine
from tests.router.stubs import Stub, prefilled, running
from vllm_kairos.core.decision import Reason
from vllm_kairos.core.events import NodeReported
from vllm_kairos.core.lease import LeaseGone, Share
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.policies.registry import spends_leases
from vllm_kairos.core.view import ClusterView
from vllm_kairos.profiles import load_shipped

PROFILE = load_shipped("a100-llama3-8b")
PROMPT_TOKENS = 500
BUSY = NodeState(node_id="p", role=Role.PREFILL, queued_prompt_tokens=(8000,) * 6, queued_prefill_tokens=48_000)
PLENTY = Share(100_000, 2000, 4000)


@dataclass(slots=True)
class Front:
    """One router process over an engine that others may share."""

    up: Cluster
    view: ClusterView
    router_id: str

    async def ask(self) -> str:
        """Send one prompt; return the decision's reason."""
        got, _ = await self.up.complete(prompt=[1] * PROMPT_TOKENS, tokens=PROMPT_TOKENS)
        assert got == 200
        return str(self.up.records()[-1]["reason"])

    @property
    def node(self) -> Any:
        return next(node for node in self.view.nodes(monotonic()) if node.node_id == "d0")


@asynccontextmanager
async def front(engine: LeasingEngine, stub_p: Stub, stub_d: Stub, *, policy: str = "crossflow") -> AsyncIterator[Front]:
    """A router as `serve` builds it, but for the fleet."""
    view = ClusterView(stale_after_s=60.0)
    config = RouterConfig(prefill=(), decode=(), deflect=DeflectSettings(policy=policy))
    made = build_policy(config, Profiles(prefill=PROFILE, decode=PROFILE))
    router_id = new_router_id() if spends_leases(made) else ""
    stubs = ([stub_p], [])
    async with router_over(*stubs, view=view, policy=made, router_id=router_id) as up:
        up.parts.workers.add(Worker(name="d0", role=Role.DECODE, url=stub_d.url))
        view.apply(NodeReported(replace(BUSY, node_id=stub_p.name), "boot-p", monotonic()))
        intake = FeedIntake(view=view, registry=up.parts.workers, metrics=up.parts.metrics, key=KEY, router_id=router_id)
        subscriber = FeedSubscriber(intake, monotonic, router_id=router_id)
        await subscriber.follow("d0", (engine.endpoint,))
        up.decode.append(stub_d)
        try:
            one = Front(up, view, router_id)
            await until(lambda: not one.node.stale)
            if router_id and engine.capacity is not None:
                await until(lambda: one.node.lease is not None)
            yield one
        finally:
            await subscriber.close()


@asynccontextmanager
async def fronts(engine: LeasingEngine, *policies: str) -> AsyncIterator[list[Front]]:
    """Routers over one decode node and one prefill server with a queue."""
    async with AsyncExitStack() as stack:
        stub_p = await stack.enter_async_context(running(lambda received: prefilled()))
        stub_d = await stack.enter_async_context(running(engine.serve))
        yield [await stack.enter_async_context(front(engine, stub_p, stub_d, policy=policy)) for policy in policies]


async def test_deflections_spend_the_routers_share() -> None:
    with leasing_engine(PLENTY) as engine:
        async with fronts(engine, "crossflow") as (one,):
            assert engine.routers == {one.router_id}
            assert one.node.lease.share == PLENTY
            reasons = [await one.ask() for _ in range(3)]
            assert reasons == [Reason.SOONER] * 3
            assert (engine.admitted, engine.refused) == (3, [])
            claims = [leg.kv["kairos"]["lease"] for leg in one.up.decode[0].legs]
            assert {claim["router"] for claim in claims} == {one.router_id}
            assert all(claim["id"].startswith("boot-one-") for claim in claims)


async def test_what_is_on_its_way_is_taken_from_the_share() -> None:
    with leasing_engine(Share(1200, 2000, 4000)) as engine:
        engine.gate = asyncio.Event()
        async with fronts(engine, "crossflow") as (one,):
            asked = [asyncio.create_task(one.ask()) for _ in range(2)]
            await until(lambda: engine.admitted == 2)
            await until(lambda: one.node.lease.share.prefill_tokens == 1200 - 2 * PROMPT_TOKENS)
            engine.gate.set()
            assert await asyncio.gather(*asked) == [Reason.SOONER] * 2


async def test_routers_divide_what_a_node_grants() -> None:
    with leasing_engine(Share(3000, 2000, 4000)) as engine:
        async with fronts(engine, "crossflow", "crossflow") as (one, two):
            await until(lambda: engine.routers == {one.router_id, two.router_id})
            await until(lambda: one.node.lease.share.prefill_tokens == two.node.lease.share.prefill_tokens == 1500)
            assert {await one.ask(), await two.ask()} == {Reason.SOONER}
            assert set(engine.charged) == {one.router_id, two.router_id}


async def test_a_router_that_goes_leaves_its_share_to_the_other() -> None:
    with leasing_engine(Share(3000, 2000, 4000)) as engine:
        async with fronts(engine, "crossflow") as (one,):
            async with fronts(engine, "crossflow") as (two,):
                await until(lambda: one.node.lease.share.prefill_tokens == 1500)
                assert two.router_id != one.router_id
            await until(lambda: engine.routers == {one.router_id})
            await until(lambda: one.node.lease is not None and one.node.lease.share.prefill_tokens == 3000)


async def test_a_revoked_lease_reaches_the_router_without_a_heartbeat() -> None:
    with leasing_engine(PLENTY, period_s=0.02) as engine:
        async with fronts(engine, "crossflow") as (one,):
            assert await one.ask() == Reason.SOONER
            engine.revoke()
            await until(lambda: one.node.lease is None)
            assert one.node.speaks_leases


async def test_a_lease_gone_is_followed_by_the_prefill_path() -> None:
    with leasing_engine(PLENTY) as engine:
        async with fronts(engine, "crossflow") as (one,):
            engine.refuses = LeaseGone.UNKNOWN
            assert await one.ask() == Reason.LEASE_GONE
            (record,) = one.up.records()
            assert (record["decision"], record["lease_gone"]) == ("prefill-decode", "unknown")
            assert (len(one.up.prefill[0].received), engine.refused) == (1, [LeaseGone.UNKNOWN])
            engine.refuses = None
            await until(lambda: one.node.lease is not None)
            assert await one.ask() == Reason.SOONER  # under a newer lease


async def test_with_nodes_that_speak_of_no_leases_it_deflects_as_kairos_does() -> None:
    with leasing_engine(None) as engine:
        async with fronts(engine, "crossflow") as (one,):
            assert not one.node.speaks_leases
            assert await one.ask() == Reason.SOONER
            (leg,) = one.up.decode[0].legs
            assert set(leg.kv["kairos"]) == {"schema", "chunk_schedule"}


@pytest.mark.parametrize("policy", ["kairos", "always", "static-length:1000"])
async def test_an_old_router_with_lease_speaking_nodes_deflects_as_before(policy: str) -> None:
    with leasing_engine(PLENTY) as engine:
        async with fronts(engine, policy) as (one,):
            await one.ask()
            assert engine.routers == set()
            assert (one.node.speaks_leases, one.node.lease) == (True, None)
            (leg,) = one.up.decode[0].legs
            assert set(leg.kv["kairos"]) == {"schema", "chunk_schedule"}
            assert (engine.admitted, engine.refused) == (0, [])


async def test_old_and_new_routers_share_a_node() -> None:
    with leasing_engine(PLENTY) as engine:
        async with fronts(engine, "kairos", "crossflow") as (old, new):
            assert engine.routers == {new.router_id}
            assert new.node.lease.share == PLENTY
            assert [await old.ask(), await new.ask()] == [Reason.SOONER] * 2
            assert engine.admitted == 1


def test_every_process_has_its_own_id() -> None:
    assert len({new_router_id() for _ in range(100)}) == 100
