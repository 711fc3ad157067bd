"""Session keys, and the node that a key belongs to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_router.affinity import affinity_key, heaviest
from kairos_router.config import DeflectSettings
from tests.router.cluster import cluster

KEYS = st.text(max_size=20)
NODES = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=10), min_size=1, max_size=12, unique=True)


@pytest.mark.parametrize(
    ("headers", "body", "key"),
    [
        ({}, {}, ""),
        ({"x-session-id": "a", "x-user-id": "b"}, {"user": "c"}, "a"),
        ({"x-session-id": "  ", "x-user-id": "b"}, {}, "b"),
        ({"x-tenant-id": "t", "x-correlation-id": "c"}, {}, "t"),
        ({"x-correlation-id": "c"}, {"session_id": "s"}, "c"),
        ({}, {"user": "u", "session_params": {"session_id": "s"}}, "s"),
        ({}, {"user": "u", "session_id": "s"}, "u"),
        ({}, {"session_id": "s", "user_id": "u"}, "s"),
        ({}, {"user_id": 7, "conversation_id": "c"}, "7"),
        ({}, {"conversation_id": "c"}, "c"),
        ({}, {"session_params": "x", "user": ["u"], "session_id": True, "user_id": None, "conversation_id": {}}, ""),
    ],
)
def test_the_first_key_counts_headers_before_the_body(headers, body, key):
    assert affinity_key(headers, body) == key


@given(KEYS, NODES, st.randoms(use_true_random=False))
def test_a_key_has_one_node_whatever_the_order(key, nodes, shuffler):
    home = heaviest(key, nodes)
    shuffler.shuffle(nodes)
    assert heaviest(key, nodes) == home
    assert home in nodes


@given(st.lists(KEYS, max_size=30), NODES, st.data())
def test_a_node_that_leaves_moves_its_own_keys_only(keys, nodes, data):
    gone = data.draw(st.sampled_from(nodes))
    left = [node for node in nodes if node != gone]
    for key in keys:
        home = heaviest(key, nodes)
        assert home == gone or heaviest(key, left) == home


def test_no_node_is_no_home():
    assert heaviest("k", []) is None


def test_keys_are_spread_evenly_and_alike_in_every_process():
    homes = [heaviest(f"session {number}", ["d0", "d1", "d2", "d3"]) for number in range(4000)]
    assert all(900 < homes.count(node) < 1100 for node in ("d0", "d1", "d2", "d3"))
    assert homes[:6] == ["d3", "d2", "d0", "d3", "d0", "d2"]


@pytest.mark.parametrize(("policy", "key"), [("consistent_hash", "s"), ("kairos", "")])
async def test_the_policy_is_told_the_key_where_it_counts(policy, key):
    async with cluster(deflect=DeflectSettings(decode_policy=policy)) as up:
        await up.post("/v1/completions", {"model": "m", "prompt": "hi", "user": "u"}, x_session_id="s")
        assert [asked.affinity_key for asked in up.policy.asked] == [key]
