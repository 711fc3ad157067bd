"""One cell: a front is started, warmed up, sent the load, and ended; then the servers are left to become idle."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.serving.contenders import Contender, Programs, free_ports, front_plan
from benchmarks.serving.ready import wait_ready
from benchmarks.serving.record import cell_figures, failed_cell, load_summary, measured_cell
from benchmarks.serving.servers import (
    Counters,
    group_cpu_s,
    group_rss_mb,
    grown,
    machine_cpu_s,
    read_counters,
    violations_by_cause,
    wait_idle,
)
from benchmarks.serving.setting import Setting, workload_of
from benchmarks.serving.sweep import CellKey
from vllm_kairos.cluster.local import LocalCluster
from vllm_kairos.cluster.plan import ProcessPlan
from vllm_kairos.cluster.process import Child, stop
from vllm_kairos.cluster.spec import ClusterSpec
from vllm_kairos.errors import ClusterError, KairosError
from vllm_kairos.replay.figures import Objectives
from vllm_kairos.replay.run import Outcome, replay
from vllm_kairos.replay.sample import Sample
from vllm_kairos.replay.settings import LoadSettings, ReplaySettings
from vllm_kairos.workload import transforms
from vllm_kairos.workload.request import Workload

_IDLE_LIMIT_S = 600.0
_PATIENCE_S = 60.0
"""How long after the last request was due answers are waited for: a queue that grows without end would take minutes."""
_WARM_UP_REQUESTS, _WARM_UP_RPS, _WARM_UP_REPEAT = 8, 4.0, 10_000
_WARM_UP_MOST_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all cells share."""

    setting: Setting
    spec: ClusterSpec
    programs: Programs
    traces: Path | None
    out: Path


class _Silent:
    """Watches a replay and says nothing."""

    def waiting(self, now_s: float, due_s: float) -> None: ...

    def sent(self, lag_s: float) -> None: ...

    def ended(self, sample: Sample) -> None: ...


async def run_cell(bench: Bench, cluster: LocalCluster, contender: Contender, key: CellKey) -> dict[str, Any]:
    """The cell's record, failed or not. Raises ClusterError when the servers are no longer fit for another cell."""
    urls = [server.url for server in cluster.plan.servers]
    workload = workload_of(bench.setting, bench.traces, key.rate_rps, key.repeat)
    started_s = time.monotonic()
    async with aiohttp.ClientSession() as session:
        await wait_idle(session, urls, limit_s=_IDLE_LIMIT_S)
        try:
            record = await _served(bench, cluster, contender, key, workload, session)
        except KairosError as error:
            record = failed_cell(key, f"{type(error).__name__}: {error}")
        _, idle_s = await wait_idle(session, urls, limit_s=_IDLE_LIMIT_S)
    return record | {"load": load_summary(workload), "idle_after_s": idle_s, "took_s": time.monotonic() - started_s}


async def _served(
    bench: Bench,
    cluster: LocalCluster,
    contender: Contender,
    key: CellKey,
    workload: Workload,
    session: aiohttp.ClientSession,
) -> dict[str, Any]:
    urls = [server.url for server in cluster.plan.servers]
    groups = [cluster.pid(server.name) for server in cluster.plan.servers]
    log_dir = bench.out / "logs" / key.file_name.removesuffix(".json")
    log_dir.mkdir(parents=True, exist_ok=True)
    plan = front_plan(contender, bench.spec, cluster.plan, bench.programs, ports=free_ports(), log_dir=log_dir)
    async with _front(plan, contender, log_dir, session) as (child, ready_s):
        await _warm_up(bench, cluster, plan.url, key, workload)
        await wait_idle(session, urls, limit_s=_IDLE_LIMIT_S)
        before, usage = await read_counters(session, urls), _Usage(groups, child.pid)
        outcome = await _replay(bench, cluster, plan.url, key.prompt_seed, workload)
        spent = usage.spent()
        growth = grown(before, await read_counters(session, urls))
        if child.exit_status() is not None:
            raise ClusterError(f"{contender.name} ended during the cell: {child.cause_of_death()}")
    return measured_cell(key, **_figures(bench.setting, outcome, growth), front={"ready_s": ready_s}, machine=spent)


