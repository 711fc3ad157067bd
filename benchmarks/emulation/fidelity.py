"""How closely emulated engines keep to their profile: four nodes, each driven at the profile's full step rate.

`python -m benchmarks.emulation.fidelity --out benchmarks/results/emulation-fidelity.json` (two minutes).
Every node serves closed-loop streams of mixed lengths, so that its steps are decodes with a prompt
chunk now and then; with the default profile that is 20 steps a second. Compared are the periods
between the ends of two successive steps with the profile's prediction of the second one's batch.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.environment import describe_machine
from vllm_kairos.cluster import ClusterSpec, LocalCluster
from vllm_kairos.cluster.plan import FORK_SERVER
from vllm_kairos.emulation.settings import EmulationSettings

MEDIAN_LIMIT, P95_LIMIT = 0.03, 0.10
_WARM_UP_S = 3.0
_PROMPT_TOKENS, _OUTPUT_TOKENS = (64, 1500), (50, 300)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; status 1 when the limits are not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="a100-deepseek-v2-lite-paper")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--streams", type=int, default=8, help="concurrent streams on each node")
    parser.add_argument("--duration-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sync", action="store_true", help="without async scheduling")
    parser.add_argument("--ordinary", action="store_true", help="let engine cores wait for a CPU like other processes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="kairos-fidelity-") as folder:
        report = asyncio.run(_measure(options, Path(folder)))
    text = json.dumps(report, indent=2) + "\n"
    sys.stdout.write(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    return 0 if report["meets_limits"] else 1


async def _measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    load_before = os.getloadavg()
    spec = ClusterSpec(
        prefill=0,
        decode=options.nodes,
        router=False,
        emulate=options.profile,
        emulation={"record": str(folder / "steps"), "realtime": not options.ordinary},
        vllm_args=("--no-async-scheduling",) if options.sync else (),
        log_dir=str(folder),
    )
    started_s = time.monotonic()
    async with LocalCluster(spec) as cluster:
        healthy_s = time.monotonic() - started_s
        start_cpu_s = sum(
            _group_cpu_s(cluster.pid(name)) for name in (FORK_SERVER, *(server.name for server in cluster.plan.servers))
        )
        idle_cpu = await _idle_cpu([cluster.pid(server.name) for server in cluster.plan.servers])
        begun_s = time.perf_counter()
        urls = [server.url for server in cluster.plan.servers]
        gaps_s = await _drive(urls, cluster.plan.served_model_name, options)
        steps = {server.name: _steps(folder / f"steps.{server.name}", begun_s) for server in cluster.plan.servers}
    return _report(options, steps, gaps_s) | {
        "healthy_after_s": round(healthy_s, 1),
        "start_up_cpu_s": round(start_cpu_s, 1),
        "idle_cpu_s_per_minute": round(60.0 * idle_cpu * options.nodes, 2),
        "load_average": {"before": load_before, "after": os.getloadavg()},
    }


async def _drive(urls: Sequence[str], model: str, options: argparse.Namespace) -> list[float]:
    """Keep every node busy for the duration; returns all gaps between tokens as the client saw them."""
    until_s = time.monotonic() + options.duration_s
    gaps_s: list[float] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:
        streams = [
            _stream(session, url, model, random.Random(f"{options.seed}/{url_index}/{index}"), until_s, gaps_s)
            for url_index, url in enumerate(urls)
            for index in range(options.streams)
        ]
        await asyncio.gather(*streams)
    return gaps_s


async def _stream(
    session: aiohttp.ClientSession, url: str, model: str, draw: random.Random, until_s: float, gaps_s: list[float]
) -> None:
    while time.monotonic() < until_s:
        prompt = [draw.randrange(1000, 20_000) for _ in range(draw.randint(*_PROMPT_TOKENS))]
        body = {"model": model, "prompt": prompt, "max_tokens": draw.randint(*_OUTPUT_TOKENS), "stream": True}
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            before_s = None
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    now_s = time.perf_counter()
                    if before_s is not None:
                        gaps_s.append(now_s - before_s)
                    before_s = now_s


def _steps(path: Path, begun_s: float) -> list[dict[str, Any]]:
    """Recorded steps after the warm-up, each with the period since the one before it; only those that follow on it."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    pairs = pairwise(records)
    return [
        record | {"period_s": record["woke_s"] - before["woke_s"]}
        for before, record in pairs
        if record["follows"] and before["handed_over_s"] > begun_s + _WARM_UP_S
    ]


def _report(options: argparse.Namespace, steps: dict[str, list[dict[str, Any]]], gaps_s: list[float]) -> dict[str, Any]:
    every = [step for each in steps.values() for step in each]
    errors = [abs(step["period_s"] / step["predicted_s"] - 1.0) for step in every]
    median, p95 = _quantile(errors, 0.5), _quantile(errors, 0.95)
    return {
        "command": "python -m benchmarks.emulation.fidelity " + " ".join(sys.argv[1:]),
        "environment": describe_machine(),
        "profile": options.profile,
        "async_scheduling": not options.sync,
        "realtime": not options.ordinary,
        "host_slack_s": EmulationSettings(profile="").host_slack_s,
        "steps": len(every),
        "steps_per_s_per_node": {name: round(_rate(each), 2) for name, each in steps.items()},
        "with_prefill": sum(step["prefill_tokens"] > 0 for step in every) / len(every),
        "period_error": {"median": median, "p95": p95, "p99": _quantile(errors, 0.99), "limits": [MEDIAN_LIMIT, P95_LIMIT]},
        "woke_late_s": _quantiles([step["woke_s"] - step["end_s"] for step in every]),
        "period_s": _quantiles([step["period_s"] for step in every]),
        "predicted_s": _quantiles([step["predicted_s"] for step in every]),
        "client_gap_s": _quantiles(gaps_s),
        "meets_limits": median <= MEDIAN_LIMIT and p95 <= P95_LIMIT,
    }


async def _idle_cpu(pids: Sequence[int]) -> float:
    """CPU seconds a second that an idle node takes, all its processes together."""
    pause_s = 15.0
    before = sum(map(_group_cpu_s, pids))
    await asyncio.sleep(pause_s)
    return (sum(map(_group_cpu_s, pids)) - before) / pause_s / len(pids)


def _group_cpu_s(group: int) -> float:
    """CPU seconds of all processes of a process group so far."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / 100.0


def _rate(steps: Sequence[dict[str, Any]]) -> float:
    return (len(steps) - 1) / (steps[-1]["woke_s"] - steps[0]["woke_s"]) if len(steps) > 1 else 0.0


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{int(100 * q)}": _quantile(values, q) for q in (0.5, 0.95, 0.99)}


def _quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


if __name__ == "__main__":
    raise SystemExit(main())
