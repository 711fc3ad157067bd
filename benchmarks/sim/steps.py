"""What the engines say of their own steps: the node-state feed, listened to beside the router."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import zmq
import zmq.asyncio

from vllm_kairos.cluster.plan import ProcessPlan
from vllm_kairos.wire.codec import STATE_TOPIC, StateDecoder
from vllm_kairos.wire.messages import NodeStateMessage, StepSample, TransferSample


@dataclass(slots=True)
class Feed:
    """Messages of one phase, by node, in the order of sending."""

    messages: dict[str, list[NodeStateMessage]] = field(default_factory=dict)

    def steps(self, node: str) -> list[StepSample]:
        """Every step that `node` measured."""
        return [sample for message in self.messages.get(node, ()) for sample in message.step_samples]

    def transfers(self, node: str) -> list[TransferSample]:
        """Every KV pull into `node`."""
        return [sample for message in self.messages.get(node, ()) for sample in message.transfer_samples]

    def between_steps_s(self, node: str) -> float:
        """See `between_steps_s`."""
        return between_steps_s(self.messages.get(node, ()))


@asynccontextmanager
async def listening(servers: Iterable[ProcessPlan]) -> AsyncIterator[Feed]:
    """Gather what `servers` publish while the block runs."""
    feed = Feed()
    context = zmq.asyncio.Context()
    tasks = [asyncio.create_task(_read(context, server, feed)) for server in servers]
    try:
        yield feed
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        context.destroy(linger=0)


async def _read(context: zmq.asyncio.Context, server: ProcessPlan, feed: Feed) -> None:
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, STATE_TOPIC)
    socket.connect(_endpoint(server))
    decoder = StateDecoder(None)
    heard = feed.messages.setdefault(server.name, [])
    while True:
        heard.append(decoder.decode(await socket.recv_multipart()))


def _endpoint(server: ProcessPlan) -> str:
    settings = json.loads(server.argv[server.argv.index("--additional-config") + 1])
    return str(settings["kairos"]["state_endpoint"])


def between_steps_s(messages: Sequence[NodeStateMessage]) -> float:
    """Median time per step that lies between the end of one and the beginning of the next while there is work; 0 without any.

    Two reports at the ends of steps with work left after the first span whole periods: what the samples
    between them do not account for passed outside of steps.
    """
    ends = [message for message in messages if message.step_samples]
    gaps_s = []
    for before, after in pairwise(ends):
        if _has_work(before):
            span_s = after.sent_at_s - before.sent_at_s
            in_steps_s = sum(sample.step_s for sample in after.step_samples)
            gaps_s.append((span_s - in_steps_s) / len(after.step_samples))
    return max(0.0, median(gaps_s)) if gaps_s else 0.0


def _has_work(message: NodeStateMessage) -> bool:
    return bool(message.running_decodes or message.running_prefill_tokens or message.queued_prefill_tokens)
