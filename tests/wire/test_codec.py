"""Node-state frames: round trip, tampering, replay, and any bytes at all."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.errors import WireError
from vllm_kairos.wire.codec import MAX_PAYLOAD_BYTES, STATE_TOPIC, StateDecoder, encode_state
from vllm_kairos.wire.messages import NODE_STATE_SCHEMA, Lease, NodeStateMessage, StepSample, TransferSample

KEY = b"a shared key"
counts = st.integers(0, 2**40)


def message(**changes: object) -> NodeStateMessage:
    fields = {
        name: {int: 1, float: 1.5, str: "x", bool: True}.get(kind, [])
        for name, kind in NodeStateMessage.__annotations__.items()
        if name != "lease"
    }
    fields.update({"schema": NODE_STATE_SCHEMA, "node_id": "d0", "boot_id": "boot-1"})
    return NodeStateMessage(**{**fields, **changes})


def lease(**changes: object) -> Lease:
    return Lease(**{"lease_id": "boot-1-1", "expires_in_s": 0.5, "prefill_tokens": 9, "kv_blocks": 9, **changes})  # type: ignore[arg-type]


leases = st.builds(
    Lease,
    lease_id=st.text(max_size=20),
    expires_in_s=st.floats(0, 10),
    prefill_tokens=counts,
    kv_blocks=counts,
    epoch=counts,
    steps=counts,
    output_tokens=counts,
    transfer_tokens=counts,
    shares=st.dictionaries(st.text(max_size=10), st.tuples(counts, counts, counts), max_size=3),
)
messages = st.builds(
    message,
    node_id=st.text(max_size=20),
    sequence=st.integers(1, 2**60),
    sent_at_s=st.floats(-1e12, 1e12),
    queued_prompt_tokens=st.lists(counts, max_size=5),
    free_kv_blocks=counts,
    step_samples=st.lists(st.builds(StepSample, counts, counts, counts, counts, st.floats(0, 1e6)), max_size=3),
    transfer_samples=st.lists(st.builds(TransferSample, st.text(max_size=5), counts, st.floats(0, 1e6)), max_size=3),
    lease=st.none() | leases,
    speaks_leases=st.booleans(),
)
keys = st.none() | st.binary(min_size=1, max_size=64)


@given(messages, keys)
def test_round_trip(sent: NodeStateMessage, key: bytes | None) -> None:
    assert StateDecoder(key).decode(encode_state(sent, key)) == sent


@given(messages, st.data())
def test_any_changed_byte_is_refused_with_a_key(sent: NodeStateMessage, data: st.DataObject) -> None:
    frames = encode_state(sent, KEY)
    which = data.draw(st.integers(0, 2))
    position = data.draw(st.integers(0, len(frames[which]) - 1))
    changed = bytearray(frames[which])
    changed[position] ^= data.draw(st.integers(1, 255))
    frames[which] = bytes(changed)
    with pytest.raises(WireError):
        StateDecoder(KEY).decode(frames)


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_random_frames_raise_only_wire_errors(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        StateDecoder(None).decode(frames)


@given(messages, st.data())
def test_random_damage_raises_only_wire_errors(sent: NodeStateMessage, data: st.DataObject) -> None:
    payload = bytearray(encode_state(sent, None)[1])
    for _ in range(data.draw(st.integers(1, 5))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    with contextlib.suppress(WireError):
        StateDecoder(None).decode([STATE_TOPIC, bytes(payload[:cut]), b""])


@given(st.lists(st.integers(1, 6), min_size=1, max_size=20))
def test_a_message_is_taken_at_most_once_and_in_order(sequences: list[int]) -> None:
    decoder, last = StateDecoder(KEY), 0
    for sequence in sequences:
        frames = encode_state(message(sequence=sequence), KEY)
        if sequence > last:
            assert decoder.decode(frames).sequence == sequence
            last = sequence
        else:
            with pytest.raises(WireError, match="sequence must be"):
                decoder.decode(frames)


def test_a_new_boot_id_starts_over_and_the_old_one_stays_dead() -> None:
    decoder = StateDecoder(KEY)
    decoder.decode(encode_state(message(boot_id="old", sequence=9), KEY))
    decoder.decode(encode_state(message(boot_id="new", sequence=1), KEY))
    with pytest.raises(WireError, match="replaced by a newer one"):
        decoder.decode(encode_state(message(boot_id="old", sequence=10), KEY))
    assert decoder.decode(encode_state(message(boot_id="new", sequence=2), KEY)).sequence == 2


def test_ranks_and_nodes_are_counted_apart() -> None:
    decoder = StateDecoder(None)
    for node_id in ("d0", "d1"):
        for dp_rank in (0, 1):
            taken = decoder.decode(encode_state(message(node_id=node_id, dp_rank=dp_rank, sequence=1), None))
            assert (taken.node_id, taken.dp_rank) == (node_id, dp_rank)


def test_a_forgotten_node_may_come_back() -> None:
    decoder = StateDecoder(None)
    frames = encode_state(message(sequence=5), None)
    decoder.decode(frames)
    decoder.forget("d0")
    assert decoder.decode(frames).sequence == 5


def test_unsigned_is_refused_where_a_key_is_set() -> None:
    with pytest.raises(WireError, match="signature"):
        StateDecoder(KEY).decode(encode_state(message(), None))


def test_newer_schema_is_refused_by_name_even_with_other_fields() -> None:
    payload = msgspec.msgpack.encode({"schema": NODE_STATE_SCHEMA + 1, "unheard_of": True})
    with pytest.raises(WireError, match=f"schema must be 1..{NODE_STATE_SCHEMA}"):
        StateDecoder(None).decode([STATE_TOPIC, payload, b""])


def test_unknown_fields_of_the_same_schema_are_ignored() -> None:
    fields = {**msgspec.to_builtins(message()), "later_addition": 1}
    assert StateDecoder(None).decode([STATE_TOPIC, msgspec.msgpack.encode(fields), b""]) == message()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"free_kv_blocks": -1}, "free_kv_blocks"),
        ({"queued_prompt_tokens": [3, -1]}, "queued_prompt_tokens"),
        ({"step_samples": [StepSample(1, 1, 1, 1, float("nan"))]}, "sample seconds"),
        ({"sent_at_s": float("inf")}, "sent_at_s"),
        ({"state_age_s": float("nan")}, "state_age_s"),
        ({"state_age_s": -1.0}, "state_age_s"),
    ],
)
def test_impossible_values_are_refused_by_name(changes: dict[str, object], field: str) -> None:
    with pytest.raises(WireError, match=field):
        StateDecoder(None).decode(encode_state(message(**changes), None))


def test_missing_field_is_refused_by_name() -> None:
    fields = msgspec.to_builtins(message())
    del fields["kv_tokens"]
    with pytest.raises(WireError, match="kv_tokens"):
        StateDecoder(None).decode([STATE_TOPIC, msgspec.msgpack.encode(fields), b""])


def test_oversized_payload_is_refused() -> None:
    with pytest.raises(WireError, match="payload must be"):
        StateDecoder(None).decode([STATE_TOPIC, b"\0" * (MAX_PAYLOAD_BYTES + 1), b""])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"expires_in_s": float("nan")}, "expires_in_s"),
        ({"expires_in_s": -0.1}, "expires_in_s"),
        ({"kv_blocks": -1}, "kv_blocks"),
        ({"epoch": -1}, "epoch"),
        ({"output_tokens": -1}, "output_tokens"),
        ({"shares": {"r1": (1, -1, 1)}}, "shares"),
    ],
)
def test_a_lease_that_cannot_be_is_refused(change: dict[str, object], field: str) -> None:
    with pytest.raises(WireError, match=field):
        StateDecoder(None).decode(encode_state(message(lease=lease(**change)), None))


def test_messages_of_before_leases_are_read() -> None:
    fields = msgspec.to_builtins(message())
    for name in ("lease", "speaks_leases"):
        fields.pop(name, None)
    decoded = StateDecoder(None).decode([STATE_TOPIC, msgspec.msgpack.encode(fields), b""])
    assert decoded.lease is None
    assert not decoded.speaks_leases


def test_a_lease_of_before_shares_is_read() -> None:
    old = {"lease_id": "x", "expires_in_s": 1.0, "prefill_tokens": 1, "kv_blocks": 1}
    fields = msgspec.to_builtins(message()) | {"lease": old}
    decoded = StateDecoder(None).decode([STATE_TOPIC, msgspec.msgpack.encode(fields), b""])
    assert decoded.lease is not None
    assert decoded.lease.shares == {}
