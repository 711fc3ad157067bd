"""A node's report with what was sent since: what it corrects, and that it keeps the rest."""

from dataclasses import fields
from math import inf

from vllm_kairos.core.inflight import InFlight, corrected
from vllm_kairos.core.lease import NodeLease, Share
from vllm_kairos.core.node import LinkState, NodeState, Role

FULL = NodeState(
    node_id="d",
    role=Role.BOTH,
    running_decodes=1,
    kv_tokens=2,
    queued_prompt_tokens=(3,),
    queued_prefill_tokens=4,
    token_budget_tokens=5,
    max_running_requests=6,
    block_size_tokens=7,
    free_kv_blocks=800,
    total_kv_blocks=900,
    kv_bytes_per_token=10,
    remote_kv_requests=11,
    remote_kv_tokens=12,
    deflected_prefills=15,
    deflected_tokens_left=2,
    lease=NodeLease("boot-1", Share(1000, 100, 1000), until_s=19.0),
    speaks_leases=True,
    links=(LinkState(prefill_node="p", bandwidth_bytes_per_s=1.0),),
    accepting=False,
    stale=True,
    observed_at_s=17.0,
)
KEPT = InFlight(prefill_node="p", decode_node="d", prompt_tokens=70, dispatched_at_s=0.0, deflected=False)


def test_a_correction_keeps_every_field_that_it_does_not_correct():
    """`expected_*` of a report are the router's own to fill in."""
    seen = corrected(FULL, [KEPT], -inf)
    changed = {one.name for one in fields(FULL) if one.compare and getattr(seen, one.name) != getattr(FULL, one.name)}
    assert changed == {"expected_decodes", "expected_kv_tokens", "free_kv_blocks"}
    unset = {one.name for one in fields(FULL) if one.init and one.default == getattr(FULL, one.name)}
    assert unset == {"expected_decodes", "expected_kv_tokens"}, "the report above must set every other field"
