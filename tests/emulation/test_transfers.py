"""Two engines on one machine: bytes take their time, blocks are freed, and every failure is told."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vllm_kairos.emulation.leases import LeaseTable
from vllm_kairos.emulation.link import LinkLine
from vllm_kairos.emulation.transfers import EndedPull, Peer, TransferService
from vllm_kairos.errors import ConfigError

BANDWIDTH = 1e9


@pytest.fixture
def service() -> Iterator[Callable[..., Any]]:
    made: list[TransferService] = []

    def make(engine_id: str, leases: LeaseTable | None = None) -> TransferService:
        made.append(
            TransferService(
                engine_id, leases or LeaseTable(), bandwidth_bytes_per_s=BANDWIDTH, latency_s=0.0, lease_extension_s=20.0
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def sender(service: Callable[..., Any]) -> tuple[TransferService, LeaseTable, Peer]:
    leases = LeaseTable()
    leases.track(["r1", "r2"])
    made = service("engine-p", leases)
    port = _free_port()
    made.listen("127.0.0.1", port)
    return made, leases, Peer("127.0.0.1", port, "engine-p")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ended(service: TransferService, count: int = 1) -> list[EndedPull]:
    ended: list[EndedPull] = []
    deadline_s = time.monotonic() + 30
    while len(ended) < count and time.monotonic() < deadline_s:
        service.news.wait(0.1)
        ended += service.take_ended()
    return ended


def _pulled(leases: LeaseTable) -> set[str]:
    deadline_s = time.monotonic() + 30
    pulled: set[str] = set()
    while not pulled and time.monotonic() < deadline_s:
        pulled, _ = leases.take_ended(0.0)
        time.sleep(0.01)
    return pulled


def test_a_link_carries_one_transfer_after_the_other() -> None:
    link = LinkLine(100.0)
    assert link.carry(50.0, 10.0) == 0.5
    assert link.carry(100.0, 10.25) == 1.25
    assert link.carry(10.0, 20.0) == pytest.approx(0.1)


def test_a_pull_takes_its_bytes_over_the_bandwidth_and_frees_the_blocks(service: Any, sender: Any) -> None:
    _, leases, peer = sender
    reader = service("engine-d")
    reader.pull("mine", peer, "r1", 50_000_000)
    (pull,) = _ended(reader)
    assert (pull.request_id, pull.failure) == ("mine", None)
    assert pull.transfer_s >= 0.05
    assert _pulled(leases) == {"r1"}


def test_two_pulls_share_the_link(service: Any, sender: Any) -> None:
    _, _, peer = sender
    reader = service("engine-d")
    reader.pull("first", peer, "r1", 50_000_000)
    reader.pull("second", peer, "r2", 50_000_000)
    assert max(pull.transfer_s for pull in _ended(reader, 2)) >= 0.1


def test_blocks_that_nobody_needs_are_freed(service: Any, sender: Any) -> None:
    _, leases, peer = sender
    service("engine-d").let_go(peer, "r2")
    assert _pulled(leases) == {"r2"}


@pytest.mark.parametrize(("engine_id", "remote_id"), [("engine-p", "expired"), ("an earlier life", "r1")])
def test_blocks_that_are_gone_fail_the_pull(service: Any, sender: Any, engine_id: str, remote_id: str) -> None:
    _, _, peer = sender
    reader = service("engine-d")
    reader.pull("mine", Peer(peer.host, peer.port, engine_id), remote_id, 1)
    (pull,) = _ended(reader)
    assert "no blocks" in (pull.failure or "")


def test_a_dead_sender_fails_the_pull(service: Any) -> None:
    reader = service("engine-d")
    reader.pull("mine", Peer("127.0.0.1", _free_port(), "engine-p"), "r1", 1)
    (pull,) = _ended(reader)
    assert pull.failure is not None


def test_a_sender_that_dies_meanwhile_fails_the_pull(service: Any, sender: Any) -> None:
    made, _, peer = sender
    reader = service("engine-d")
    reader.pull("mine", peer, "r1", 10**12)
    time.sleep(0.2)
    made.close()
    (pull,) = _ended(reader)
    assert pull.failure is not None
    assert pull.transfer_s < 100


def test_a_pull_fails_on_demand_and_keeps_the_blocks(service: Any, sender: Any) -> None:
    _, leases, peer = sender
    reader = service("engine-d")
    reader.pull("mine", peer, "r1", 1, must_fail=True)
    (pull,) = _ended(reader)
    assert "emulated fault" in (pull.failure or "")
    assert leases.holds("r1")


def test_a_heartbeat_reaches_the_leases(service: Any, sender: Any) -> None:
    _, leases, peer = sender
    leases.lease("r1", 0.0)
    service("engine-d").heartbeat(peer, ["r1"])
    deadline_s = time.monotonic() + 30
    while leases._until_s["r1"] == 0.0 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert leases._until_s["r1"] > 0.0


def test_nonsense_on_the_side_channel_harms_nobody(service: Any, sender: Any) -> None:
    _, _, peer = sender
    read = b'{"op": "read", "engine": "engine-p", "request": "r1", "bytes": %s}\n'
    odd_sizes = (read % size for size in (b"1e300", b"-1", b"true", b"NaN", b"9" * 400))
    for line in (b"not json\n", b"[]\n", b"{}\n", b'{"op": "read", "engine": "engine-p"}\n', b"[" * 60_000 + b"\n", *odd_sizes):
        with socket.create_connection((peer.host, peer.port)) as connection:
            connection.sendall(line)
            assert connection.recv(100) == b""
    reader = service("engine-d")
    reader.pull("mine", peer, "r1", 1)
    assert _ended(reader)[0].failure is None


@pytest.mark.parametrize(
    "answer",
    [b"", b"\n", b"[]\n", b"{}\n", b"null\n", b'{"wait_s": "soon"}\n', b'{"wait_s": %s}\n' % (b"9" * 400), b"[" * 60_000],
)
def test_whoever_else_listens_there_fails_the_pull(service: Any, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        reader = service("engine-d")
        reader.pull("mine", Peer("127.0.0.1", other.getsockname()[1], "engine-p"), "r1", 1)
        connection, _ = other.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)
        (pull,) = _ended(reader)
    assert pull.failure is not None


@pytest.mark.parametrize("port", [-1, 0, 70_000, 10**30])
def test_a_port_that_there_is_not_fails_the_pull(service: Any, port: int) -> None:
    reader = service("engine-d")
    reader.let_go(Peer("127.0.0.1", port, "engine-p"), "r1")
    reader.pull("mine", Peer("127.0.0.1", port, "engine-p"), "r1", 1)
    (pull,) = _ended(reader)
    assert pull.failure is not None


def test_a_taken_address_is_refused_by_name(service: Any, sender: Any) -> None:
    _, _, peer = sender
    with pytest.raises(ConfigError, match=str(peer.port)):
        service("engine-x").listen(peer.host, peer.port)
