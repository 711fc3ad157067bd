"""Faults begin when they should, and do what they say."""

from typing import Any

import pytest

from vllm_kairos.emulation.faults import Fault, FaultBoard, FaultKind, parse_fault
from vllm_kairos.errors import ConfigError


def test_a_fault_waits_for_its_step_or_its_time() -> None:
    board = FaultBoard([Fault(kind=FaultKind.CRASH, at_step=3), Fault(kind=FaultKind.HANG, at_s=2.0, duration_s=1.0)])
    assert board.begin(2, 1.0, computes=True) == []
    assert [fault.kind for fault in board.begin(3, 1.0, computes=True)] == [FaultKind.CRASH]
    assert [fault.kind for fault in board.begin(4, 2.0, computes=True)] == [FaultKind.HANG]
    assert board.begin(5, 3.0, computes=True) == []


def test_a_device_hangs_only_over_a_step_that_it_computes() -> None:
    hang, slow = Fault(kind=FaultKind.HANG), Fault(kind=FaultKind.SLOW, factor=3.0)
    board = FaultBoard([hang, slow])
    assert board.begin(1, 5.0, computes=False) == []
    assert board.slowdown(5.0) == 3.0
    assert board.begin(1, 6.0, computes=True) == [hang]
    assert board.begin(2, 7.0, computes=True) == []


def test_slow_for_a_while() -> None:
    board = FaultBoard()
    board.add(Fault(kind=FaultKind.SLOW, factor=3.0, duration_s=10.0))
    assert board.begin(1, 5.0, computes=True) == []
    assert [board.slowdown(at_s) for at_s in (5.0, 14.9, 15.0)] == [3.0, 3.0, 1.0]


def test_so_many_transfers_fail_and_so_many_leases_end() -> None:
    board = FaultBoard([Fault(kind=FaultKind.FAIL_TRANSFERS, count=2), Fault(kind=FaultKind.EXPIRE_TRANSFERS)])
    assert not board.take_transfer_failure()
    board.begin(1, 0.0, computes=True)
    assert [board.take_transfer_failure() for _ in range(3)] == [True, True, False]
    assert [board.take_expiry() for _ in range(2)] == [True, False]


def test_a_fault_is_read_from_json() -> None:
    read = parse_fault({"kind": "slow", "factor": 2, "duration_s": 5, "at_s": None})
    assert read == Fault(kind=FaultKind.SLOW, factor=2, duration_s=5)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (None, "kind"),
        ({"kind": "explode"}, "kind"),
        ({"kind": "crash", "when": 1}, "when"),
        ({"kind": "crash", "at_step": 0}, "at_step"),
        ({"kind": "crash", "at_step": 1.5}, "at_step"),
        ({"kind": "slow", "factor": float("inf")}, "factor"),
        ({"kind": "slow", "factor": True}, "factor"),
        ({"kind": "slow", "factor": 10**400}, r"fault\.factor must be a finite number >= 0\.001"),
        ({"kind": "hang", "duration_s": -(10**400)}, "duration_s"),
        ({"kind": "hang", 1: 2, "when": 1}, "1: no such setting"),
        ({"kind": "crash", "count": 2}, r"fault\.count: no such setting; known are at_s, at_step, kind"),
        ({"kind": "hang", "at_step": 1, "at_s": 2}, "at_s or at_step, got both"),
    ],
)
def test_a_malformed_fault_is_refused_by_field(raw: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_fault(raw)
