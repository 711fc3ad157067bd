"""Leases under everything that may happen: losses, delays, duplicates, reordering, restarts, expiry, revocation.

Whatever the order: what a node admits never exceeds what it granted, by router and epoch; nothing is admitted under a lease
that ended or was revoked; a refused request has the prefill path; and once the network heals all goes on.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.router.lease_world import TTL_S, Granted, Node, Reply, Router, Sent
from vllm_kairos.core.lease import Share
from vllm_kairos.core.shapes import RequestShape, Route
from vllm_kairos.wire.params import LeaseClaim, encode

AMPLE = Share(200_000, 40_000, 100_000)
capacities = st.one_of(
    st.just(AMPLE),
    st.builds(Share, st.integers(0, 3000), st.integers(0, 300), st.integers(0, 300)),
    st.builds(Share, st.integers(0, 30_000), st.integers(0, 3000), st.integers(0, 3000)),
)
picks = st.integers(0, 2**16)


class Leases(RuleBasedStateMachine):
    """One decode node, routers that spend its leases, and one of an earlier version."""

    @initialize(speaking=st.integers(1, 4), clocks_s=st.lists(st.floats(0, 1e4), min_size=6, max_size=6))
    def start(self, speaking: int, clocks_s: list[float]) -> None:
        self.boots = self.lives = self.count = 0
        self.node = Node(self.boots, clocks_s[5])
        names = [f"r{at}" for at in range(speaking)]
        self.routers = {name: Router(name, speaks=True, clock_s=clocks_s[at], life=0) for at, name in enumerate(names)}
        self.routers["old"] = Router("old", speaks=False, clock_s=clocks_s[4], life=0)
        self.feeds: dict[str, list[tuple[int, list[bytes]]]] = {name: [] for name in self.routers}
        self.requests: list[Sent] = []
        self.dead: list[Granted] = []  # by processes that are gone
        self.replies: list[Reply] = []

    # Time passes, for all alike.

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.1, 0.3, 0.5, 1.5]))
    def time_passes(self, seconds: float) -> None:
        for each in (self.node, *self.routers.values()):
            each.clock_s += seconds

    # What the node does.

    @rule(capacity=capacities)
    def grant(self, capacity: Share) -> None:
        self.node.grant(capacity, [name for name, router in self.routers.items() if router.speaks])
        self.say()

    @rule(known=st.lists(st.booleans(), min_size=4, max_size=4))
    def grant_to_those_it_knows(self, known: list[bool]) -> None:
        speaking = [name for name, router in self.routers.items() if router.speaks]
        self.node.grant(AMPLE, [name for name, is_known in zip(speaking, known, strict=False) if is_known])
        self.say()

    @rule()
    def say(self) -> None:
        frames = self.node.message()
        for feed in self.feeds.values():
            feed.append((self.boots, frames))

    @rule()
    def revoke(self) -> None:
        self.node.ledger.revoke()
        self.node.forget()
        self.say()

    @rule(clock_s=st.floats(0, 1e4))
    def node_restarts(self, clock_s: float) -> None:
        self.boots += 1
        self.dead += self.node.grants
        self.node = Node(self.boots, clock_s)

    # What routers do.

    @rule(pick=picks, prompt_tokens=st.integers(1, 3000), output_tokens=st.integers(1, 300))
    def request_comes(self, pick: int, prompt_tokens: int, output_tokens: int) -> None:
        router = self.router_at(pick)
        shape = RequestShape(request_id=f"{self.count}", prompt_tokens=prompt_tokens, max_output_tokens=output_tokens)
        self.count += 1
        sent = router.send(shape)
        if sent is not None:
            self.requests.append(sent)

    @rule(pick=picks, clock_s=st.floats(0, 1e4))
    def router_restarts(self, pick: int, clock_s: float) -> None:
        old = self.router_at(pick)
        self.lives += 1
        self.routers[old.name] = Router(old.name, speaks=old.speaks, clock_s=clock_s, life=self.lives)

    # What the network does.

    @rule(pick=picks, other=picks)
    def feed_arrives_in_any_order(self, pick: int, other: int) -> None:
        """But for a restart: what the old process said last comes before what the new one says, on one connection."""
        router = self.router_at(pick)
        feed = self.feeds[router.name]
        first = [at for at, (boot, _) in enumerate(feed) if boot == min(boot for boot, _ in feed)]
        if first:
            router.hear(feed.pop(first[other % len(first)])[1])

    @rule(pick=picks)
    def feed_arrives_in_order(self, pick: int) -> None:
        self.feed_arrives_in_any_order(pick, 0)

    @rule(pick=picks, other=picks)
    def feed_is_lost_or_doubled(self, pick: int, other: int) -> None:
        feed = self.feeds[self.router_at(pick).name]
        if feed and other % 2:
            feed.pop(other % len(feed))
        elif feed:
            feed.append(feed[other % len(feed)])

    @rule(pick=picks)
    def request_arrives(self, pick: int) -> None:
        if self.requests:
            sent = self.requests.pop(pick % len(self.requests))
            self.replies.append(Reply(sent.router, sent.life, sent.request_id, self.node.take(sent)))

    @rule(capacity=capacities, bursts=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2), st.integers(1, 900), picks)))
    def lease_is_granted_and_spent(self, capacity: Share, bursts: list[tuple[int, int, int, int]]) -> None:
        self.grant(capacity)
        for burst in bursts:
            self.requests_of_a_router_that_minds_nothing_arrive(*burst)

    @rule(times=st.integers(1, 6), back=st.integers(0, 3), prompt_tokens=st.integers(1, 1200), other=picks)
    def requests_of_a_router_that_minds_nothing_arrive(self, times: int, back: int, prompt_tokens: int, other: int) -> None:
        """Under any lease that there ever was, in any router's name, for however much."""
        granted = [*self.dead, *self.node.grants]
        if not granted:
            return
        lease_id = granted[-1 - back % len(granted)].lease.lease_id
        names = [name for name, router in self.routers.items() if router.speaks]
        claim = LeaseClaim(id=lease_id, router=[*names, "nobody"][other % (len(names) + 1)])
        for _ in range(times):
            self.node.take(Sent("old", -1, "careless", prompt_tokens, 1 + other % 40, encode([512], claim)))

    @rule(pick=picks)
    def request_is_doubled(self, pick: int) -> None:
        if self.requests:
            self.requests.append(self.requests[pick % len(self.requests)])

    @rule(pick=picks)
    def request_is_lost(self, pick: int) -> None:
        if self.requests:
            sent = self.requests.pop(pick % len(self.requests))
            self.routers[sent.router].give_up(sent.request_id)

    @rule(pick=picks)
    def reply_arrives(self, pick: int) -> None:
        if self.replies:
            reply = self.replies.pop(pick % len(self.replies))
            self.routers[reply.router].hear_reply(reply)

    @rule(pick=picks)
    def reply_is_doubled_or_lost(self, pick: int) -> None:
        if not self.replies:
            return
        reply = self.replies[pick % len(self.replies)]
        if pick % 2:
            self.replies.append(reply)
        else:
            self.replies.remove(reply)
            self.routers[reply.router].give_up(reply.request_id)

    # What always holds; what is admitted is checked as it is.

    @invariant()
    def no_router_believes_in_more_than_was_granted(self) -> None:
        for router in getattr(self, "routers", {}).values():
            node = router.decode_node()
            if node.lease is None:
                continue
            assert router.speaks
            assert not node.stale
            assert node.lease.until_s > router.clock_s
            for granted in self.node.grants:
                if granted.lease.lease_id == node.lease.lease_id:
                    assert granted.lease.shares[router.name].covers(node.lease.share)

    @invariant()
    def the_ledger_and_the_model_agree_on_what_is_in_force(self) -> None:
        if not hasattr(self, "node"):
            return
        lease = self.node.ledger.current(self.node.clock_s)
        last = self.node.grants[-1] if self.node.grants else None
        in_force = last is not None and not last.revoked and self.node.clock_s - last.at_s < TTL_S
        assert (lease is not None) is in_force
        assert lease is None or last is None or replace(lease, ttl_s=TTL_S) == last.lease

    def teardown(self) -> None:
        """The network heals: every request is answered, and the next ones are admitted under a new lease."""
        if not hasattr(self, "node"):
            return
        self.time_passes(0.6)
        self.deliver_all()
        assert not any(router.waiting for router in self.routers.values())
        self.grant(AMPLE)
        self.deliver_all()
        for at, router in enumerate(self.routers.values()):
            self.request_comes(at, 500, 50)
            self.deliver_all()
            assert router.answered[f"{self.count - 1}"] is Route.LOCAL

    def deliver_all(self) -> None:
        for name, feed in self.feeds.items():
            for _, frames in sorted(feed, key=lambda one: one[0]):
                self.routers[name].hear(frames)
            feed.clear()
        while self.requests:
            self.request_arrives(0)
        while self.replies:
            self.reply_arrives(0)

    def router_at(self, pick: int) -> Router:
        return list(self.routers.values())[pick % len(self.routers)]


Leases.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestLeases = Leases.TestCase
