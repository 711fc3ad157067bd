"""Leases of a real scheduler: what is granted, who is admitted, when it is taken back, and that nothing is left behind."""

import threading
from itertools import pairwise
from typing import Any

import pytest

from tests.engine.builder import left_behind, make_request, remote_params, schedule_params, step
from tests.engine.leased import HEARTBEAT_S, MODEL, Leased
from vllm_kairos.core.lease import LeaseGone, LeaseSettings
from vllm_kairos.wire.refusal import refusal_message


@pytest.fixture
def engine(build: Any) -> Leased:
    return Leased(build)


def names(count: int, prefix: str = "D") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def why(engine: Leased, name: str) -> str:
    return str(engine.ended[name].stop_reason)


def test_an_idle_engine_grants_and_goes_on_granting(engine: Leased) -> None:
    first = engine.lease
    assert first is not None
    assert set(first.shares) == {"r1"}
    engine.now_s += 10.0
    later = engine.lease
    assert later is not None
    assert (later.epoch > first.epoch, later.shares) == (True, first.shares)
    assert 0 < later.expires_in_s <= LeaseSettings().ttl_s


def test_a_busy_engines_lease_ends_unless_a_fresh_look_renews_it(engine: Leased) -> None:
    engine.decode("A")
    assert engine.lease is not None
    engine.now_s += LeaseSettings().ttl_s
    assert engine.lease is None  # a step that takes so long says nothing new
    engine.beat()
    assert engine.lease is not None


def test_the_lease_of_an_engine_that_hangs_in_a_step_ends_by_itself(engine: Leased) -> None:
    before = engine.lease
    engine.scheduler.add_request(make_request("A", 100))
    engine.scheduler.schedule()  # whose output never comes
    lease = engine.lease
    assert before is not None
    assert lease is not None
    assert lease.epoch == before.epoch
    engine.now_s += LeaseSettings().ttl_s
    assert engine.lease is None


def test_grants_shrink_under_load(build: Any) -> None:
    engine = Leased(build, blocks=2000, max_sequences=64)
    shares = [engine.share()]
    for number in range(4):
        engine.decode(*names(12, f"D{number}-"), prompt=200)
        shares.append(engine.share())
    for before, after in pairwise(shares):
        assert after.prefill_tokens <= before.prefill_tokens
        assert after.kv_blocks < before.kv_blocks
    assert shares[-1].prefill_tokens < shares[0].prefill_tokens


def test_what_is_queued_here_is_not_granted_again(engine: Leased) -> None:
    engine.decode("A")
    before = engine.share()
    engine.scheduler.add_request(make_request("P", 4000, transfer=schedule_params(64)))
    engine.beat()
    left = engine.scheduler.requests["P"].num_prompt_tokens - engine.scheduler.requests["P"].num_computed_tokens
    assert engine.share().prefill_tokens <= before.prefill_tokens - left
    assert engine.share().kv_blocks < before.kv_blocks - 200


def test_a_slower_machine_than_the_profiles_grants_less(build: Any) -> None:
    def granted(*, slowness: float, correct: bool) -> int:
        engine = Leased(build, correct=correct)
        engine.decode("A", "B")
        for _ in range(40):
            engine.now_s += HEARTBEAT_S
            engine.step(took_s=slowness * MODEL.latency_s(2, 200, 0, 0))
        return engine.share().prefill_tokens

    true, slow = granted(slowness=1.0, correct=True), granted(slowness=1.6, correct=True)
    assert slow < 0.7 * true
    assert granted(slowness=1.6, correct=False) == pytest.approx(true, rel=0.02)


def test_no_router_no_lease_and_the_message_says_that_leases_are_spoken_of(engine: Leased) -> None:
    engine.sent.routers = frozenset()
    engine.decode("A")
    engine.beat()
    message, lease = engine.sent.messages[-1]
    assert (message.speaks_leases, lease) == (True, None)


