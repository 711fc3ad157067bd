"""The node-state feed: restarts, gaps, duplicates, reordering, clocks, ranks, and what is dropped."""

import asyncio
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from kairos_router.metrics import RouterMetrics
from kairos_router.node_feed import FeedIntake, FeedSubscriber, node_state
from kairos_router.registry import Worker, WorkerRegistry
from vllm_kairos.core.lease import NodeLease, Share
from vllm_kairos.core.node import Role
from vllm_kairos.core.view import ClusterView
from vllm_kairos.wire.codec import encode_state
from vllm_kairos.wire.messages import Lease, NodeStateMessage, StepSample, TransferSample

KEY = b"k" * 32
BASE = NodeStateMessage(
    schema=1,
    node_id="d0",
    role="decode",
    dp_rank=0,
    boot_id="boot-1",
    sequence=1,
    sent_at_s=0.0,
    model="m",
    engine_id="engine-d0",
    running_decodes=3,
    kv_tokens=300,
    queued_prompt_tokens=[50, 60],
    queued_prefill_tokens=200,
    running_prefill_tokens=40,
    token_budget_tokens=2048,
    max_running_requests=16,
    max_model_len_tokens=4096,
    block_size_tokens=16,
    free_kv_blocks=10,
    total_kv_blocks=100,
    kv_bytes_per_token=64,
    remote_kv_requests=1,
    remote_kv_tokens=20,
    deflected_tokens_left=[30],
)


class Flat:
    """A latency model of one number."""

    def step_s(self, batch: Any) -> float:
        return 0.05


class Feed:
    def __init__(self, *, key: bytes | None = None, dp_size: int = 1) -> None:
        self.view, self.metrics, self.restarted = ClusterView(stale_after_s=0.5), RouterMetrics(), []
        self.registry = WorkerRegistry(self.view)
        self.registry.add(Worker(name="d0", role=Role.DECODE, url="http://d:1", dp_size=dp_size))
        self.registry.add(Worker(name="p0", role=Role.PREFILL, url="http://p:1"))
        self.key = key
        self.intake = FeedIntake(
            view=self.view,
            registry=self.registry,
            metrics=self.metrics,
            key=key,
            models={Role.DECODE: Flat()},  # type: ignore[dict-item]
            on_restart=self.restarted.append,
        )

    def send(self, at_s: float, *, through: str = "d0", key: bytes | None = None, **changes: Any) -> None:
        message = msgspec.structs.replace(BASE, **changes)
        self.intake.take(through, encode_state(message, key or self.key), at_s)

    def node(self, node_id: str, now_s: float) -> Any:
        return next(node for node in self.view.nodes(now_s) if node.node_id == node_id)

    def count(self, series: str) -> float:
        for line in self.metrics.render().decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name == f"kairos_router_{series}":
                return float(value)
        return 0.0

    def dropped(self, reason: str) -> float:
        return self.count(f'feed_dropped_total{{reason="{reason}"}}')


def test_a_message_becomes_the_views_state():
    state = node_state(BASE, node_id="d0", role=Role.DECODE, received_at_s=7.0)
    assert state.queued_prompt_tokens == (40, 50, 60)  # what runs comes first
    assert state.queued_prefill_tokens == 240
    assert (state.deflected_prefills, state.deflected_tokens_left) == (1, 30)
    assert state.observed_at_s == 7.0
    feed = Feed()
    feed.send(7.0)
    assert feed.node("d0", 7.0).running_decodes == 3
    assert not feed.node("d0", 7.0).stale


def test_a_router_reads_its_own_share_of_a_lease():
    lease = Lease(
        lease_id="boot-1-9", expires_in_s=0.5, prefill_tokens=30, kv_blocks=7, shares={"r1": (10, 2, 30), "r2": (20, 5, 60)}
    )
    message = msgspec.structs.replace(BASE, lease=lease, speaks_leases=True)
    for router_id, share in (("r2", Share(20, 5, 60)), ("r3", None), ("", None)):
        state = node_state(message, node_id="d0", role=Role.DECODE, received_at_s=7.0, router_id=router_id)
        assert state.lease == (None if share is None else NodeLease("boot-1-9", share, until_s=7.5))
        assert state.speaks_leases
    assert not node_state(BASE, node_id="d0", role=Role.DECODE, received_at_s=7.0, router_id="r1").speaks_leases


