"""Frames of the node-state feed: `[topic, msgpack payload, HMAC-SHA256 of the payload or nothing]`.

No pickle, and nothing but WireError leaves `decode`, whatever the bytes.
"""

import hashlib
import hmac
import math
from collections import deque
from collections.abc import Sequence

import msgspec

from vllm_kairos.errors import WireError
from vllm_kairos.wire.messages import NODE_STATE_SCHEMA, Lease, NodeStateMessage

STATE_TOPIC = b"kairos.state"
MAX_PAYLOAD_BYTES = 1 << 20
MAX_SENDERS = 4096
_KEPT_BOOT_IDS = 64


class _Envelope(msgspec.Struct):
    schema: int


_ENCODER = msgspec.msgpack.Encoder()
_ENVELOPE_DECODER = msgspec.msgpack.Decoder(_Envelope)
_STATE_DECODER = msgspec.msgpack.Decoder(NodeStateMessage)
_COUNTS = tuple(name for name in NodeStateMessage.__struct_fields__ if NodeStateMessage.__annotations__[name] is int)
_LEASE_COUNTS = tuple(name for name in Lease.__struct_fields__ if Lease.__annotations__[name] is int)


def encode_state(message: NodeStateMessage, key: bytes | None) -> list[bytes]:
    """Return the three frames that carry `message`; without a key the signature is empty."""
    payload = _ENCODER.encode(message)
    return [STATE_TOPIC, payload, _sign(payload, key) if key else b""]


def _sign(payload: bytes, key: bytes) -> bytes:
    return hmac.new(key, payload, hashlib.sha256).digest()


class _Sender:
    """What was last heard from one engine core."""

    __slots__ = ("boot_id", "dead_boot_ids", "sequence")

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self.sequence = 0
        self.dead_boot_ids: deque[str] = deque(maxlen=_KEPT_BOOT_IDS)

    def accept(self, message: NodeStateMessage) -> None:
        if message.boot_id in self.dead_boot_ids:
            raise WireError(f"node state of {message.node_id!r}: boot_id {message.boot_id!r} was replaced by a newer one")
        if message.boot_id != self.boot_id:
            self.dead_boot_ids.append(self.boot_id)
            self.boot_id, self.sequence = message.boot_id, 0
        if message.sequence <= self.sequence:
            rule = f"sequence must be > {self.sequence}, got {message.sequence}"
            raise WireError(f"node state of {message.node_id!r}: {rule} (replayed or reordered)")
        self.sequence = message.sequence


class StateDecoder:
    """Turns frames into messages, each at most once and never out of order.

    Per (node_id, dp_rank) the sequence must grow. A new boot id starts over, and the one it
    replaced stays dead, so that frames recorded before a restart cannot be played again.
    """

    def __init__(self, key: bytes | None) -> None:
        self._key = key
        self._senders: dict[tuple[str, int], _Sender] = {}

    def decode(self, frames: Sequence[bytes]) -> NodeStateMessage:
        """Return the message in `frames`; WireError when malformed, unsigned, replayed or of a newer schema."""
        message = _parse(_authentic_payload(frames, self._key))
        self._sender(message).accept(message)
        return message

    def forget(self, node_id: str) -> None:
        """Drop what is kept about a node that was removed."""
        for sender in [key for key in self._senders if key[0] == node_id]:
            del self._senders[sender]

    def _sender(self, message: NodeStateMessage) -> _Sender:
        key = (message.node_id, message.dp_rank)
        if key not in self._senders:
            if len(self._senders) >= MAX_SENDERS:
                raise WireError(f"node state of {message.node_id!r}: more than {MAX_SENDERS} senders")
            self._senders[key] = _Sender(message.boot_id)
        return self._senders[key]


def _authentic_payload(frames: Sequence[bytes], key: bytes | None) -> bytes:
    if len(frames) != 3 or frames[0] != STATE_TOPIC:
        raise WireError(f"node state: expected 3 frames that begin with {STATE_TOPIC!r}, got {len(frames)}")
    payload, signature = frames[1], frames[2]
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise WireError(f"node state: payload must be <= {MAX_PAYLOAD_BYTES} bytes, got {len(payload)}")
    if key and not hmac.compare_digest(signature, _sign(payload, key)):
        raise WireError("node state: signature does not match the shared key")
    return payload


def _parse(payload: bytes) -> NodeStateMessage:
    try:
        schema = _ENVELOPE_DECODER.decode(payload).schema
        if not 1 <= schema <= NODE_STATE_SCHEMA:
            raise WireError(f"node state: schema must be 1..{NODE_STATE_SCHEMA}, got {schema}")
        message = _STATE_DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"node state: {error}") from error
    _check_values(message)
    if message.lease is not None:
        _check_lease(message.lease)
    return message


def _check_values(message: NodeStateMessage) -> None:
    for name in _COUNTS:
        if getattr(message, name) < 0:
            raise WireError(f"node state: {name} must be >= 0, got {getattr(message, name)}")
    for name in ("queued_prompt_tokens", "deflected_tokens_left"):
        if any(tokens < 0 for tokens in getattr(message, name)):
            raise WireError(f"node state: {name} must hold numbers >= 0")
    seconds = [sample.step_s for sample in message.step_samples]
    seconds += [sample.transfer_s for sample in message.transfer_samples]
    if not all(math.isfinite(value) and value >= 0 for value in seconds):
        raise WireError("node state: sample seconds must be finite and >= 0")
    if not (math.isfinite(message.state_age_s) and message.state_age_s >= 0):
        raise WireError(f"node state: state_age_s must be a finite number >= 0, got {message.state_age_s}")
    if not math.isfinite(message.sent_at_s):
        raise WireError(f"node state: sent_at_s must be finite, got {message.sent_at_s}")


def _check_lease(lease: Lease) -> None:
    if not (math.isfinite(lease.expires_in_s) and lease.expires_in_s >= 0):
        raise WireError(f"node state: lease.expires_in_s must be a finite number >= 0, got {lease.expires_in_s}")
    for name in _LEASE_COUNTS:
        if getattr(lease, name) < 0:
            raise WireError(f"node state: lease.{name} must be >= 0, got {getattr(lease, name)}")
    if any(min(share) < 0 for share in lease.shares.values()):
        raise WireError("node state: lease.shares must hold numbers >= 0")
