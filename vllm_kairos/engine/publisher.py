"""Sends node state over ZMQ from a thread of its own, so that no engine step waits for I/O."""

import threading
import time
from collections.abc import Callable

import msgspec
import zmq

from vllm_kairos.engine.subscribers import Subscribers
from vllm_kairos.errors import ConfigError
from vllm_kairos.wire.codec import encode_state
from vllm_kairos.wire.messages import Lease, NodeStateMessage

LeaseSource = Callable[[frozenset[str]], Lease | None]
"""Takes the routers that spend leases and are connected, and says what is granted; called in the sending thread."""


def nothing_granted(routers: frozenset[str]) -> None:
    """The source of an engine without leases."""


_QUEUED_MESSAGES = 64
_CLOSE_TIMEOUT_S = 2.0
_LONGEST_SUBSCRIPTION_BYTES = 1024
_HEARD_AT_ONCE = 4096
_PING_PERIOD_S, _PING_TIMEOUT_S = 1.0, 3.0  # a reader whose machine vanished is gone after the latter


class StatePublisher:
    """Publishes the latest state at once when told, and repeats it every heartbeat period while none comes.

    Each message carries the next sequence number, the send time, the age of the state in it, since a
    repeated one shows nothing of what arrived meanwhile, and the lease as it is at that time; a repeated one
    carries no samples, so that a reader sees every sample at most once.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        key: bytes | None,
        period_s: float,
        clock: Callable[[], float] = time.time,
        lease: LeaseSource = nothing_granted,
    ) -> None:
        self._key, self._period_s, self._clock, self._lease = key, period_s, clock, lease
        self._read_at_s = 0.0
        self._condition = threading.Condition()
        self._latest: NodeStateMessage | None = None
        self._fresh = self._due = False
        self._closed = False
        self._sequence = 0
        self._subscribers = Subscribers()
        self._context = zmq.Context()
        self._socket = _bind(self._context, endpoint)
        self._thread = threading.Thread(target=self._run, name="kairos-state", daemon=True)
        self._thread.start()

    def publish(self, message: NodeStateMessage) -> None:
        """Hand `message` to the sending thread; never blocks on the network."""
        with self._condition:
            self._latest = _with_unsent_samples(message, self._latest) if self._fresh else message
            self._fresh, self._read_at_s = True, time.monotonic()
            self._condition.notify()

    def repeat(self) -> None:
        """Send the latest state again at once: what goes with it, the lease, has changed."""
        with self._condition:
            self._due = True
            self._condition.notify()

    def close(self) -> None:
        """Stop the thread and free the endpoint; safe to call twice."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while (message := self._next()) is not None:
            self._listen()
            self._sequence += 1
            lease = self._lease(self._subscribers.routers)
            stamped = msgspec.structs.replace(message, sequence=self._sequence, sent_at_s=self._clock(), lease=lease)
            self._socket.send_multipart(encode_state(stamped, self._key))
        self._socket.close(linger=0)
        self._context.term()

    def _next(self) -> NodeStateMessage | None:
        """Wait for a fresh message or the end of a heartbeat period; None when closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._fresh or self._due or self._closed, timeout=self._period_s)
            while self._latest is None and not self._closed:
                self._condition.wait()
            if self._closed or self._latest is None:
                return None
            message = msgspec.structs.replace(self._latest, state_age_s=time.monotonic() - self._read_at_s)
            self._fresh = self._due = False
            self._latest = msgspec.structs.replace(message, step_samples=[], transfer_samples=[])
            return message

    def _listen(self) -> None:
        """Take note of who came and went."""
        for _ in range(_HEARD_AT_ONCE):
            try:
                self._subscribers.heard(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return


def _bind(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str) -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.SNDHWM, _QUEUED_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, _LONGEST_SUBSCRIPTION_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, round(_PING_PERIOD_S * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(_PING_TIMEOUT_S * 1000))
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        context.term()
        raise ConfigError(f"additional_config.kairos.state_endpoint: cannot bind {endpoint!r}: {error}") from error
    return socket


def _with_unsent_samples(message: NodeStateMessage, unsent: NodeStateMessage | None) -> NodeStateMessage:
    if unsent is None:
        return message
    return msgspec.structs.replace(
        message,
        step_samples=unsent.step_samples + message.step_samples,
        transfer_samples=unsent.transfer_samples + message.transfer_samples,
    )
