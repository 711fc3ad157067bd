"""What the servers and the machine say about themselves: counters before and after a cell, and whether all is idle."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp

from vllm_kairos.errors import ClusterError

Counters = dict[str, float]
"""Sums over servers, by metric name; with a `cause` or `reason` label by `name/cause`."""

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_CAUSE = re.compile(r'\b(?:cause|reason)="([^"]*)"')
VIOLATIONS, GAPS = "kairos_tbt_violations_total/", "kairos_token_gaps_total/"
LEASES = ("kairos_lease_", "kairos_leases_")
_WATCHED = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:nixl_num_failed_transfers_total",
    "vllm:nixl_num_kv_expired_reqs_total",
)
_LEVELS = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_POLL_S = 0.25
_TIMEOUT = aiohttp.ClientTimeout(total=20)


def counters_of(text: str) -> Counters:
    """What is watched, of one server's `/metrics`."""
    found: Counters = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        cause = _CAUSE.search(labels or "")
        if name in _WATCHED or (cause and _is_ours(name)) or _is_of_leases(name):
            key = f"{name}/{cause.group(1)}" if cause else name
            found[key] = found.get(key, 0.0) + float(value)
    return found


def _is_ours(name: str) -> bool:
    return name.startswith("kairos_") and name.endswith("_total")  # buckets of a histogram are sums already


def _is_of_leases(name: str) -> bool:
    return name.startswith(LEASES) and name.endswith("_total")


def grown(before: Counters, after: Counters) -> Counters:
    """By how much each counter grew; levels are left out."""
    return {name: value - before.get(name, 0.0) for name, value in after.items() if name.endswith("_total") or "/" in name}


def violations_by_cause(growth: Mapping[str, float]) -> Counters:
    """Token gaps over the TBT objective as the engines attributed them; empty where they count none."""
    return {name.removeprefix(VIOLATIONS): value for name, value in growth.items() if name.startswith(VIOLATIONS)}


def gaps_counted(growth: Mapping[str, float]) -> float:
    """Token gaps that the engines attributed, long or not."""
    return sum(value for name, value in growth.items() if name.startswith(GAPS))


def lease_counts(growth: Mapping[str, float]) -> Counters:
    """What became of leases, as `lease_admissions` or `lease_refusals_spent`; empty where the engines grant none.

    Of what is counted by reason there is the sum too, as `lease_refusals`.
    """
    found: Counters = {}
    for name, value in growth.items():
        if not name.startswith(LEASES):
            continue
        whole, _, reason = name.removeprefix("kairos_").partition("/")
        whole = whole.removesuffix("_total")
        found[whole] = found.get(whole, 0.0) + value
        if reason:
            found[f"{whole}_{reason}"] = value
    return found


async def read_counters(session: aiohttp.ClientSession, urls: Sequence[str]) -> Counters:
    """Sums over all servers. Raises ClusterError when one does not answer."""
    total: Counters = {}
    for url in urls:
        for name, value in counters_of(await read_metrics(session, url)).items():
            total[name] = total.get(name, 0.0) + value
    return total


async def wait_idle(session: aiohttp.ClientSession, urls: Sequence[str], *, limit_s: float) -> tuple[Counters, float]:
    """Wait until no server has a request; return the counters then, and how long it took. Raises ClusterError."""
    started_s = time.monotonic()
    while True:
        counters = await read_counters(session, urls)
        waited_s = time.monotonic() - started_s
        if not any(counters.get(name, 0.0) for name in _LEVELS):
            return counters, waited_s
        if waited_s > limit_s:
            levels = {name: counters.get(name) for name in _LEVELS}
            raise ClusterError(f"servers must be idle within {limit_s:g} s after a cell, got {levels}")
        await asyncio.sleep(_POLL_S)


async def read_metrics(session: aiohttp.ClientSession, url: str) -> str:
    """One server's `/metrics`. Raises ClusterError when it does not answer."""
    try:
        async with session.get(f"{url}/metrics", timeout=_TIMEOUT) as answer:
            answer.raise_for_status()
            return await answer.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ClusterError(f"{url}/metrics must answer, got {type(error).__name__}: {error}") from None


def group_cpu_s(groups: Sequence[int]) -> float:
    """CPU seconds so far of all processes in these process groups, children that ended included."""
    wanted, ticks = set(groups), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[2]) in wanted:
            ticks += sum(map(int, fields[11:15]))
    return ticks / 100.0


def group_rss_mb(groups: Sequence[int]) -> float:
    """Resident memory of these process groups in MB."""
    wanted, pages = set(groups), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) in wanted:
            pages += int(fields[21])
    return pages * 4096 / 1e6


def machine_cpu_s() -> tuple[float, float]:
    """CPU seconds that this machine's cores were busy, and had in all, since it started."""
    ticks = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / 100.0, sum(ticks) / 100.0