def test_routers_divide_a_lease(engine: Leased) -> None:
    alone = engine.share()
    engine.sent.routers = frozenset({"r1", "r2"})
    both = engine.share("r1").plus(engine.share("r2"))
    assert both == alone


def test_a_request_within_the_share_runs_by_its_schedule(engine: Leased) -> None:
    engine.decode("A")
    engine.send("P", 1000)
    assert engine.step() == {"A": 1, "P": 511}
    assert engine.keeper.counts.admitted_tokens == 1000
    engine.run()
    assert str(engine.ended["P"].finish_reason) == "length"


def test_one_beyond_it_ends_before_any_work(engine: Leased) -> None:
    engine.decode("A")
    free, share = engine.free_blocks, engine.share()
    engine.send("P", share.prefill_tokens + 1)
    assert "P" not in engine.scheduler.requests
    assert engine.step() == {"A": 1}
    assert why(engine, "P") == refusal_message("spent")
    assert free - engine.free_blocks <= 1
    assert engine.keeper.counts.refused["spent"] == 1
    assert left_behind(engine.scheduler).planned == 0


def test_it_is_answered_also_where_nothing_else_runs(engine: Leased) -> None:
    engine.send("P", 10, lease_id="boot-1-999")
    assert engine.scheduler.has_requests()
    assert engine.step() == {}
    assert why(engine, "P") == refusal_message("unknown")
    assert not engine.scheduler.has_requests()


def test_a_share_is_spent_once(engine: Leased) -> None:
    engine.decode("A")
    half = engine.share().prefill_tokens // 2
    lease = engine.lease
    assert lease is not None
    for name in ("P", "Q", "R"):
        engine.send(name, half, lease_id=lease.lease_id)
    engine.step()
    assert [name for name in ("P", "Q", "R") if name in engine.ended] == ["R"]


@pytest.mark.parametrize(
    ("lease_id", "router", "reason"),
    [("boot-1-999999", "r1", LeaseGone.UNKNOWN), ("other-1", "r1", LeaseGone.UNKNOWN), ("", "r9", LeaseGone.NOT_YOURS)],
)
def test_claims_that_are_none(engine: Leased, lease_id: str, router: str, reason: LeaseGone) -> None:
    engine.decode("A")
    engine.send("P", 10, lease_id=lease_id, router=router)
    engine.step()
    assert why(engine, "P") == refusal_message(reason)


def test_an_expired_lease_is_gone(engine: Leased) -> None:
    engine.decode("A")
    lease = engine.lease
    assert lease is not None
    engine.now_s += LeaseSettings().ttl_s
    engine.send("P", 10, lease_id=lease.lease_id)
    engine.step()
    assert why(engine, "P") == refusal_message("expired")


def test_the_last_lease_is_honoured_beside_the_one_that_replaced_it(engine: Leased) -> None:
    engine.decode("A")
    old = engine.lease
    engine.beat()
    assert old is not None
    assert engine.lease is not None
    assert engine.lease.epoch > old.epoch
    engine.send("P", 10, lease_id=old.lease_id)
    engine.step()
    assert "P" not in engine.ended


def test_without_a_lease_all_is_as_before(engine: Leased) -> None:
    engine.sent.routers = frozenset()
    engine.decode("A")
    engine.scheduler.add_request(make_request("P", 1000, transfer=schedule_params(64)))
    assert engine.step() == {"A": 1, "P": 63}
    engine.scheduler.add_request(make_request("Q", 100))
    engine.run()
    assert {str(engine.ended[name].finish_reason) for name in ("P", "Q")} == {"length"}


@pytest.mark.parametrize("kairos", [None, {"role": "decode"}])
def test_an_engine_without_leases_admits_none(build: Any, kairos: dict[str, Any] | None) -> None:
    scheduler = build(kairos=kairos)
    transfer = schedule_params(64)
    transfer["kairos"]["lease"] = {"id": "boot-1-1", "router": "r1"}
    scheduler.add_request(make_request("P", 100, transfer=transfer))
    assert step(scheduler) == {}
    assert not scheduler.requests


