"""A scheduler that grants leases, on a clock that the test moves, its messages kept in a list."""

from collections.abc import Callable
from typing import Any

from tests.engine.builder import make_request, run_model, schedule_params
from vllm_kairos.core.lease import LeaseLedger, LeaseSettings, Share
from vllm_kairos.engine.lease_keeper import LeaseKeeper
from vllm_kairos.engine.reporter import StateReporter
from vllm_kairos.engine.settings import parse_settings
from vllm_kairos.profiles import load_shipped
from vllm_kairos.wire.messages import Lease, NodeStateMessage

MODEL = load_shipped("a100-llama3-8b").step_model
"""Decodes alone take 10 ms and more; a prompt token beside them some 65 us."""
HEARTBEAT_S = 0.1


class Sent:
    """Stands in for the publisher: asks for the lease when a message leaves, as the real one does."""

    def __init__(self, lease: Callable[[frozenset[str]], Lease | None]) -> None:
        self.messages: list[tuple[NodeStateMessage, Lease | None]] = []
        self.repeats = 0
        self.routers = frozenset({"r1"})
        self._lease = lease

    def publish(self, message: NodeStateMessage) -> None:
        self.messages.append((message, self._lease(self.routers)))

    def repeat(self) -> None:
        self.repeats += 1

    def close(self) -> None:
        pass


class Leased:
    """Plays the engine core around a scheduler that grants leases."""

    def __init__(
        self,
        build: Any,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        terms: LeaseSettings | None = None,
        correct: bool = False,
        **options: Any,
    ) -> None:
        kairos = {"node_id": "d0", "role": "decode", "default_chunk_tokens": 512, "heartbeat_period_s": heartbeat_s}
        self.scheduler = build(kairos=kairos, **{"connector": "KairosNixlConnector", "token_budget": 1024, **options})
        self.now_s = 100.0
        self.keeper = LeaseKeeper(
            self.scheduler,
            LeaseLedger("boot-1", ttl_s=(terms or LeaseSettings()).ttl_s),
            MODEL,
            terms or LeaseSettings(),
            heartbeat_s=heartbeat_s,
            correct=correct,
            clock=self._clock,
        )
        self.sent = Sent(self.keeper.current)
        self.keeper.current(self.sent.routers)
        self.keeper.start(self.sent.repeat, None)
        self.scheduler._kairos_leases = self.keeper
        self.scheduler._kairos_reporter = StateReporter(
            self.scheduler,
            parse_settings({"kairos": kairos}),
            self.sent,  # type: ignore[arg-type]
            self._clock,
            leases=self.keeper,
        )
        self.ended: dict[str, Any] = {}  # request -> its last output

    def _clock(self) -> float:
        return self.now_s

    @property
    def lease(self) -> Lease | None:
        """What a message sent now would say."""
        return self.keeper.current(self.sent.routers)

    def share(self, router: str = "r1") -> Share:
        """What `router` may spend; there must be something."""
        lease = self.lease
        assert lease is not None
        return Share(*lease.shares[router])

    def send(self, name: str, prompt: int, *, router: str = "r1", lease_id: str = "", max_tokens: int = 16) -> Any:
        """A deflected request under a lease, the current one unless another is named."""
        if not lease_id:
            assert self.lease is not None
            lease_id = self.lease.lease_id
        transfer = schedule_params(512)
        transfer["kairos"]["lease"] = {"id": lease_id, "router": router}
        request = make_request(name, prompt, max_tokens=max_tokens, transfer=transfer)
        self.scheduler.add_request(request)
        return request

    def step(self, took_s: float = 0.01, **connector_output: Any) -> dict[str, int]:
        """One step that takes so long; returns the tokens that each request got."""
        output = self.scheduler.schedule()
        self.now_s += took_s
        results = self.scheduler.update_from_output(output, run_model(self.scheduler, output, **connector_output))
        for each in results.values():
            self.ended |= {one.request_id: one for one in each.outputs if one.finish_reason is not None}
        return dict(output.num_scheduled_tokens)

    def run(self, most: int = 5000) -> None:
        """Until nothing is left to do."""
        for _ in range(most):
            if not self.scheduler.has_requests():
                return
            self.step()
        raise AssertionError("it does not end")

    def decode(self, *names: str, prompt: int = 20, max_tokens: int = 1000) -> None:
        """Have requests decode from the next step on."""
        for name in names:
            self.scheduler.add_request(make_request(name, prompt, max_tokens=max_tokens))
        while any(self.scheduler.requests[name].num_output_tokens == 0 for name in names):
            self.step()
        self.beat()

    def beat(self) -> None:
        """One step, late enough for a heartbeat."""
        self.now_s += 1.01 * HEARTBEAT_S
        self.step()

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())
