"""Request parameters: what is accepted, and which field a refusal names."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.errors import WireError
from vllm_kairos.wire.params import MAX_SCHEDULE_ENTRIES, LeaseClaim, encode, parse


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=50))
def test_round_trip_keeps_the_schedule(entries: list[int]) -> None:
    kept = parse(encode(entries)).chunk_schedule
    assert kept + [kept[-1]] * (len(entries) - len(kept)) == entries


def test_round_trip_keeps_the_lease() -> None:
    claim = LeaseClaim(id="boot1234-7", router="r1")
    assert parse(encode([64], claim)).lease == claim
    assert parse(encode([64])).lease is None
    assert "lease" not in encode([64])  # servers that know of no leases refuse the field


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (7, "kairos"),
        ({}, "schema"),
        ({"schema": 2, "chunk_schedule": [1]}, "schema"),
        ({"schema": 1}, "chunk_schedule"),
        ({"schema": 1, "chunk_schedule": []}, "chunk_schedule"),
        ({"schema": 1, "chunk_schedule": [4, 0]}, r"chunk_schedule\[1\]"),
        ({"schema": 1, "chunk_schedule": [4, "x"]}, r"chunk_schedule"),
        ({"schema": 1, "chunk_schedule": [1] * (MAX_SCHEDULE_ENTRIES + 1)}, "chunk_schedule"),
        ({"schema": 1, "chunk_schedule": [1], "chunks": []}, "chunks"),
        ({"schema": 1, "chunk_schedule": [1], "lease": {"id": "a"}}, "router"),
        ({"schema": 1, "chunk_schedule": [1], "lease": {"id": "", "router": "r"}}, r"lease\.id"),
        ({"schema": 1, "chunk_schedule": [1], "lease": {"id": "a", "router": "r" * 257}}, r"lease\.router"),
        ({"schema": 1, "chunk_schedule": [1], "lease": {"id": "a", "router": "r", "more": 1}}, "more"),
        ({"schema": 1, "chunk_schedule": [1], "\ud800": 1}, "kairos must hold text without lone surrogates"),
    ],
)
def test_refusal_names_the_field(raw: Any, field: str) -> None:
    with pytest.raises(WireError, match=field):
        parse(raw)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner)))
def test_anything_else_raises_only_wire_errors(raw: Any) -> None:
    with pytest.raises(WireError):
        parse(raw)