def test_a_malformed_claim_makes_a_request_a_normal_one(engine: Leased) -> None:
    transfer = schedule_params(64)
    transfer["kairos"]["lease"] = {"id": "", "router": 7}
    engine.scheduler.add_request(make_request("P", 100, transfer=transfer))
    assert engine.step() == {"P": 100}
    assert engine.scheduler.malformed_schedules == 1


def test_a_missed_deadline_beside_prefill_revokes_at_once(engine: Leased) -> None:
    engine.decode("A", "B")
    engine.send("P", 1000)
    held = engine.lease
    assert held is not None
    engine.step(took_s=LeaseSettings().tbt_slo_s * 1.01)
    assert (engine.sent.repeats, engine.lease) == (1, None)
    engine.send("Q", 10, lease_id=held.lease_id)
    engine.step()
    assert why(engine, "Q") == refusal_message("revoked")
    engine.now_s += HEARTBEAT_S
    engine.step()
    assert engine.lease is not None
    assert engine.keeper.counts.revoked["missed-deadline"] == 1


def test_a_slow_step_of_decodes_alone_revokes_nothing(engine: Leased) -> None:
    engine.decode("A", "B")
    engine.step(took_s=0.3)
    engine.now_s -= 0.2
    assert engine.sent.repeats == 0


def test_prefill_that_keeps_nobody_waiting_revokes_nothing(engine: Leased) -> None:
    engine.decode("A")
    engine.run()
    engine.scheduler.add_request(make_request("P", 1000, transfer=schedule_params(512)))
    engine.step(took_s=0.3)
    assert engine.sent.repeats == 0


def test_low_blocks_revoke(build: Any) -> None:
    """Decodes that turn out longer than expected: what is free no longer holds what they are expected to take."""
    engine = Leased(build, blocks=60)
    for name in names(4, "E"):
        engine.scheduler.add_request(make_request(name, 10, max_tokens=40))
    engine.run()  # outputs are known to be short
    engine.decode(*names(8), prompt=16, max_tokens=400)
    assert engine.lease is not None
    for _ in range(80):
        if engine.sent.repeats:
            break
        engine.step(took_s=0.0001)
    assert engine.keeper.counts.revoked["low-blocks"] == 1
    assert engine.lease is None


def test_a_node_with_nothing_left_to_grant_takes_its_lease_back(build: Any) -> None:
    engine = Leased(build, max_sequences=4)
    engine.decode("A")
    assert engine.lease is not None
    for name in names(3):
        engine.scheduler.add_request(make_request(name, 20, max_tokens=1000))
    engine.beat()  # every slot is taken
    assert (engine.lease, engine.keeper.counts.revoked["no-capacity"]) == (None, 1)
    engine.beat()
    assert engine.keeper.counts.revoked["no-capacity"] == 1


def test_a_burst_of_kv_to_pull_revokes_as_it_arrives(build: Any) -> None:
    engine = Leased(build, blocks=400)
    engine.decode("A")
    assert engine.lease is not None
    arrived = 0
    while not engine.sent.repeats:
        engine.scheduler.add_request(make_request(f"R{arrived}", 320, transfer=remote_params(320)))
        arrived += 1
        assert arrived < 20
    assert arrived > 1  # a single one is no burst
    assert engine.lease is None
    assert engine.keeper.counts.revoked["incoming-kv"] == 1


def test_after_a_revocation_nothing_is_granted_for_a_heartbeat(engine: Leased) -> None:
    engine.decode("A")
    engine.send("P", 20)
    engine.step(took_s=0.2)  # a heartbeat is due as well
    assert engine.lease is None
    engine.scheduler.finish_requests(["A", "P"], _aborted())
    assert engine.lease is None  # idle now, and still none
    engine.now_s += HEARTBEAT_S
    assert engine.lease is not None


