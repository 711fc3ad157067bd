"""The sending thread: what it sends along, and which routers it knows."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from tests.engine.test_node_state import free_endpoint
from vllm_kairos.engine.publisher import StatePublisher
from vllm_kairos.engine.subscribers import MAX_CONNECTED, MAX_ROUTERS, Subscribers
from vllm_kairos.wire.codec import STATE_TOPIC, StateDecoder
from vllm_kairos.wire.messages import Lease, NodeStateMessage
from vllm_kairos.wire.routers import MAX_ID_CHARS, router_of, router_topic

KEY = b"key of the feed, long enough"
PATIENCE_S = 20.0


def state(**fields: Any) -> NodeStateMessage:
    text = {"node_id": "d0", "role": "decode", "boot_id": "b", "model": "m", "engine_id": ""}
    counts = ("running_decodes", "kv_tokens", "queued_prefill_tokens", "running_prefill_tokens", "free_kv_blocks")
    counts += ("total_kv_blocks", "kv_bytes_per_token", "remote_kv_requests", "remote_kv_tokens", "dp_rank", "sequence")
    sizes = ("schema", "token_budget_tokens", "max_running_requests", "max_model_len_tokens", "block_size_tokens")
    numbers = dict.fromkeys(counts, 0) | dict.fromkeys(sizes, 1)
    return NodeStateMessage(**text, **numbers, sent_at_s=0.0, queued_prompt_tokens=[], deflected_tokens_left=[], **fields)


class Leases:
    """Stands in for the lease keeper; says what it was asked."""

    def __init__(self) -> None:
        self.routers: frozenset[str] = frozenset()
        self.lease: Lease | None = None

    def __call__(self, routers: frozenset[str]) -> Lease | None:
        self.routers = routers
        return self.lease


class Node:
    """A publisher and its readers."""

    def __init__(self, period_s: float = 0.02) -> None:
        self.endpoint, self.leases = free_endpoint(), Leases()
        self.publisher = StatePublisher(self.endpoint, key=KEY, period_s=period_s, lease=self.leases)
        self.publisher.publish(state())
        self.context = zmq.Context()
        self.sockets: list[zmq.Socket[bytes]] = []

    def read_by(self, *topics: bytes) -> "zmq.Socket[bytes]":
        socket = self.context.socket(zmq.SUB)
        self.sockets.append(socket)
        socket.setsockopt(zmq.RCVTIMEO, round(PATIENCE_S * 1000))
        for topic in topics:
            socket.subscribe(topic)
        socket.connect(self.endpoint)
        return socket

    def router(self, router_id: str) -> "zmq.Socket[bytes]":
        return self.read_by(STATE_TOPIC, router_topic(router_id))

    def knows(self, *router_ids: str) -> bool:
        return soon(lambda: self.leases.routers == set(router_ids))

    def close(self) -> None:
        self.publisher.close()
        for socket in self.sockets:
            socket.close(linger=0)
        self.context.term()


def soon(holds: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < end_s:
        time.sleep(0.005)
    return holds()


@pytest.fixture
def node() -> Iterator[Node]:
    opened = Node()
    yield opened
    opened.close()


def test_an_old_router_gets_the_state_and_is_not_known(node: Node) -> None:
    reader, decoder = node.read_by(STATE_TOPIC), StateDecoder(KEY)
    sequences = [decoder.decode(reader.recv_multipart()).sequence for _ in range(4)]
    assert sequences == list(range(sequences[0], sequences[0] + 4))
    assert node.knows()


def test_routers_are_known_while_they_are_connected(node: Node) -> None:
    first, second = node.router("r1"), node.router("r2")
    decoder = StateDecoder(KEY)
    assert node.knows("r1", "r2")
    assert decoder.decode(first.recv_multipart()).node_id == "d0"
    first.close(linger=0)
    assert node.knows("r2")
    second.unsubscribe(router_topic("r2"))
    assert node.knows()


def test_a_router_with_two_connections_is_one_until_both_are_gone(node: Node) -> None:
    first, second, other = node.router("r1"), node.router("r1"), node.router("r2")
    assert node.knows("r1", "r2")
    StateDecoder(KEY).decode(second.recv_multipart())  # connected
    first.close(linger=0)
    other.close(linger=0)
    assert node.knows("r1")
    second.close(linger=0)
    assert node.knows()


def test_a_router_that_comes_back_is_known_again(node: Node) -> None:
    for _ in range(3):
        router = node.router("r1")
        assert node.knows("r1")
        router.close(linger=0)
        assert node.knows()


@pytest.mark.parametrize("topic", [b"", b"kairos.router.", b"kairos.router.\x00\xff", b"kairos.router." + b"x" * 65, b"\x00"])
def test_other_subscriptions_change_nothing(node: Node, topic: bytes) -> None:
    node.read_by(topic)
    router = node.router("r1")
    assert node.knows("r1")
    router.close(linger=0)
    assert node.knows()


def test_a_subscription_too_long_ends_its_own_connection_only(node: Node) -> None:
    good = node.router("r1")
    bad = node.read_by(STATE_TOPIC, router_topic("r2"), b"kairos.router." + b"x" * 100_000)
    assert node.knows("r1")
    decoder = StateDecoder(KEY)
    assert decoder.decode(good.recv_multipart()).sequence < decoder.decode(good.recv_multipart()).sequence
    bad.close(linger=0)


def test_no_more_routers_than_there_is_room_for() -> None:
    known = Subscribers()
    for number in range(10 * MAX_ROUTERS):
        known.heard(b"\x01" + router_topic(f"r{number}"))
    assert len(known.routers) == MAX_ROUTERS
    for number in range(10 * MAX_ROUTERS):
        known.heard(b"\x00" + router_topic(f"r{number}"))
    assert not known.routers


def test_a_router_that_found_no_room_is_taken_in_when_one_leaves() -> None:
    known = Subscribers()
    for number in range(MAX_ROUTERS + 3):
        known.heard(b"\x01" + router_topic(f"r{number}"))
    known.heard(b"\x00" + router_topic(f"r{MAX_ROUTERS}"))  # of those who wait
    known.heard(b"\x00" + router_topic("r5"))
    assert known.routers == {f"r{number}" for number in (*range(5), *range(6, MAX_ROUTERS), MAX_ROUTERS + 1)}
    for number in range(MAX_ROUTERS):
        known.heard(b"\x00" + router_topic(f"r{number}"))
    assert known.routers == {f"r{MAX_ROUTERS + 1}", f"r{MAX_ROUTERS + 2}"}


def test_no_more_routers_are_remembered_than_there_is_room_for() -> None:
    known = Subscribers()
    for number in range(2 * MAX_CONNECTED):
        known.heard(b"\x01" + router_topic(f"r{number}"))
    for number in range(MAX_CONNECTED):
        known.heard(b"\x00" + router_topic(f"r{number}"))
    assert not known.routers


@pytest.mark.parametrize("frame", [b"", b"\x01", b"\x02kairos.router.r1", b"\x01kairos.router.", b"\x01kairos.router.a/b"])
def test_what_is_no_subscription_of_a_router_is_ignored(frame: bytes) -> None:
    known = Subscribers()
    known.heard(frame)
    assert not known.routers


def test_a_topic_is_read_as_it_is_made() -> None:
    longest = "r" * MAX_ID_CHARS
    assert (router_of(router_topic("a-b.c_9")), router_of(router_topic(longest))) == ("a-b.c_9", longest)
    assert router_of(router_topic(longest + "r")) is None


def test_each_message_has_the_lease_of_its_own_time(node: Node) -> None:
    router, decoder = node.router("r1"), StateDecoder(KEY)
    assert node.knows("r1")
    assert decoder.decode(router.recv_multipart()).lease is None
    for left_s in (0.5, 0.4):
        node.leases.lease = Lease(lease_id="b-1", expires_in_s=left_s, prefill_tokens=1, kv_blocks=1)
        heard: list[float] = []
        while left_s not in heard:
            lease = decoder.decode(router.recv_multipart()).lease
            heard.append(lease.expires_in_s if lease is not None else 0.0)


def test_repeat_does_not_wait_for_the_heartbeat() -> None:
    node = Node(period_s=60.0)
    router, decoder = node.router("r1"), StateDecoder(KEY)
    while not node.leases.routers:
        node.publisher.repeat()
        time.sleep(0.005)
    node.leases.lease = Lease(lease_id="b-1", expires_in_s=0.5, prefill_tokens=1, kv_blocks=1)
    node.publisher.repeat()
    while decoder.decode(router.recv_multipart()).lease is None:
        pass
    node.close()
