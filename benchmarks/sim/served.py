"""The real side: one cluster, the router restarted per policy, and what client, router and engines saw of each phase."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.sim.load import planned
from benchmarks.sim.steps import Feed, listening
from vllm_kairos.cluster import LocalCluster
from vllm_kairos.demo.client import Sample, send_load, send_one_by_one
from vllm_kairos.workload.request import Workload

_SETTLE_S = 1.0  # until a fresh router has heard of both nodes, and until the last reports have come


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One load under one policy. `records` are the router's, one for each of `samples`."""

    name: str
    policy: str
    samples: tuple[Sample, ...]
    records: tuple[dict[str, Any], ...]
    feed: Feed

    @property
    def errors(self) -> list[str]:
        """What went wrong, request by request."""
        return [sample.error for sample in self.samples if sample.error]

    @property
    def kept_prompts(self) -> list[int]:
        """Lengths of the prompts that went to the prefill node, in the order of arrival."""
        return [record["prompt_tokens"] for record in self.records if record["decision"] == "prefill-decode"]


async def serve(cluster: LocalCluster, policy: str, name: str, workload: Workload, *, overlap: bool = True) -> Phase:
    """Send `workload` under `policy`, at its times or one request after the other."""
    cluster.stop_router()
    log_dir = cluster.log_dir / name
    await cluster.start_router(policy, log_dir=log_dir)
    await asyncio.sleep(_SETTLE_S)
    send = send_load if overlap else send_one_by_one
    async with listening(cluster.plan.servers) as feed:
        await asyncio.sleep(_SETTLE_S)
        samples = await send(cluster.router_url, cluster.plan.served_model_name, planned(workload.requests, name))
        await asyncio.sleep(_SETTLE_S)
    records = _records((log_dir / "access.jsonl").read_text().splitlines())
    return Phase(name=name, policy=policy, samples=tuple(samples), records=in_order(samples, records), feed=feed)


def in_order(samples: Sequence[Sample], records: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The record of each sample. Records tell when a request arrived to the millisecond, and its length."""
    left = sorted(records, key=lambda record: str(record["time"]))
    found = []
    for sample in samples:
        at = next((at for at, record in enumerate(left) if record.get("prompt_tokens") == sample.prompt_tokens), 0)
        found.append(left.pop(at))
    return tuple(found)


def _records(lines: Iterable[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in lines]
    return [record for record in found if record.get("endpoint") == "/v1/completions"]