def test_output_lengths_are_learned_from_those_that_end_by_themselves(engine: Leased) -> None:
    assert engine.keeper.lengths.expected(10_000) == 256
    for name in names(4):
        engine.scheduler.add_request(make_request(name, 10, max_tokens=30))
    engine.run()
    engine.decode("A", max_tokens=1000)
    engine.scheduler.finish_requests("A", _aborted())
    assert engine.keeper.lengths.expected(10_000) == 30


def test_drafts_are_no_prefill(build: Any) -> None:
    from vllm_kairos.engine.compat_leases import waited_decodes

    scheduler = build(draft_tokens=3)
    assert waited_decodes(scheduler, _output({"A": 4, "B": 1})) == 0
    assert waited_decodes(scheduler, _output({"A": 4, "B": 1, "P": 100})) == 2
    assert waited_decodes(scheduler, _output({"P": 100})) == 0


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_thousand_requests_leave_nothing_behind(build: Any, async_scheduling: bool) -> None:
    engine = Leased(build, async_scheduling=async_scheduling, max_sequences=64)
    free, refused = engine.free_blocks, 0
    for number in range(1000):
        name = f"Q{number}"
        kind = number % 5
        if kind == 0:
            engine.scheduler.add_request(make_request(name, 30, max_tokens=3))
        elif kind == 1:
            engine.send(name, 40, lease_id="boot-1-123456", max_tokens=3)
            refused += 1
        elif kind == 2:
            engine.scheduler.add_request(make_request(name, 40, max_tokens=3, transfer=schedule_params(64)))
        else:
            engine.send(name, 40, lease_id="" if engine.lease else "none-1", max_tokens=3)
        if kind == 4 and name in engine.scheduler.requests:
            engine.scheduler.finish_requests(name, _aborted())
        engine.step()
    engine.run()
    assert engine.keeper.counts.refused["unknown"] >= refused
    assert engine.keeper.counts.admitted > 100
    assert (len(engine.scheduler.requests), engine.free_blocks) == (0, free)
    assert (left_behind(engine.scheduler).planned, len(engine.scheduler._kairos_refused)) == (0, 0)
    assert len(engine.keeper._in_flight) == 0
    assert len(engine.keeper._ledger._grants) <= 1 + LeaseSettings().ttl_s / 0.01


@pytest.mark.parametrize(("plugins", "warned"), [(None, True), ("other", True), ("other,kairos", False)])
def test_a_server_that_cannot_tell_why_says_so_at_start(
    engine: Leased, monkeypatch: pytest.MonkeyPatch, plugins: str | None, warned: bool
) -> None:
    said: list[str] = []
    monkeypatch.setattr("vllm_kairos.engine.lease_keeper.logger.warning", lambda text, *_: said.append(text))
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if plugins is not None:
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
    engine.keeper.start(lambda: None, None)
    assert bool(said) is warned


def test_the_sending_thread_may_ask_at_any_time(build: Any) -> None:
    """Whatever it grants in between: what is admitted since a grant stays within that grant."""
    engine, done, epochs = Leased(build, max_sequences=64), threading.Event(), list[int]()

    def ask() -> None:
        while not done.wait(1e-4):
            lease = engine.lease
            epochs.append(0 if lease is None else lease.epoch)

    thread = threading.Thread(target=ask)
    thread.start()
    for number in range(300):
        lease = engine.lease
        engine.send(f"Q{number}", 3000, lease_id="none-1" if lease is None else lease.lease_id, max_tokens=2)
        engine.step()
        if number % 50 == 49:
            engine.run()  # idle: the thread grants, too
        ledger = engine.keeper._ledger
        current = ledger.current(engine.now_s)
        assert current is None or current.shares["r1"].covers(ledger.spent("r1"))
    done.set()
    thread.join()
    engine.run()
    granted = [epoch for epoch in epochs if epoch]
    assert granted == sorted(granted)
    assert engine.keeper.counts.admitted > 0


def _aborted() -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED


def _output(scheduled: dict[str, int]) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(num_scheduled_tokens=scheduled)
