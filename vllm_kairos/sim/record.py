"""What became of one request."""

from dataclasses import dataclass
from math import inf, nan

from vllm_kairos.core.decision import Assign, Reject
from vllm_kairos.core.shapes import Route
from vllm_kairos.sim.job import Job
from vllm_kairos.workload.request import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What counts as good enough where a request does not say itself (paper section 6.1.1)."""

    ttft_s: float = 4.0
    tbt_s: float = 0.070
    tpot_s: float | None = None  # of a request's mean gap; None: the TBT objective

    def attained_ttft(self, record: "RequestRecord") -> bool:
        """Whether its first token was in time."""
        return record.ok and record.ttft_s <= (record.request.ttft_slo_s or self.ttft_s)

    def attained_tpot(self, record: "RequestRecord") -> bool:
        """Whether the mean of its gaps is within the TPOT objective, or without one the TBT objective."""
        own = record.request
        limit_s = own.tpot_slo_s or own.tbt_slo_s or self.tpot_s or self.tbt_s
        return record.ok and not record.tpot_s > limit_s


DEFAULT_OBJECTIVES = Objectives()


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where the time to the first token went, in seconds; the parts add up to the TTFT."""

    router_s: float = 0.0  # decision, hops and frontends
    prefill_queue_s: float = 0.0
    prefill_exec_s: float = 0.0
    transfer_s: float = 0.0  # the wait for KV blocks on the decode node included
    decode_wait_s: float = 0.0  # KV here, to the first token


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as its client saw it, with the decision that was made for it."""

    request: TraceRequest
    arrival_s: float
    decision: Assign | Reject
    ttft_s: float = inf  # inf: it has no first token
    finished_s: float = inf
    breakdown: Breakdown = Breakdown()
    hit_tokens: int = 0
    preemptions: int = 0
    migrations: int = 0

    @property
    def deflected(self) -> bool:
        return isinstance(self.decision, Assign) and self.decision.route is Route.LOCAL

    @property
    def ok(self) -> bool:
        """Whether all its tokens arrived."""
        return self.finished_s < inf

    @property
    def tpot_s(self) -> float:
        """Mean gap between its tokens; NaN for a single token or an unfinished request."""
        gaps = self.request.output_tokens - 1
        return (self.finished_s - self.arrival_s - self.ttft_s) / gaps if self.ok and gaps else nan

    def attains(self, objectives: Objectives) -> bool:
        """Whether its first token was in time and the mean of its gaps is within the objective."""
        return objectives.attained_ttft(self) and objectives.attained_tpot(self)


def breakdown(ttft_s: float, prefill: Job | None, decode: Job) -> Breakdown:
    """Split the TTFT of a request by the times its legs noted; what no leg accounts for is the router's."""
    ran = prefill or decode
    queue_s = ran.started_s - ran.submitted_s
    exec_s = ran.prefilled_s - ran.started_s
    transfer_s = decode_wait_s = 0.0
    if prefill is not None and decode.kv_arrived_s == decode.kv_arrived_s:
        transfer_s = decode.kv_arrived_s - decode.submitted_s
        decode_wait_s = decode.first_token_s - decode.kv_arrived_s
    return Breakdown(
        router_s=max(0.0, ttft_s - queue_s - exec_s - transfer_s - decode_wait_s),
        prefill_queue_s=queue_s,
        prefill_exec_s=exec_s,
        transfer_s=transfer_s,
        decode_wait_s=decode_wait_s,
    )