def _figures(setting: Setting, outcome: Outcome, growth: Counters) -> dict[str, Any]:
    objectives = Objectives(ttft_s=setting.ttft_slo_ms / 1e3, tbt_s=setting.tbt_slo_ms / 1e3)
    return {
        "figures": cell_figures(outcome.replayed.samples, objectives, outcome.client_lags_s) | {"wall_s": outcome.wall_s},
        "servers": {"counters": growth, "tbt_violations_by_cause": violations_by_cause(growth)},
    }


@asynccontextmanager
async def _front(
    plan: ProcessPlan, contender: Contender, log_dir: Path, session: aiohttp.ClientSession
) -> AsyncIterator[tuple[Child, float]]:
    """The contender's process, serving inside the block; yields how long it took too. Raises ClusterError."""
    started_s = time.monotonic()
    child = Child(plan, log_dir / "front.log")
    try:
        await wait_ready(session, contender.name, child, plan.url + contender.health_path)
        yield child, time.monotonic() - started_s
    finally:
        await asyncio.to_thread(stop, [child])


async def _warm_up(bench: Bench, cluster: LocalCluster, url: str, key: CellKey, workload: Workload) -> None:
    """A few requests like the load's, shorter ones where they are very long, that count nowhere."""
    few = transforms.with_prompt_limit(transforms.first(workload, _WARM_UP_REQUESTS), _WARM_UP_MOST_TOKENS, "clip")
    few = replace(few, requests=tuple(replace(one, arrival_s=at / _WARM_UP_RPS) for at, one in enumerate(few.requests)))
    outcome = await _replay(bench, cluster, url, key.prompt_seed + _WARM_UP_REPEAT, few)
    failed = [sample for sample in outcome.replayed.samples if not sample.ok]
    if len(failed) == len(few.requests):
        raise ClusterError(f"warm-up: every request failed, the first as {failed[0].error}: {failed[0].detail}")


async def _replay(bench: Bench, cluster: LocalCluster, url: str, prompt_seed: int, workload: Workload) -> Outcome:
    """Send `workload` as it is; the settings' own load is only where its prompts' seed is read."""
    settings = ReplaySettings(
        load=LoadSettings(workload="Bursty", seed=prompt_seed),
        url=url,
        model=cluster.plan.served_model_name,
        timeout_s=None,
        objectives=Objectives(ttft_s=bench.setting.ttft_slo_ms / 1e3, tbt_s=bench.setting.tbt_slo_ms / 1e3),
    )
    stop = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(workload.requests[-1].arrival_s + _PATIENCE_S, stop.set)
    try:
        return await replay(settings, workload, _Silent(), stop)
    finally:
        timer.cancel()


class _Usage:
    """CPU seconds from here on: the servers', the front's, this client's, and whoever else's."""

    def __init__(self, servers: list[int], front: int) -> None:
        self._servers, self._front = servers, front
        self._load_before = os.getloadavg()[0]
        self._before = self._now()

    def spent(self) -> dict[str, Any]:
        """Since it was made."""
        now = self._now()
        used = {name: value - self._before[name] for name, value in now.items()}
        ours_s = used["servers_cpu_s"] + used["front_cpu_s"] + used["client_cpu_s"]
        busy_s, had_s = used.pop("busy_s"), used.pop("had_s")
        return used | {
            "front_rss_mb": group_rss_mb(self._front),
            "others_cpu_s": max(0.0, busy_s - ours_s),
            "busy_share": busy_s / had_s if had_s else 0.0,
            "load_before": self._load_before,
            "load_after": os.getloadavg()[0],
        }

    def _now(self) -> dict[str, float]:
        busy_s, had_s = machine_cpu_s()
        return {
            "servers_cpu_s": group_cpu_s(self._servers),
            "front_cpu_s": group_cpu_s([self._front]),
            "client_cpu_s": time.process_time(),
            "busy_s": busy_s,
            "had_s": had_s,
        }
