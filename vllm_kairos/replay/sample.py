"""What the client saw of one request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from vllm_kairos.workload.request import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request as it went; times in seconds from the start of the replay."""

    request: TraceRequest
    sent_id: str
    due_s: float
    sent_s: float
    ended_s: float
    arrivals_s: tuple[float, ...] = ()
    """Moments at which tokens came, in order."""
    arrival_tokens: tuple[int, ...] = ()
    """Tokens of each arrival; 0 where the server does not count them chunk by chunk."""
    output_tokens: int = 0
    prompt_tokens: int | None = None
    """As the server counted them."""
    cached_tokens: int | None = None
    status: int | None = None
    finish_reason: str | None = None
    error: str = ""
    """The kind of failure; empty for a whole answer."""
    detail: str = ""
    decision: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def send_lag_s(self) -> float:
        """How late it was sent."""
        return self.sent_s - self.due_s

    @property
    def ttft_s(self) -> float | None:
        """From the moment it was due to its first token."""
        return self.arrivals_s[0] - self.due_s if self.arrivals_s else None

    @property
    def ttft_from_sent_s(self) -> float | None:
        """From the moment it was sent to its first token."""
        return self.arrivals_s[0] - self.sent_s if self.arrivals_s else None

    @property
    def e2e_s(self) -> float | None:
        """From the moment it was due to its last token."""
        return self.arrivals_s[-1] - self.due_s if self.arrivals_s else None

    @property
    def tpot_s(self) -> float | None:
        """(last - first) / (tokens - 1); None for fewer than two tokens."""
        if not self.arrivals_s or self.output_tokens < 2:
            return None
        return (self.arrivals_s[-1] - self.arrivals_s[0]) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Times between arrivals."""
        return tuple(later - earlier for earlier, later in pairwise(self.arrivals_s))

    @property
    def has_wanted_length(self) -> bool:
        return self.output_tokens == self.request.output_tokens
