"""A router's process and a real scheduler: what one grants the other spends, over a real socket and through real bodies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.builder import make_request, run_model
from tests.engine.test_node_state import free_endpoint
from tests.router.cluster import until
from tests.router.leasing_engine import KEY
from tests.router.stubs import Received, Reply, completed, decode_server
from tests.router.test_crossflow import PROMPT_TOKENS, fronts
from vllm_kairos.core.decision import Reason
from vllm_kairos.core.lease import Share
from vllm_kairos.wire.refusal import LEASE_GONE_STATUS


class Engine:
    """Serves what a router sends to one decode node by the real scheduler, each request to its end."""

    capacity = Share(1, 1, 1)  # it speaks of leases

    def __init__(self, scheduler: Any, endpoint: str) -> None:
        self.scheduler, self.endpoint, self._requests = scheduler, endpoint, 0
        self.claims: list[Any] = []

    @property
    def keeper(self) -> Any:
        return self.scheduler._kairos_leases

    def serve(self, received: Received) -> Reply:
        if received.raw and received.is_release:
            return decode_server(received)
        if received.kv and "kairos" in received.kv:
            self.claims.append(received.kv["kairos"].get("lease"))
            self._requests += 1
            return self._computed(make_request(f"Q{self._requests}", PROMPT_TOKENS, max_tokens=3, transfer=received.kv))
        return decode_server(received)

    def _computed(self, request: Any) -> Reply:
        self.scheduler.add_request(request)
        while self.scheduler.has_requests():
            output = self.scheduler.schedule()
            for results in self.scheduler.update_from_output(output, run_model(self.scheduler, output)).values():
                for one in results.outputs:
                    if str(one.finish_reason) == "error":
                        error = {"message": one.stop_reason, "type": "InternalServerError", "code": LEASE_GONE_STATUS}
                        return Reply(status=LEASE_GONE_STATUS, json={"error": error})
        return completed()


@pytest.fixture
def engine(build: Any, tmp_path: Path) -> Iterator[Engine]:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    endpoint = free_endpoint()
    kairos = {"node_id": "d0", "role": "decode", "state_endpoint": endpoint, "state_key_file": str(key)}
    kairos |= {"heartbeat_period_s": 0.02, "leases": {"profile": "a100-llama3-8b", "ttl_s": 30.0}}
    scheduler = build(kairos=kairos, blocks=2000)
    yield Engine(scheduler, endpoint)
    scheduler.shutdown()


async def test_a_router_spends_what_the_scheduler_grants(engine: Engine) -> None:
    async with fronts(engine, "crossflow") as (one,):  # type: ignore[arg-type]
        assert [await one.ask() for _ in range(3)] == [Reason.SOONER] * 3
        assert {claim["router"] for claim in engine.claims} == {one.router_id}
        assert engine.keeper.counts.admitted == 3
        assert engine.keeper.counts.admitted_tokens == 3 * PROMPT_TOKENS


async def test_what_the_scheduler_refuses_takes_the_prefill_path(engine: Engine) -> None:
    async with fronts(engine, "crossflow") as (one,):  # type: ignore[arg-type]
        admit = engine.keeper._ledger.admit
        engine.keeper._ledger.admit = lambda *arguments: admit(arguments[0], "other-1", *arguments[2:])
        assert await one.ask() == Reason.LEASE_GONE
        assert one.up.records()[-1]["lease_gone"] == "unknown"
        assert engine.keeper.counts.refused["unknown"] == 1
        assert not engine.scheduler.requests
        engine.keeper._ledger.admit = admit
        await until(lambda: one.node.lease is not None)
        assert await one.ask() == Reason.SOONER


async def test_an_old_router_deflects_to_it_as_before(engine: Engine) -> None:
    async with fronts(engine, "kairos") as (one,):  # type: ignore[arg-type]
        assert await one.ask() == Reason.SOONER
        assert (one.node.lease, engine.claims) == (None, [None])
