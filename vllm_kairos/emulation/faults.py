"""Faults on demand: what goes wrong on an emulated engine, and when."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

from vllm_kairos.errors import ConfigError
from vllm_kairos.settings_object import Reader, number, read_object, whole


class FaultKind(StrEnum):
    """What can go wrong."""

    CRASH = "crash"  # the engine core dies at once, as by kill -9
    HANG = "hang"  # the device does not answer for `duration_s`, from its next step on
    SLOW = "slow"  # every step takes `factor` times as long for `duration_s`
    FAIL_TRANSFERS = "fail_transfers"  # the next `count` pulls by this node fail
    EXPIRE_TRANSFERS = "expire_transfers"  # the next `count` KV leases of this node end at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, from step `at_step` on or `at_s` seconds after start-up, whichever is given; neither: at once."""

    kind: FaultKind
    at_step: int | None = None
    at_s: float | None = None
    duration_s: float = inf
    factor: float = 2.0
    count: int = 1

    def is_due(self, step: int, elapsed_s: float) -> bool:
        """Whether the fault begins by now. Counted steps begin at 1."""
        if self.at_step is not None:
            return step >= self.at_step
        return elapsed_s >= (self.at_s or 0.0)


def parse_fault(raw: Any, *, where: str = "fault") -> Fault:
    """Read one fault; ConfigError names the field, the rule and the value."""
    if not isinstance(raw, Mapping) or raw.get("kind") not in tuple(FaultKind):
        raise ConfigError(f"{where}: kind must be one of {', '.join(FaultKind)}, got {raw!r}")
    kind = FaultKind(raw["kind"])
    readers = {name: _READERS[name] for name in (*_WHEN, *_FIELDS[kind])}
    values = read_object(where, {name: value for name, value in raw.items() if name != "kind"}, readers, also_known=("kind",))
    if len(_WHEN & values.keys()) > 1:
        raise ConfigError(f"{where} must begin {' or '.join(sorted(_WHEN))}, got both")
    return Fault(kind=kind, **values)


_WHEN = {"at_step", "at_s"}
_FIELDS: Mapping[FaultKind, tuple[str, ...]] = {
    FaultKind.CRASH: (),
    FaultKind.HANG: ("duration_s",),
    FaultKind.SLOW: ("factor", "duration_s"),
    FaultKind.FAIL_TRANSFERS: ("count",),
    FaultKind.EXPIRE_TRANSFERS: ("count",),
}
_SECONDS = number("a finite number >= 0", lambda value: 0 <= value < inf)
_READERS: Mapping[str, Reader] = {
    "at_step": whole(1),
    "at_s": _SECONDS,
    "duration_s": _SECONDS,
    "factor": number("a finite number >= 0.001", lambda value: 0.001 <= value < inf),
    "count": whole(1),
}


class FaultBoard:
    """The faults of one engine: those still to come, and what those that came left behind."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._pending = list(faults)
        self._slow: list[tuple[float, float]] = []  # until when, factor
        self._transfers_to_fail = self._leases_to_expire = 0

    def add(self, fault: Fault) -> None:
        """Ask for one more."""
        self._pending.append(fault)

    def begin(self, step: int, elapsed_s: float, *, computes: bool) -> list[Fault]:
        """Begin what is due; returns the crashes and hangs, which the caller must carry out.

        A device hangs over a step that it `computes`, and until there is one its engine takes requests in.
        """
        possible = [fault for fault in self._pending if computes or fault.kind is not FaultKind.HANG]
        due = [fault for fault in possible if fault.is_due(step, elapsed_s)]
        if due:
            self._pending = [fault for fault in self._pending if fault not in due]
        for fault in due:
            self._note(fault, elapsed_s)
        return [fault for fault in due if fault.kind in (FaultKind.CRASH, FaultKind.HANG)]

    def slowdown(self, elapsed_s: float) -> float:
        """What step times are multiplied by."""
        factor = 1.0
        for until_s, each in self._slow:
            factor *= each if elapsed_s < until_s else 1.0
        return factor

    def take_transfer_failure(self) -> bool:
        """Whether the pull that begins must fail."""
        failing = self._transfers_to_fail > 0
        self._transfers_to_fail -= failing
        return failing

    def take_expiry(self) -> bool:
        """Whether the lease that begins must end at once."""
        expiring = self._leases_to_expire > 0
        self._leases_to_expire -= expiring
        return expiring

    def _note(self, fault: Fault, elapsed_s: float) -> None:
        if fault.kind is FaultKind.SLOW:
            self._slow.append((elapsed_s + fault.duration_s, fault.factor))
        elif fault.kind is FaultKind.FAIL_TRANSFERS:
            self._transfers_to_fail += fault.count
        elif fault.kind is FaultKind.EXPIRE_TRANSFERS:
            self._leases_to_expire += fault.count
