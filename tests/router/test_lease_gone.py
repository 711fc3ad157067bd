"""What follows when a decode server answers that a deflected request's lease is gone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from kairos_router.breaker import BreakerState
from kairos_router.config import RetrySettings
from tests.router.cluster import QUICK, TwoLegs, cluster
from tests.router.stubs import Received, Reply, Script, chat_events, decode_server, event, status
from vllm_kairos.core.decision import Assign, Claim, Decision, Reason, Reject, RejectReason
from vllm_kairos.core.events import LeaseRefused
from vllm_kairos.core.lease import LeaseGone, Share
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.shapes import RequestShape, Route
from vllm_kairos.wire.refusal import LEASE_GONE_STATUS, refusal_message

GONE = {"error": {"message": refusal_message("spent"), "type": "InternalServerError", "param": None, "code": LEASE_GONE_STATUS}}
OTHER_CONFLICT = {"error": {"message": "conflict", "code": LEASE_GONE_STATUS}}


@dataclass(slots=True)
class Leasing(TwoLegs):
    """Deflects under a lease, a new one each time, unless the request is bound to a path."""

    unavailable: str = "fail"
    leases: Iterator[int] = field(default_factory=lambda: count(1))

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        self.local_when_no_prefill = self.unavailable != "fail"
        decision = TwoLegs.decide(self, request, nodes, now_s)
        prefill = any(node.accepting and node.role.prefills for node in nodes)
        if request.forced_route is Route.REMOTE:
            kept = Reject(reason=RejectReason.NO_PREFILL_NODE) if not prefill else decision
            return replace(kept, reason=request.forced_reason) if isinstance(kept, Assign) else kept
        if not isinstance(decision, Assign) or not (prefill or self.unavailable == "deflect-bounded"):
            return decision
        return replace(self._local(decision.decode_node, Reason.SOONER), claim=Claim(f"b-{next(self.leases)}", Share(10, 1, 5)))


def refuses(body: Any = GONE, *, times: int = 10**9) -> Script:
    """A decode server that admits no lease for so many `times`: as a status, or at the head of a stream."""
    left = [times]

    def answer(received: Received) -> Reply:
        ours = (received.kv or {}).get("kairos", {}) if received.raw else {}
        if "lease" not in ours or not left[0]:
            return decode_server(received)
        left[0] -= 1
        if received.body.get("stream"):
            return Reply(parts=[event(body), b"data: [DONE]\n\n"])
        return Reply(status=body["error"]["code"], json=body)

    return answer


def leasing(**more: Any) -> Any:
    return cluster(policy=Leasing(unavailable=more.pop("unavailable", "fail")), router_id="router-1", **more)


async def test_a_deflected_request_names_its_lease_and_its_router() -> None:
    async with leasing(decode=[decode_server]) as up:
        assert (await up.complete())[0] == 200
        assert up.decode[0].legs[0].kv["kairos"]["lease"] == {"id": "b-1", "router": "router-1"}
        assert up.prefill[0].received == []
        assert up.records()[0].get("lease_gone") is None


async def test_the_request_takes_the_prefill_path_and_the_client_notices_nothing() -> None:
    async with leasing(decode=[refuses()]) as up:
        got, body = await up.complete()
        assert (got, body["choices"][0]["text"]) == (200, "Hello world")
        refused, served = up.decode[0].legs
        assert refused.kv["kairos"]["lease"]["id"] == "b-1"
        assert "remote_engine_id" in served.kv
        (record,) = up.records()
        assert (record["decision"], record["reason"], record["lease_gone"]) == ("prefill-decode", "lease-gone", "spent")
        assert (record.get("retries"), record.get("error")) == (None, None)
        labels = f'node="{up.decode[0].name}",reason="spent"'
        assert up.metric(f"kairos_router_leases_gone_total{{{labels}}}") == 1
        decided = 'decision_type="prefill-decode",model_name="m",reason="lease-gone"'
        assert up.metric(f"kairos_router_decisions_total{{{decided}}}") == 1
        assert up.metric('kairos_router_errors_total{kind="decode-lease-gone"}') == 0


async def test_the_view_hears_of_it_and_the_reservation_is_released_first() -> None:
    async with leasing(decode=[refuses()]) as up:
        await up.complete()
        names = [type(one).__name__ for one in up.view.events]
        at = names.index("LeaseRefused")
        assert names[at - 2 : at] == ["Dispatched", "Ended"]
        assert up.view.events[at] == LeaseRefused(up.decode[0].name, "b-1")


async def test_a_stream_that_begins_with_it_is_begun_anew() -> None:
    async with leasing(decode=[refuses()]) as up:
        for path, body in (
            ("/v1/chat/completions", {"model": "m", "messages": [], "stream": True}),
            ("/v1/completions", {"model": "m", "prompt": "x", "stream": True}),
        ):
            async with up.session.post(up.url + path, json=body) as response:
                assert (response.status, await response.read()) == (200, b"".join(chat_events("Hello", " world")))
        assert [record["reason"] for record in up.records()] == ["lease-gone"] * 2


async def test_the_server_is_not_blamed() -> None:
    async with leasing(decode=[refuses()]) as up:
        for _ in range(12):
            assert (await up.complete())[0] == 200
        assert up.parts.breakers.state(up.decode[0].name) is BreakerState.CLOSED


async def test_another_error_of_that_status_is_the_clients() -> None:
    async with leasing(decode=[refuses(OTHER_CONFLICT)]) as up:
        got, body = await up.complete()
        assert (got, body) == (LEASE_GONE_STATUS, OTHER_CONFLICT)
        assert up.prefill[0].received == []


async def test_one_who_claimed_nothing_is_told_as_it_was_said() -> None:
    gone = lambda received: Reply(status=LEASE_GONE_STATUS, json=GONE)  # noqa: E731
    async with cluster(decode=[gone]) as up:
        assert (await up.complete())[0] == LEASE_GONE_STATUS
        assert len(up.decode[0].legs) == 1


@pytest.mark.parametrize(("unavailable", "expected"), [("fail", 503), ("deflect-bounded", 503), ("deflect", 200)])
async def test_without_a_prefill_server_the_operators_setting_holds(unavailable: str, expected: int) -> None:
    retry = RetrySettings(max_retries=2, initial_backoff_s=0.001, max_backoff_s=0.002)
    async with leasing(prefill=[status(500)], decode=[refuses()], unavailable=unavailable, retry=retry) as up:
        got, body = await up.complete()
        assert got == expected
        claimed = ["lease" in leg.kv["kairos"] for leg in up.decode[0].legs]
        if unavailable == "deflect":
            assert claimed == [True, False]
        elif unavailable == "fail":
            assert (claimed, body["error"]["reason"]) == ([True], "no-safe-node")
        else:  # newer leases are tried, but not for ever
            assert (claimed, body["error"]["reason"]) == ([True] * 4, "decode-lease-gone")


async def test_a_newer_lease_may_serve_it_where_there_is_no_prefill_server() -> None:
    async with leasing(prefill=[status(500)], decode=[refuses(times=2)], unavailable="deflect-bounded", retry=QUICK) as up:
        assert (await up.complete())[0] == 200
        assert [leg.kv["kairos"]["lease"]["id"] for leg in up.decode[0].legs] == ["b-1", "b-2", "b-3"]
        assert (up.records()[0]["decision"], up.records()[0]["lease_gone"]) == ("decode-only", "spent")


async def test_an_unknown_reason_is_one_label() -> None:
    strange = {"error": {"message": refusal_message("too-late"), "code": LEASE_GONE_STATUS}}
    async with leasing(decode=[refuses(strange)]) as up:
        assert (await up.complete())[0] == 200
        assert up.metric(f'kairos_router_leases_gone_total{{node="{up.decode[0].name}",reason="other"}}') == 1


@pytest.mark.parametrize("reason", list(LeaseGone))
async def test_every_reason_of_a_node_is_one_of_ours(reason: LeaseGone) -> None:
    said = {"error": {"message": refusal_message(reason), "code": LEASE_GONE_STATUS}}
    async with leasing(decode=[refuses(said)]) as up:
        assert (await up.complete())[0] == 200
        assert up.records()[0]["lease_gone"] == reason
        assert up.metric(f'kairos_router_leases_gone_total{{node="{up.decode[0].name}",reason="{reason}"}}') == 1
