"""Each row of the failure table, driven through a running router."""

import asyncio
from pathlib import Path

import pytest

from kairos_router import failures
from kairos_router.breaker import BreakerState
from kairos_router.config import LimitSettings
from kairos_router.failures import Action, Failure, Leg
from tests.router.cluster import TwoLegs, cluster, until
from tests.router.stubs import Reply, decode_server, handle, in_turn, prefilled, status

DOCUMENT = Path(__file__).parents[2] / "docs" / "failure-rules.md"


def test_every_failure_has_a_rule_on_the_leg_where_it_can_happen():
    legs = {failure: {leg for leg, other in failures.rules() if other is failure} for failure in Failure}
    assert all(legs.values())
    for failure in (Failure.REFUSED, Failure.RESET, Failure.BROKEN, Failure.UNAVAILABLE, Failure.SERVER_ERROR):
        assert legs[failure] == {Leg.PREFILL, Leg.DECODE}


def test_the_document_and_the_table_say_the_same():
    text = DOCUMENT.read_text()
    for (leg, failure), rule in failures.rules().items():
        fault = "yes" if rule.node_fault else "no"
        assert f"| {leg} | `{failure}` | `{rule.action}` | {fault} |" in text


@pytest.mark.parametrize("code", [502, 503, 504])
async def test_a_brief_prefill_outage_is_retried_and_not_deflected(code):
    """Case 39: 503 then 200."""
    async with cluster(prefill=[in_turn(status(code), lambda received: prefilled())]) as up:
        assert (await up.complete())[0] == 200
        assert len(up.prefill[0].received) == 2
        assert up.records()[0]["decision"] == "prefill-decode"
        assert up.metric('kairos_router_retries_total{leg="prefill"}') == 1


async def test_a_prefill_server_that_stays_down_is_left_for_another():
    """Case 39."""
    async with cluster(prefill=[status(503), lambda received: prefilled()]) as up:
        for _ in range(4):
            assert (await up.complete())[0] == 200
        assert len(up.prefill[0].received) <= 4
        assert {record["decision"] for record in up.records()} == {"prefill-decode"}


async def test_retries_are_bounded_and_then_the_request_is_deflected():
    """Case 39."""
    async with cluster(prefill=[status(503)]) as up:
        assert (await up.complete())[0] == 200
        assert len(up.prefill[0].received) == 6
        (record,) = up.records()
        assert (record["decision"], record["reason"], record["retries"]) == ("decode-only", "prefill-unavailable", 5)
        assert up.metric('kairos_router_retries_exhausted_total{leg="prefill"}') == 1


async def test_a_prefill_reset_after_accept_is_retried():
    """Case 39."""
    async with cluster(prefill=[in_turn(lambda received: Reply(reset=True), lambda received: prefilled())]) as up:
        assert (await up.complete())[0] == 200
        assert (up.records()[0]["retries"], up.records()[0].get("error", "")) == (1, "")


async def test_a_prefill_500_is_not_repeated_on_a_prefill_server():
    """Case 39."""
    async with cluster(prefill=[status(500), status(500)]) as up:
        assert (await up.complete())[0] == 200
        assert sum(len(stub.received) for stub in up.prefill) == 1
        assert up.records()[0]["decision"] == "decode-only"


async def test_prefill_refused_and_a_deflection_that_is_not_safe_is_a_503_with_a_reason():
    """Case 39: the decode load that a failure causes is bounded."""
    async with cluster(prefill=[status(500)]) as up:
        up.policy.local_when_no_prefill = False
        code, body = await up.complete()
        assert (code, body["error"]["reason"]) == (503, "no-safe-node")
        assert up.decode[0].received == []


@pytest.mark.parametrize("code", [400, 401, 413, 422, 429])
async def test_a_prefill_4xx_is_the_clients(code):
    """Case 39."""
    async with cluster(prefill=[status(code, "bad template")]) as up:
        got, body = await up.complete()
        assert (got, body["error"]["message"]) == (code, "bad template")
        assert up.decode[0].received == []
        assert up.parts.breakers.state(up.prefill[0].name) is BreakerState.CLOSED