@pytest.mark.parametrize("skew_s", [3600.0, -3600.0])
def test_freshness_goes_by_receipt_time_alone(skew_s):
    """Case X4: the sender's clock is an hour off, either way."""
    feed = Feed()
    feed.send(100.0, sent_at_s=100.0 + skew_s)
    assert not feed.node("d0", 100.4).stale
    assert feed.node("d0", 100.6).stale


def test_stale_is_not_idle_and_the_other_node_is_untouched():
    """Case 69: D stops reporting, P goes on; D is marked, in the view and in the metrics."""
    feed = Feed()
    feed.send(1.0)
    for at_s, sequence in ((1.0, 1), (2.0, 2)):
        feed.send(at_s, through="p0", node_id="p0", engine_id="engine-p0", sequence=sequence)
    feed.metrics.watch(lambda: feed.view.nodes(2.0), lambda: 2.0)
    assert feed.node("d0", 2.0).stale
    assert not feed.node("p0", 2.0).stale
    assert feed.count('node_stale{node="d0",role="decode"}') == 1
    assert feed.count('node_stale{node="p0",role="prefill"}') == 0
    assert feed.count('node_state_age_seconds{node="d0",role="decode"}') == 1


def test_a_node_that_was_silent_is_back_with_its_first_message():
    """Case 74: no expiry forgets a node, and a new router takes whatever sequence it hears first."""
    feed = Feed()
    feed.send(1.0)
    assert feed.node("d0", 4000.0).stale
    feed.send(4000.0, sequence=2)
    assert not feed.node("d0", 4000.1).stale
    restarted_router = Feed()
    restarted_router.send(1.0, sequence=90_000)
    assert not restarted_router.node("d0", 1.1).stale


def test_duplicates_and_reordered_messages_are_dropped_and_counted():
    feed = Feed()
    feed.send(1.0, sequence=5, running_decodes=5)
    feed.send(1.1, sequence=5, running_decodes=9)
    feed.send(1.1, sequence=4, running_decodes=4)
    assert feed.node("d0", 1.1).running_decodes == 5
    assert feed.dropped("replayed") == 2


def test_a_gap_is_counted_and_harmless():
    feed = Feed()
    feed.send(1.0, sequence=1)
    feed.send(1.1, sequence=5, running_decodes=8)
    assert feed.node("d0", 1.1).running_decodes == 8
    assert feed.count("feed_missed_total") == 3


def test_a_restart_starts_over_and_the_old_boot_stays_dead():
    feed = Feed()
    feed.send(1.0, sequence=50)
    feed.send(1.1, boot_id="boot-2", sequence=1, running_decodes=0)
    feed.send(1.2, sequence=51)
    assert feed.node("d0", 1.2).running_decodes == 0
    assert feed.dropped("old-boot") == 1
    assert feed.restarted == ["d0"]


def test_another_model_under_the_same_id_is_told():
    """Case X8, feed side: the worker is looked at anew at once."""
    feed = Feed()
    feed.send(1.0)
    feed.send(1.1, sequence=2, model="other")
    assert feed.restarted == ["d0"]


def test_only_signed_messages_count_where_a_key_is_set():
    feed = Feed(key=KEY)
    feed.send(1.0, key=b"x" * 32)
    feed.intake.take("d0", encode_state(BASE, None), 1.0)
    assert feed.dropped("unsigned") == 2
    assert feed.node("d0", 1.0).stale
    feed.send(1.0)
    assert not feed.node("d0", 1.0).stale


def test_an_address_speaks_for_its_own_worker_alone():
    feed = Feed()
    feed.send(1.0, through="p0")  # says it is d0
    feed.send(1.0, dp_rank=1, sequence=2)
    feed.intake.take("gone", encode_state(BASE, None), 1.0)
    assert feed.dropped("foreign") == 3
    assert feed.node("d0", 1.0).stale


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "malformed"),
        ([b"kairos.state", b"\xc1", b""], "malformed"),
        ([b"kairos.state", msgspec.msgpack.encode({"schema": 1}), b""], "malformed"),
        ([b"kairos.state", msgspec.msgpack.encode({"schema": 99}), b""], "schema"),
        (encode_state(msgspec.structs.replace(BASE, token_budget_tokens=0), None), "malformed"),
        (encode_state(msgspec.structs.replace(BASE, free_kv_blocks=999), None), "malformed"),
    ],
)
def test_what_is_wrong_is_dropped_by_reason_and_never_raises(frames, reason):
    """Case 69's last input: a report with a missing field is no report, not zero load."""
    feed = Feed()
    feed.intake.take("d0", frames, 1.0)
    assert feed.dropped(reason) == 1
    assert feed.node("d0", 1.0).stale


