"""What every workload is: requests with token counts, in the order of their arrival."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Self

from vllm_kairos.errors import WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a workload. Raises WorkloadError naming the request, the field, the rule and the value."""

    request_id: str
    arrival_s: float
    """Seconds from the workload's start, >= 0; for a request with `after`, the earliest it may arrive."""
    prompt_tokens: int
    output_tokens: int
    """Tokens the request generates, >= 1: a prefill alone yields one."""
    block_hashes: tuple[int, ...] = ()
    """Ids of the prompt's leading blocks, kept whole. Two requests with an equal id share the whole prefix up to it."""
    block_tokens: int = 0
    """Prompt tokens that each id covers (the last may be cut short by the prompt's end); 0 when there are no ids."""
    ttft_slo_s: float | None = None
    tbt_slo_s: float | None = None
    tpot_slo_s: float | None = None
    session_id: str = ""
    after: str = ""
    """Closed loop: the request that must end `think_s` before this one arrives."""
    think_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            self._require(name, getattr(self, name) >= 1, ">= 1")
        for name in ("arrival_s", "think_s"):
            value = getattr(self, name)
            self._require(name, isfinite(value) and value >= 0, "a finite number >= 0")
        self._check_objectives()
        self._check_blocks()

    def _check_objectives(self) -> None:
        for name in ("ttft_slo_s", "tbt_slo_s", "tpot_slo_s"):
            value = getattr(self, name)
            self._require(name, value is None or (isfinite(value) and value > 0), "a finite number > 0")

    def _check_blocks(self) -> None:
        if bool(self.block_hashes) != (self.block_tokens > 0):
            rule = "> 0 exactly when there are block_hashes"
            self._require("block_tokens", False, rule)
        if self.block_hashes and len(self.block_hashes) > blocks_of(self.prompt_tokens, self.block_tokens):
            most = blocks_of(self.prompt_tokens, self.block_tokens)
            count = len(self.block_hashes)
            raise WorkloadError(f"request {self.request_id!r}: block_hashes must be at most {most}, got {count}")

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise WorkloadError(f"request {self.request_id!r}: {name} must be {rule}, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests by arrival; those that arrive together keep the order of their rows.

    Raises WorkloadError when there is no request, an id occurs twice, the order is wrong, or `after` names no
    earlier request.
    """

    name: str
    requests: tuple[TraceRequest, ...]
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.requests:
            raise WorkloadError(f"workload {self.name!r} must have at least one request, got none")
        earlier: set[str] = set()
        latest_s = 0.0
        for request in self.requests:
            self._check_place(request, earlier, latest_s)
            earlier.add(request.request_id)
            latest_s = request.arrival_s

    def _check_place(self, request: TraceRequest, earlier: set[str], latest_s: float) -> None:
        where = f"workload {self.name!r}: request {request.request_id!r}"
        if request.request_id in earlier:
            raise WorkloadError(f"{where} must have an id of its own, and it occurs twice")
        if request.arrival_s < latest_s:
            raise WorkloadError(f"{where}: arrival_s must be >= {latest_s}, its predecessor's, got {request.arrival_s}")
        if request.after and request.after not in earlier:
            raise WorkloadError(f"{where}: after must name an earlier request, got {request.after!r}")

    @classmethod
    def in_time_order(cls, name: str, requests: Iterable[TraceRequest], warnings: Iterable[str] = ()) -> Self:
        """The workload of these requests, sorted by arrival; ties stay in the order given."""
        ordered = tuple(sorted(requests, key=lambda request: request.arrival_s))
        return cls(name=name, requests=ordered, warnings=tuple(warnings))

    @property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last one."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s


def blocks_of(tokens: int, block_tokens: int) -> int:
    """How many blocks of `block_tokens` it takes to hold `tokens`, the last one perhaps in part."""
    return -(-tokens // block_tokens)