async def test_a_refusal_of_the_rewritten_leg_is_not_the_clients():
    """Case 6: the constraint that was dropped may be what made the request valid."""
    async with cluster(prefill=[status(400)]) as up:
        assert (await up.chat(tool_choice="required", tools=[]))[0] == 200
        assert up.records()[0]["reason"] == "prefill-refused-rewrite"


async def test_an_adapter_missing_on_prefill_is_served_by_decode():
    """Case 15."""

    def base_only(received):
        return prefilled() if received.body["model"] == "m" else status(404)(received)

    async with cluster(prefill=[base_only]) as up:
        for _ in range(15):
            assert (await up.complete(model="adapter-a"))[0] == 200
        assert up.parts.breakers.state(up.prefill[0].name) is BreakerState.CLOSED
        assert up.records()[-1]["reason"] == "prefill-lacks-model"
        assert (await up.complete())[0] == 200
        assert up.records()[-1]["decision"] == "prefill-decode"


@pytest.mark.parametrize(
    "faulty",
    [
        Reply(json={"choices": [{"finish_reason": "abort"}], "kv_transfer_params": None}),
        Reply(json={"error": {"message": "engine died", "code": 500}}),
        Reply(json={"object": "error", "message": "engine died"}),
        Reply(json={"choices": [{"finish_reason": "length"}]}),
        Reply(json=[]),
        Reply(parts=[b'{"choices": ' + b"[" * 5000]),
    ],
)
async def test_a_prefill_200_without_a_handle_is_not_a_success(faulty):
    """Case 47."""
    async with cluster(prefill=[lambda received: faulty]) as up:
        assert (await up.complete())[0] == 200
        assert up.records()[0]["decision"] == "decode-only"
        assert up.metric('kairos_router_errors_total{kind="prefill-faulty-answer"}') == 1
        assert "remote_engine_id" not in (up.decode[0].received[0].kv or {})


async def test_a_prefill_server_that_keeps_failing_opens_its_breaker():
    async with cluster(prefill=[status(500)]) as up:
        for _ in range(10):
            await up.complete()
        assert up.parts.breakers.state(up.prefill[0].name) is BreakerState.OPEN
        sent = len(up.prefill[0].received)
        await up.complete()
        assert len(up.prefill[0].received) == sent


async def test_a_decode_refusal_of_the_request_is_returned_and_not_retried():
    """Case 35."""
    async with cluster(decode=[status(400, "too long"), status(400, "too long")]) as up:
        got, body = await up.complete(max_tokens=10**6)
        assert (got, body["error"]["message"]) == (400, "too long")
        assert sum(len(stub.legs) for stub in up.decode) == 1


async def test_a_request_known_to_be_too_long_costs_no_prefill():
    """Case 35: the decode server refuses it, and no KV is left anywhere."""
    async with cluster(decode=[status(400, "too long")]) as up:
        up.parts.intake.model_length_tokens = lambda: 100
        assert (await up.complete(prompt=[1] * 90, max_tokens=11))[0] == 400
        assert up.prefill[0].received == []
        assert up.records()[0]["reason"] == "over-model-length"
        await up.complete(prompt=[1] * 90, max_tokens=10)
        assert len(up.prefill[0].received) == 1


async def test_a_failed_kv_pull_avoids_the_pair_and_serves_the_request():
    """Cases 38 and 44: only that pair is backed off; other pairs work."""

    def pulls_from_one_only(received):
        kv = received.kv or {}
        return status(500)(received) if kv.get("remote_engine_id") == "bad" else decode_server(received)

    bad, good = (lambda received: prefilled(handle("bad"))), (lambda received: prefilled(handle("good")))
    async with cluster(prefill=[bad], decode=[pulls_from_one_only]) as up:
        for _ in range(3):
            assert (await up.complete())[0] == 200
        assert len(up.prefill[0].received) == 1
        assert [record["decision"] for record in up.records()] == ["decode-only"] * 3
    async with cluster(prefill=[bad, good], decode=[pulls_from_one_only]) as up:
        for _ in range(6):
            assert (await up.complete())[0] == 200
        assert {record["decision"] for record in up.records()} == {"prefill-decode"}
        assert len(up.prefill[0].received) == 1
    async with cluster(prefill=[bad], decode=[pulls_from_one_only, decode_server]) as up:
        for _ in range(6):
            assert (await up.complete())[0] == 200
        assert {record["decision"] for record in up.records()} == {"prefill-decode"}


