"""What the router sent to a node and the node's last report cannot show yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from vllm_kairos.core.lease.terms import Share
from vllm_kairos.core.node import LinkState, NodeState


@dataclass(slots=True)
class InFlight:
    """One request under way; a leg is None once its node restarted or left and took the leg with it."""

    prefill_node: str | None
    decode_node: str | None
    prompt_tokens: int
    dispatched_at_s: float
    deflected: bool
    need: Share | None = None  # what it spends of the decode node's lease
    prefill_done_at_s: float = inf
    first_token_at_s: float = inf


def corrected(report: NodeState, requests: Iterable[InFlight], shown_until_s: float) -> NodeState:
    """Return `report` with what it cannot show of `requests`: everything later than `shown_until_s`.

    -inf for `shown_until_s` counts every request in full, which is all there is to know of a stale node.
    """
    unseen = [request for request in requests if request.first_token_at_s > shown_until_s]
    if not unseen and not report.deflected_tokens_left:
        return report  # most of the time: the report has all of them
    sums = _Sums(report, shown_until_s)
    for request in unseen:
        if request.prefill_node == report.node_id:
            sums.add_prefill(request)
        if request.decode_node == report.node_id:
            sums.add_decode(request)
    return sums.state()


class _Sums:
    """What one node's requests add to its report."""

    def __init__(self, report: NodeState, shown_until_s: float) -> None:
        self._report, self._shown_until_s = report, shown_until_s
        self._lease = report.lease
        self._queue: list[int] = []
        self._decodes = self._kv_tokens = self._expected = self._expected_kv_tokens = 0
        self._deflected = self._ended_unseen = self._unseen_deflected_tokens = 0
        # A prompt gets its blocks chunk by chunk: what the node has left to compute will be taken too.
        self._blocks = report.kv_blocks_for(report.prefill_ahead[1])
        self._moving_tokens: dict[str, int] = {}

    def add_prefill(self, request: InFlight) -> None:
        """Count a prompt that waits or runs on this node."""
        if request.prefill_done_at_s == inf and request.dispatched_at_s > self._shown_until_s:
            self._queue.append(request.prompt_tokens)

    def add_decode(self, request: InFlight) -> None:
        """Count a request that decodes on this node, now or soon."""
        if request.deflected:
            self._add_deflected(request)
        else:
            self._add_kept(request)

    def _add_deflected(self, request: InFlight) -> None:
        seen = request.dispatched_at_s <= self._shown_until_s
        if not seen:
            self._blocks += self._report.kv_blocks_for(request.prompt_tokens)
            if request.need is not None and self._lease is not None:
                self._lease = self._lease.without(request.need)
        if request.first_token_at_s == inf:
            self._deflected += 1
            if not seen:
                self._queue.append(request.prompt_tokens)
                self._unseen_deflected_tokens += request.prompt_tokens
        elif request.first_token_at_s > self._shown_until_s:
            self._ended_unseen += seen
            self._add_running(request)

    def _add_kept(self, request: InFlight) -> None:
        if request.prefill_done_at_s <= self._shown_until_s:
            self._add_moving(request)
            return
        self._blocks += self._report.kv_blocks_for(request.prompt_tokens)
        if request.prefill_done_at_s == inf:
            self._expected += 1
            self._expected_kv_tokens += request.prompt_tokens
        else:
            self._add_running(request)
            self._add_moving(request)

    def _add_running(self, request: InFlight) -> None:
        self._decodes += 1
        self._kv_tokens += request.prompt_tokens

    def _add_moving(self, request: InFlight) -> None:
        if request.prefill_node is not None and request.first_token_at_s == inf:
            moving = self._moving_tokens
            moving[request.prefill_node] = moving.get(request.prefill_node, 0) + request.prompt_tokens

    def state(self) -> NodeState:
        """Add the sums to the report."""
        report = self._report
        reported = max(0, report.deflected_prefills - self._ended_unseen)
        left = report.deflected_tokens_left if reported else 0
        queue, queued_tokens = _without_first(report, report.deflected_tokens_left - left)
        return NodeState(  # spelled out: `replace` takes three times as long, and this comes twice per request
            node_id=report.node_id,
            role=report.role,
            running_decodes=report.running_decodes + self._decodes,
            kv_tokens=report.kv_tokens + self._kv_tokens,
            queued_prompt_tokens=(*queue, *self._queue),
            queued_prefill_tokens=queued_tokens + sum(self._queue),
            token_budget_tokens=report.token_budget_tokens,
            max_running_requests=report.max_running_requests,
            block_size_tokens=report.block_size_tokens,
            free_kv_blocks=max(0, report.free_kv_blocks - self._blocks),
            total_kv_blocks=report.total_kv_blocks,
            kv_bytes_per_token=report.kv_bytes_per_token,
            remote_kv_requests=report.remote_kv_requests,
            remote_kv_tokens=report.remote_kv_tokens,
            expected_decodes=self._expected,
            expected_kv_tokens=self._expected_kv_tokens,
            deflected_prefills=max(reported, self._deflected),
            deflected_tokens_left=left + self._unseen_deflected_tokens,
            lease=self._lease,
            speaks_leases=report.speaks_leases,
            links=self._links() if self._moving_tokens else report.links,
            accepting=report.accepting,
            stale=report.stale,
            observed_at_s=report.observed_at_s,
        )

    def _links(self) -> tuple[LinkState, ...]:
        """The measured links, with what is moving on them and on others."""
        rates = {link.prefill_node: link.bandwidth_bytes_per_s for link in self._report.links}
        size_bytes = self._report.kv_bytes_per_token
        return tuple(
            LinkState(
                prefill_node=name,
                bandwidth_bytes_per_s=rates.get(name),
                queued_bytes=self._moving_tokens.get(name, 0) * size_bytes,
            )
            for name in sorted(rates.keys() | self._moving_tokens.keys())
        )


def _without_first(report: NodeState, tokens: int) -> tuple[Sequence[int], int]:
    """The report's queue without its first `tokens` tokens: deflected prompts that have since ended, which ran first."""
    if not tokens:
        return report.queued_prompt_tokens, report.queued_prefill_tokens
    queue, left = list(report.queued_prompt_tokens), tokens
    while left > 0 and queue:
        cut = min(left, queue[0])
        queue[0], left = queue[0] - cut, left - cut
        if not queue[0]:
            del queue[0]
    return queue, max(0, report.queued_prefill_tokens - tokens)
