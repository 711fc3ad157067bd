"""KV handles: only one engine's, only for a while (cases 37, 38, 48)."""

import asyncio

from kairos_router.config import LimitSettings
from kairos_router.failures import Failure
from kairos_router.handles import Handle, HandleBook
from tests.router.cluster import OpenView, cluster
from tests.router.stubs import Reply, chat_events, decode_server, handle, prefilled
from vllm_kairos.core.events import PrefillDone


def taken(book: HandleBook, engine: str, now_s: float = 0.0, node: str = "p") -> Handle:
    return Handle(params={}, prefill_node=node, generation=book.saw_engine(node, engine, now_s), received_at_s=now_s)


def test_a_handle_lives_for_the_lease_less_its_margin():
    """Case 37."""
    book = HandleBook(max_age_s=28.0)
    held = taken(book, "e")
    assert book.objection(held, 28.0) is None
    assert book.objection(held, 28.1) is Failure.HANDLE_EXPIRED


def test_a_new_engine_voids_the_handles_of_the_old_one():
    """Case 38."""
    book = HandleBook(max_age_s=28.0)
    old, other = taken(book, "one"), taken(book, "x", node="q")
    new = taken(book, "two", 1.0)
    assert book.objection(old, 1.0) is Failure.ENGINE_RESTARTED
    assert book.objection(new, 1.0) is None
    assert book.objection(other, 1.0) is None


def test_a_late_answer_of_the_old_engine_does_not_bring_it_back():
    """Case 38."""
    book = HandleBook(max_age_s=28.0)
    taken(book, "one")
    new = taken(book, "two", 1.0)
    late = taken(book, "one", 2.0)
    assert book.objection(late, 2.0) is Failure.ENGINE_RESTARTED
    assert book.objection(new, 2.0) is None


def test_an_engine_id_that_returns_for_good_is_taken():
    book = HandleBook(max_age_s=28.0)
    taken(book, "one")
    taken(book, "two", 1.0)
    assert book.objection(taken(book, "one", 60.0), 60.0) is None


def test_data_parallel_ranks_of_one_engine_are_one_engine():
    book = HandleBook(max_age_s=28.0)
    first = taken(book, "abc_dp0")
    taken(book, "abc_dp1")
    assert book.objection(first, 0.0) is None


def test_a_reported_restart_voids_what_is_in_flight_even_under_the_same_engine_id():
    """Case 38."""
    book = HandleBook(max_age_s=28.0)
    held = taken(book, "fixed")
    book.restarted("p")
    book.restarted("never-seen")
    assert book.objection(held, 0.0) is Failure.ENGINE_RESTARTED
    assert book.objection(taken(book, "fixed"), 0.0) is None
    book.forget("p")
    assert book.objection(held, 0.0) is None


async def test_a_handle_of_a_restarted_prefill_server_is_dropped_in_flight(monkeypatch):
    """Case 38: the engine id changes while one request stands between its legs."""
    engines = iter(["old", "new", "new"])
    async with cluster(prefill=[lambda received: prefilled(handle(next(engines)))]) as up:
        apply, node = up.view.apply, up.prefill[0].name

        def restart_between(event):
            apply(event)
            if isinstance(event, PrefillDone) and len(up.prefill[0].received) == 1:
                up.parts.handles.saw_engine(node, "new", up.parts.clock())

        monkeypatch.setattr(OpenView, "apply", lambda self, event: restart_between(event))
        assert (await up.complete())[0] == 200
        assert (await up.complete())[0] == 200
        assert [leg.kv["remote_engine_id"] for leg in up.decode[0].legs] == ["new", "new"]
        assert up.metric('kairos_router_stranded_kv_total{cause="engine-restarted"}') == 1


async def test_a_handle_that_waited_too_long_for_a_decode_server_is_prefilled_again(monkeypatch):
    """Case 37: nothing is sent with it, and the prompt is computed again."""
    limits = LimitSettings(kv_lease_s=2.0, kv_lease_margin_s=0.5)
    async with cluster(limits=limits) as up:
        apply, clock = up.view.apply, up.parts.clock
        late = [0.0]
        monkeypatch.setattr(up.parts.router, "_clock", lambda: clock() + late[0])

        def wait_between(event):
            apply(event)
            late[0] = 5.0 if isinstance(event, PrefillDone) and len(up.prefill[0].received) == 1 else 0.0

        monkeypatch.setattr(OpenView, "apply", lambda self, event: wait_between(event))
        assert (await up.complete())[0] == 200
        assert len(up.prefill[0].received) == 2
        assert len(up.decode[0].legs) == 1
        assert up.metric('kairos_router_stranded_kv_total{cause="handle-expired"}') == 1


async def test_a_draining_prefill_server_gets_no_new_leg_and_its_handle_stays_good(monkeypatch):
    """Case 48: drained between the legs, with another stream running."""
    gate = asyncio.Event()
    role, *rest = chat_events("a")

    def serve(received):
        return Reply(parts=[role, None, *rest], gate=gate) if received.body.get("stream") else decode_server(received)

    async with cluster(decode=[serve]) as up:
        running = asyncio.create_task(up.session.post(up.url + "/v1/chat/completions", json={"messages": [], "stream": True}))
        await up.decode[0].until(lambda stub: stub.active == 1)
        apply = up.view.apply

        def drain_between(event):
            apply(event)
            if isinstance(event, PrefillDone):
                up.parts.workers.drain(up.prefill[0].name)

        monkeypatch.setattr(OpenView, "apply", lambda self, event: drain_between(event))
        assert (await up.complete())[0] == 200
        assert "remote_engine_id" in up.decode[0].legs[-1].kv
        assert (await up.complete())[0] == 200
        assert up.records()[-1]["reason"] == "prefill-unavailable"
        assert len(up.prefill[0].received) == 2
        gate.set()
        async with await running as response:
            assert (await response.read()).endswith(b"[DONE]\n\n")


async def test_a_refused_connection_leaves_the_handle_for_another_decode_server():
    async with cluster(decode=[decode_server, decode_server]) as up:
        dead = up.parts.workers.get(up.decode[0].name)
        up.parts.workers.replace(dead.name, type(dead)(name=dead.name, role=dead.role, url="http://127.0.0.1:9"))
        for _ in range(2):
            assert (await up.complete())[0] == 200
        assert len(up.prefill[0].received) == 2
        assert len(up.decode[1].legs) == 2
        assert any(record["retries"] == 1 and record["reason"] == "handle-in-hand" for record in up.records())