async def test_requests_are_served_while_every_pair_is_avoided_and_nothing_may_be_deflected():
    fails_first = in_turn(status(500), decode_server)
    async with cluster(decode=[fails_first], policy=TwoLegs(local_when_no_prefill=False)) as up:
        for _ in range(3):
            assert (await up.complete())[0] == 200
        assert {record["decision"] for record in up.records()} == {"prefill-decode"}
        assert len(up.prefill[0].received) == 4


async def test_a_decode_500_is_repeated_once_without_the_kv_and_then_returned():
    async with cluster(decode=[status(500, "boom")]) as up:
        got, body = await up.complete()
        assert (got, body["error"]["message"]) == (500, "boom")
        assert ["remote_engine_id" in leg.kv for leg in up.decode[0].legs] == [True, False]
        assert up.metric('kairos_router_errors_total{kind="decode-server-error"}') == 1


async def test_a_handle_that_a_decode_server_may_have_used_goes_to_no_other():
    async with cluster(decode=[lambda received: Reply(reset=True), decode_server]) as up:
        up.policy.asked.append(None)  # begin with the failing server
        assert (await up.complete())[0] == 200
        sent = [leg.kv["remote_request_id"] for stub in up.decode for leg in stub.legs]
        assert len(sent) == len(set(sent)) == 2
        assert len(up.prefill[0].received) == 2


async def test_decode_servers_that_all_refuse_give_a_503_with_a_reason():
    async with cluster(decode=[status(503), status(503)]) as up:
        got, body = await up.complete()
        assert (got, body["error"]["reason"]) == (503, "decode-unavailable")


async def test_a_dead_decode_role_gives_502_with_a_reason():
    async with cluster(decode=[lambda received: Reply(reset=True)]) as up:
        got, body = await up.complete()
        assert (got, body["error"]["reason"]) == (502, "decode-reset")
        assert "127.0.0.1" not in str(body), "clients see no hosts"


async def test_an_old_handle_is_not_sent():
    """Case 37: the KV lease is over before a decode server could take the request."""
    limits = LimitSettings(kv_lease_s=2.0, kv_lease_margin_s=2.5)
    async with cluster(limits=limits) as up:
        await up.complete()
        assert all("remote_engine_id" not in (leg.kv or {}) for leg in up.decode[0].legs)
        assert up.metric('kairos_router_stranded_kv_total{cause="handle-expired"}') >= 1


async def test_every_decode_leg_carries_the_handle_of_its_own_prefill_server():
    """Case 49."""
    one, two = (
        (lambda received: prefilled(handle("engine-1", remote_port=1, x=[1]))),
        (lambda received: prefilled(handle("engine-2", remote_port=2, y={"z": None}))),
    )
    async with cluster(prefill=[one, two]) as up:
        for _ in range(20):
            assert (await up.complete())[0] == 200
        kvs = [leg.kv for leg in up.decode[0].legs]
        assert {(kv["remote_engine_id"], kv["remote_port"], "x" in kv, "y" in kv) for kv in kvs} == {
            ("engine-1", 1, True, False),
            ("engine-2", 2, False, True),
        }
        assert len({kv["remote_request_id"] for kv in kvs}) == 20


def test_actions_are_all_used():
    assert {rule.action for rule in failures.rules().values()} == set(Action)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_server_removed_while_a_prefill_runs_fails_no_request(role):
    gate = asyncio.Event()
    prefill = [lambda received: Reply(gate=gate, json=prefilled().json)] * 2
    async with cluster(prefill=prefill, decode=[decode_server] * 2) as up:
        requests = [asyncio.create_task(up.complete()) for _ in range(4)]
        await until(lambda: sum(stub.active for stub in up.prefill) == 4)
        gone = getattr(up, role)[0]
        up.parts.workers.remove(gone.name)
        gate.set()
        assert [(await request)[0] for request in requests] == [200] * 4
        assert up.decode[0].received == [] if role == "decode" else len(up.decode[0].received) == 2


async def test_a_status_that_is_none_is_a_lost_answer():
    async with cluster(decode=[in_turn(lambda received: Reply(status=999), decode_server)]) as up:
        assert (await up.complete())[0] == 200
        assert up.records()[0]["retries"] == 1