def test_each_rank_reports_for_itself():
    """Case 73, feed side."""
    feed = Feed(dp_size=4)
    for rank in range(4):
        feed.send(1.0, dp_rank=rank, engine_id=f"e{rank}", running_decodes=rank)
    assert [feed.node(f"d0/dp{rank}", 1.0).running_decodes for rank in range(4)] == [0, 1, 2, 3]


def test_transfers_teach_the_bandwidth_of_their_pair():
    feed = Feed()
    feed.send(1.0, through="p0", node_id="p0", engine_id="engine-p0")
    samples = [
        TransferSample("engine-p0", 1_000_000, 0.01),
        TransferSample("unheard-of", 5, 1.0),
        TransferSample("engine-p0", 0, 0.0),
    ]
    feed.send(1.1, transfer_samples=samples)
    links = feed.node("d0", 1.1).links
    assert [(link.prefill_node, link.bandwidth_bytes_per_s) for link in links] == [("p0", pytest.approx(1e8))]


def test_measured_steps_are_compared_with_the_prediction():
    feed = Feed()
    feed.send(1.0, step_samples=[StepSample(3, 300, 0, 0, 0.06), StepSample(-1, 0, 0, 0, 0.06)])
    assert feed.count('step_error_seconds_count{node="d0"}') == 1
    assert feed.count('step_error_seconds_bucket{le="0.01",node="d0"}') == 1
    assert feed.dropped("sample") == 1


def test_totals_count_from_when_the_router_first_heard():
    feed = Feed()
    feed.send(1.0, skipped_transfers=10, skipped_transfer_bytes=1000)
    feed.send(1.1, sequence=2, skipped_transfers=12, skipped_transfer_bytes=1500, malformed_schedules=1)
    feed.send(1.2, boot_id="boot-2", sequence=1)
    assert feed.count('transfers_skipped_total{node="d0"}') == 2
    assert feed.count('transfer_bytes_skipped_total{node="d0"}') == 500
    assert feed.count('malformed_schedules_total{node="d0"}') == 1


def test_a_removed_worker_leaves_nothing_behind():
    feed = Feed()
    feed.send(1.0)
    worker = feed.registry.remove("d0")
    feed.intake.forget(worker)
    assert not feed.intake._heard
    assert not feed.intake._node_of_engine
    feed.registry.add(worker)
    feed.send(2.0)  # the same sequence number is new to a router that forgot
    assert not feed.node("d0", 2.0).stale


async def test_frames_arrive_over_zmq_and_stop_when_left():
    feed, context = Feed(), zmq.asyncio.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    subscriber = FeedSubscriber(feed.intake, lambda: 1.0)
    try:
        await subscriber.follow("d0", (f"tcp://127.0.0.1:{port}",))
        async with asyncio.timeout(10):
            sequence = 0
            while feed.node("d0", 1.0).stale:
                sequence += 1
                await publisher.send_multipart(encode_state(msgspec.structs.replace(BASE, sequence=sequence), None))
                await asyncio.sleep(0.01)
        await subscriber.leave("d0")
        await subscriber.leave("d0")
        for later in range(sequence + 1, sequence + 21):
            await publisher.send_multipart(encode_state(msgspec.structs.replace(BASE, sequence=later, running_decodes=9), None))
            await asyncio.sleep(0.01)
        assert feed.node("d0", 1.0).running_decodes == BASE.running_decodes
    finally:
        await subscriber.close()
        publisher.close(linger=0)
        context.term()


def test_a_node_that_claims_anothers_id_does_that_one_no_harm():
    feed = Feed(key=KEY)
    feed.send(1.0)
    feed.send(1.1, through="p0", boot_id="boot-9", sequence=1)
    feed.send(1.1, through="p0", sequence=2**63)
    assert feed.dropped("foreign") == 2
    feed.send(1.2, sequence=2, running_decodes=7)
    assert feed.node("d0", 1.2).running_decodes == 7


async def test_an_address_that_cannot_be_connected_to_ends_that_feed_alone(caplog):
    feed = Feed()
    subscriber = FeedSubscriber(feed.intake, lambda: 0.0)
    await subscriber.follow("d0", ("tcp://a b:5",))
    await asyncio.sleep(0)
    await subscriber.follow("d0", ())
    await subscriber.close()
    assert "server d0: its state cannot be followed at tcp://a b:5" in caplog.text
