"""Formats of closed-loop sessions: who waits for whom, and whose prefixes are shared."""

import pytest

from tests.workload.files import write
from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload import describe, load_trace


def _turn(t: float, tokens: int = 130, **changes: object) -> dict:
    return {"t": t, "type": "n", "in": tokens, "out": 5, "hash_ids": [1, 2], "api_time": 2.0, "think_time": 3.0} | changes


def _session(name: str, requests: list[dict], **changes: object) -> dict:
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": requests} | changes


def _links(workload) -> list[tuple[str, str, float]]:
    return [(request.request_id, request.after, request.think_s) for request in workload.requests]


def test_a_turn_waits_for_the_one_before_it(tmp_path):
    path = write(tmp_path, "c.jsonl", [_session("a", [_turn(0.0, think_time=0.0), _turn(5.5), _turn(20.0, think_time=None)])])
    workload = load_trace(path, rate_rps=1.0)
    assert _links(workload) == [("a/0", "", 0.0), ("a/1", "a/0", 3.0), ("a/2", "a/1", 12.5)]
    assert [request.arrival_s for request in workload.requests] == [0.0, 0.0, 0.0]
    assert {(request.session_id, request.block_tokens, request.block_hashes) for request in workload.requests} == {
        ("a", 64, (1, 2))
    }
    assert workload.warnings == ()


def test_without_the_loop_turns_arrive_when_they_did(tmp_path):
    path = write(tmp_path, "c.jsonl", [_session("a", [_turn(0.0), _turn(5.5)])])
    workload = load_trace(path, rate_rps=1.0, closed_loop=False)
    assert [(request.arrival_s, request.after) for request in workload.requests] == [(0.0, ""), (5.5, "")]


def test_a_subagent_is_a_chain_of_its_own_beside_its_parent(tmp_path):
    subagent = {"t": 4.0, "type": "subagent", "requests": [_turn(0.0, think_time=0.0), _turn(4.0, think_time=1.0)]}
    path = write(tmp_path, "c.jsonl", [_session("a", [_turn(0.0), subagent, _turn(6.0)])])
    assert _links(load_trace(path, rate_rps=1.0)) == [
        ("a/0", "", 0.0),
        ("a/1", "a/0", 2.0),  # sent at 4 s, 2 s after its parent's turn had ended
        ("a/2", "a/0", 3.0),
        ("a/3", "a/1", 1.0),
    ]


def test_ids_are_shared_within_a_session_and_across_only_when_they_say_so(tmp_path):
    local = write(tmp_path, "l.jsonl", [_session(name, [_turn(0.0)]) for name in "ab"])
    one, other = load_trace(local, rate_rps=1.0).requests
    assert not set(one.block_hashes) & set(other.block_hashes)
    common = write(tmp_path, "g.jsonl", [_session(name, [_turn(0.0)], hash_id_scope="global") for name in "ab"])
    assert describe(load_trace(common, rate_rps=1.0)).prefix_reuse == pytest.approx(128 / 260)


def test_sessions_start_at_the_given_rate(tmp_path):
    path = write(tmp_path, "c.jsonl", [_session(str(at), [_turn(0.0), _turn(9.0)]) for at in range(300)])
    workload = load_trace(path, rate_rps=0.5)
    assert describe(workload).rate_rps == pytest.approx(0.5, rel=0.15)
    assert describe(workload).closed_loop_requests == 300
    assert load_trace(path, rate_rps=0.5) == workload
    assert load_trace(path, rate_rps=0.5, seed=1) != workload
    assert load_trace(path, rate_rps=0.5, limit=7).requests == workload.requests[:7]


@pytest.mark.parametrize(
    ("sessions", "message"),
    [
        ([], "must have at least one request"),
        ([_session("a", [])], "must have at least one request"),
        ([_session("a", [_turn(0.0, tokens=0)])], "row 1: in must be a whole number >= 1, got 0"),
        ([_session("a", [_turn(-1.0)])], "row 1: t must be a finite number >= 0, got -1.0"),
        ([_session("a", [3])], "row 1: requests must be a list of objects"),
        ([_session("a", [_turn(0.0)], block_size=0)], "row 1: block_size must be a whole number >= 1, got 0"),
    ],
)
def test_faults_of_sessions_are_named(tmp_path, sessions, message):
    with pytest.raises(WorkloadError, match=message):
        load_trace(write(tmp_path, "c.jsonl", sessions), rate_rps=1.0, format="claude-code")


def test_sessions_need_a_rate(tmp_path):
    with pytest.raises(WorkloadError, match="rate_rps, sessions per second, must be given"):
        load_trace(write(tmp_path, "c.jsonl", [_session("a", [_turn(0.0)])]))


def _event(received_ms: int, total_ms: float, session: str, parent: str = "", **request: object) -> dict:
    context = {"session_id": session} | ({"parent_session_id": parent} if parent else {})
    values = {"input_tokens": 20, "output_tokens": 3, "request_received_ms": received_ms, "total_time_ms": total_ms}
    values["replay"] = {"trace_block_size": 16, "input_sequence_hashes": [2**63 + 1, 2]}
    return {"timestamp": 1, "event": {"event_type": "request_end", "agent_context": context, "request": values | request}}


TOOL = {"timestamp": 1, "event": {"event_type": "tool_start", "agent_context": {"session_id": "root"}, "tool": {}}}
EPOCH_MS = 1_779_163_048_815
AGENTS = [
    _event(EPOCH_MS, 1000, "root"),
    TOOL,
    _event(EPOCH_MS + 1500, 2000, "child-1", "root"),
    _event(EPOCH_MS + 1600, 4000, "child-2", "root"),
    _event(EPOCH_MS + 3700, 500, "child-1", "root"),
    _event(EPOCH_MS + 5900, 100, "root"),
    _event(EPOCH_MS + 5950, 100, "other"),
]


def test_an_agents_request_waits_for_the_last_that_ended_in_its_family(tmp_path):
    workload = load_trace(write(tmp_path, "d.jsonl", AGENTS))
    links = {request.request_id: (request.after, round(request.think_s, 3)) for request in workload.requests}
    assert links == {
        "row-1": ("", 0.0),
        "row-3": ("row-1", 0.5),
        "row-4": ("row-1", 0.6),
        "row-5": ("row-3", 0.2),
        "row-6": ("row-4", 0.3),
        "row-7": ("", 0.0),
    }
    assert [request.arrival_s for request in workload.requests] == [0.0, 0.0, 0.0, 0.0, 0.0, 5.95]
    assert workload.requests[0].block_hashes == (2**63 + 1, 2)


def test_recorded_times_of_agents(tmp_path):
    workload = load_trace(write(tmp_path, "d.jsonl", AGENTS[::-1]), closed_loop=False)
    assert [request.arrival_s for request in workload.requests] == [0.0, 1.5, 1.6, 3.7, 5.9, 5.95]
    assert not any(request.after for request in workload.requests)


def test_hashes_that_do_not_fit_an_agents_prompt_are_warned_about(tmp_path):
    workload = load_trace(write(tmp_path, "d.jsonl", [_event(0, 1, "a", input_tokens=40), _event(0, 1, "b", replay=None)]))
    assert [len(request.block_hashes) for request in workload.requests] == [2, 0]
    assert "row 1: input of 40 tokens has 3 hash blocks and input_sequence_hashes holds 2" in workload.warnings[0]


def test_events_without_a_request_make_no_workload(tmp_path):
    with pytest.raises(WorkloadError, match="must have at least one request, got none"):
        load_trace(write(tmp_path, "d.jsonl", [TOOL]))
