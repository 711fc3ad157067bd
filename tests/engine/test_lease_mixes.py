"""Random mixes of requests, routers and slow steps on a real scheduler: what must hold of its leases whatever comes."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.engine.builder import left_behind, make_request, remote_params, schedule_params
from tests.engine.leased import HEARTBEAT_S, Leased
from vllm_kairos.core.lease import LeaseSettings, Share
from vllm_kairos.wire.messages import Lease

ROUTERS = ("r1", "r2", "r3")
SEEDS, STEPS = 12, 120
ELSEWHERE = {"low-blocks", "no-capacity", "unknown"}  # test_leases.py has them
NOTHING = Share(0, 0, 0)


class Mix:
    """One run; `heard` is what routers may still believe, late, twice or not at all."""

    def __init__(self, build: Any, seed: int) -> None:
        self.draw = random.Random(seed)
        self.engine = Leased(build, blocks=300, max_sequences=24, terms=LeaseSettings(horizon_s=1.0))
        self.heard: list[Lease] = []
        self.number = self.admitted = 0
        self.granted: dict[str, Lease] = {}  # by id, all that was ever said
        self.spent: dict[tuple[str, str], Share] = {}  # of each lease, by each router, of what was sent under it
        self.void: set[str] = set()
        self.actions: list[Callable[[], None]] = [self._claim] * 5 + [self._plain, self._pull, self._deflect, self._leave]

    def run(self) -> None:
        for _ in range(STEPS):
            self._listen()
            for _ in range(self.draw.randrange(3)):
                self.draw.choice(self.actions)()
            slow = self.draw.random() < 0.06
            self._step(0.09 if slow else self.draw.choice((0.002, 0.01, 0.03)))
        self.engine.sent.routers = frozenset()
        self.engine.run()

    def _listen(self) -> None:
        if self.draw.random() < 0.1:
            self.engine.sent.routers = frozenset(self.draw.sample(ROUTERS, self.draw.randrange(4)))
        lease = self.engine.lease
        if lease is not None:
            self.granted[lease.lease_id] = lease
            self.heard.append(lease)
        self.heard = self.heard[-20:]

    def _step(self, took_s: float) -> None:
        before = self.engine.sent.repeats
        self.engine.step(took_s)
        if self.engine.sent.repeats > before:  # taken back: nothing that was said up to here holds
            self.void |= self.granted.keys()
        if self.draw.random() < 0.2:
            self.engine.now_s += HEARTBEAT_S

    def _name(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def _claim(self) -> None:
        name, router, prompt = self._name("C"), self.draw.choice(ROUTERS), self.draw.choice((5, 60, 400, 2000))
        lease_id = self.draw.choice(self.heard).lease_id if self.heard else "none-1"
        before = self.engine.keeper.counts.admitted
        self.engine.send(name, prompt, router=router, lease_id=lease_id, max_tokens=self.draw.choice((1, 8, 40)))
        if self.engine.keeper.counts.admitted == before:
            assert name not in self.engine.scheduler.requests
            return
        assert lease_id not in self.void
        self.admitted += 1
        spent = self.spent.get((lease_id, router), NOTHING).plus(Share(prompt, 0, 0))
        self.spent[lease_id, router] = spent
        assert spent.prefill_tokens <= self.granted[lease_id].shares[router][0]

    def _plain(self) -> None:
        self.engine.scheduler.add_request(make_request(self._name("N"), 30, max_tokens=self.draw.choice((2, 60))))

    def _deflect(self) -> None:
        self.engine.scheduler.add_request(make_request(self._name("D"), 300, max_tokens=4, transfer=schedule_params(128)))

    def _pull(self) -> None:
        before, prompt = self.engine.sent.repeats, self.draw.choice((32, 640))
        name = self._name("R")
        self.engine.scheduler.add_request(make_request(name, prompt, max_tokens=4, transfer=remote_params(prompt)))
        if self.engine.sent.repeats > before:
            self.void |= self.granted.keys()
        self.engine.scheduler.finish_requests(name, _aborted())  # nobody plays the prefill server

    def _leave(self) -> None:
        names = sorted(self.engine.scheduler.requests)
        if names:
            self.engine.scheduler.finish_requests(self.draw.choice(names), _aborted())


def test_what_is_admitted_was_granted_and_not_taken_back(build: Any) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        mix = Mix(build, seed)
        free = mix.engine.free_blocks
        mix.run()
        counts = mix.engine.keeper.counts
        seen.update({"admitted": mix.admitted, **counts.refused, **counts.revoked})
        assert (len(mix.engine.scheduler.requests), mix.engine.free_blocks) == (0, free)
        assert (left_behind(mix.engine.scheduler).planned, len(mix.engine.scheduler._kairos_refused)) == (0, 0)
    assert seen.keys() - {name for name, count in seen.items() if count} <= ELSEWHERE


def _aborted() -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED
