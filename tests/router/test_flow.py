"""The flow without a network: a fake upstream, the real view and policies."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

import msgspec
import pytest

from kairos_router.access_log import AccessLog
from kairos_router.config import LimitSettings, PrefillTarget, RetrySettings, RouterConfig
from kairos_router.failures import Failure
from kairos_router.job import Incoming
from kairos_router.parts import Parts, build_parts
from kairos_router.refusal import Refusal
from kairos_router.registry import Worker
from kairos_router.upstream import Call, UpstreamFailure
from tests.router.stubs import handle
from vllm_kairos.core.events import NodeReported
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.policies.registry import make_policy
from vllm_kairos.core.policy import Policy
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.view import ClusterView

PREFILLED = msgspec.json.encode({"choices": [{"finish_reason": "length"}], "kv_transfer_params": handle()})
DECODED = msgspec.json.encode({"choices": [{"text": "x", "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}})


@dataclass(slots=True)
class FakeAnswer:
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})

    @property
    def ended(self) -> bool:
        return True

    async def part(self) -> bytes:
        part, self.body = self.body, b""
        return part

    async def read(self) -> bytes:
        return self.body


@dataclass(slots=True)
class FakeUpstream:
    """Answers at once; every tenth request ends as a client's disconnect would end it."""

    calls: int = 0
    leave_every: int = 0

    @asynccontextmanager
    async def send(self, call: Call) -> AsyncIterator[FakeAnswer]:
        self.calls += 1
        if self.leave_every and self.calls % self.leave_every == 0:
            raise asyncio.CancelledError
        yield FakeAnswer(PREFILLED if b'"do_remote_decode":true' in call.body else DECODED)


@dataclass(slots=True)
class DeadUpstream:
    calls: list[Call] = field(default_factory=list)

    @asynccontextmanager
    async def send(self, call: Call) -> AsyncIterator[FakeAnswer]:
        self.calls.append(call)
        raise UpstreamFailure(Failure.REFUSED, "no route")
        yield FakeAnswer(b"")


@dataclass(slots=True)
class KeptSink:
    status: int = 0
    body: bytes = b""
    started: bool = False

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.body = status, body

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True

    async def write(self, data: bytes) -> None:
        self.body += data

    async def finish(self, last: bytes = b"") -> None: ...

    async def abort(self, last: bytes) -> None:
        self.body += last


def router(upstream: object, policy: Policy, view: ClusterView) -> Parts:
    config = RouterConfig(
        prefill=(PrefillTarget(url="http://p:1"),),
        decode=("http://d:1",),
        retry=RetrySettings(initial_backoff_s=0.0, max_backoff_s=0.0),
        limits=LimitSettings(),
    )
    parts = build_parts(config, view=view, policy=policy, upstream=upstream, access_log=AccessLog(None), clock=monotonic)
    parts.workers.add(Worker(name="p", role=Role.PREFILL, url="http://p:1"))
    parts.workers.add(Worker(name="d", role=Role.DECODE, url="http://d:1"))
    return parts


def policy(spec: str, **settings: object) -> Policy:
    return make_policy(spec, prefill_model=None, decode_model=None, settings=DecisionSettings(**settings))


async def send(parts: Parts, body: bytes = b'{"prompt":"x"}') -> KeptSink:
    sink = KeptSink()
    incoming = Incoming(path="/v1/completions", headers={}, body=body, request_id="r")
    await parts.router.complete(incoming, parts.front._ledger.open("/v1/completions", "r"), sink)
    return sink


@pytest.mark.parametrize("spec", ["never", "always"])
async def test_no_map_grows_over_20000_requests_with_disconnects(spec):
    """Case 75."""
    view, upstream = ClusterView(), FakeUpstream(leave_every=10)
    parts = router(upstream, policy(spec), view)
    report = NodeState(node_id="d", role=Role.DECODE, free_kv_blocks=10**6, total_kv_blocks=10**6, observed_at_s=monotonic())
    view.apply(NodeReported(state=report, boot_id="b", received_at_s=monotonic()))
    gone = 0
    for _ in range(10_000):
        try:
            await send(parts)
        except asyncio.CancelledError:
            gone += 1
    await parts.releaser.settle()
    assert gone > 500
    assert view.tracked_requests == 0
    assert not parts.releaser._tasks
    assert len(parts.handles._engines) <= 1
    assert len(parts.breakers._breakers) <= 2


async def test_a_dead_cluster_is_refused_with_a_reason_after_bounded_tries():
    upstream, view = DeadUpstream(), ClusterView()
    parts = router(upstream, policy("never", prefill_unavailable="deflect"), view)
    with pytest.raises(Refusal) as refused:
        await send(parts)
    assert (refused.value.status, refused.value.reason) == (503, "decode-refused")
    assert len(upstream.calls) <= 8
    assert view.tracked_requests == 0


async def test_prefill_down_and_fail_mode_refuses_with_retry_after():
    view = ClusterView()
    parts = router(FakeUpstream(), policy("never", prefill_unavailable="fail"), view)
    parts.workers.drain("p")
    with pytest.raises(Refusal) as refused:
        await send(parts)
    assert (refused.value.status, refused.value.reason) == (503, "no-prefill-node")
    assert "retry-after" in refused.value.headers


async def test_a_prompt_no_decode_node_can_hold_is_a_400():
    view = ClusterView()
    parts = router(FakeUpstream(), policy("never"), view)
    report = NodeState(node_id="d", role=Role.DECODE, total_kv_blocks=10, observed_at_s=monotonic())
    view.apply(NodeReported(state=report, boot_id="b", received_at_s=monotonic()))
    with pytest.raises(Refusal) as refused:
        await send(parts, msgspec.json.encode({"prompt": list(range(161))}))
    assert (refused.value.status, refused.value.reason) == (400, "kv-too-large")
    assert (await send(parts, msgspec.json.encode({"prompt": list(range(160))}))).status == 200
