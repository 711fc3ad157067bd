"""What a router adds: latency at concurrency 1, requests/s and CPU per request at 32 and 256, memory.

Run: python -m benchmarks.serving.router_hop --peer vllm-router=PATH --peer toy-proxy=PATH --out FILE

Every contender stands before the same mock engines (mock_engines.py) on its own core; engines and
load generator share the other. Contenders take turns within each repeat, so that a drift of the
machine's speed hits all of them alike; figures are medians over the repeats. `added` is the latency
through the router less that of the same two calls without one; `per_core` is requests per second of the
router's CPU time.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop

from benchmarks.environment import describe_machine

PREFILL_PORT, DECODE_PORT = 18100, 18200
PREFILL, DECODE = f"http://127.0.0.1:{PREFILL_PORT}", f"http://127.0.0.1:{DECODE_PORT}"
PROMPT = "benchmark " * 205  # about 2 KB
ROUTER_CORE, LOAD_CORE = {1}, {0}
CONCURRENCIES = (32, 256)
LOAD_REQUESTS_PER_ALONE = 4  # requests under load for each one sent alone


@dataclass(frozen=True)
class Contender:
    """A router to measure: its command line; `{port}` is filled in."""

    name: str
    command: tuple[str, ...]
    port: int


def contenders(peers: Sequence[str]) -> list[Contender]:
    """Ours first, then every `NAME=PATH` peer.

    Raises SystemExit for a peer this harness does not know how to start.
    """
    ours = [sys.executable, "-m", "vllm_kairos", "router", "--host", "127.0.0.1", "--prefill", PREFILL, "--decode", DECODE]
    found = [
        Contender("kairos-router", (*ours, "--deflect-policy", "never", "--port", "18301", "--prometheus-port", "18311"), 18301)
    ]
    for peer in peers:
        name, _, path = peer.partition("=")
        port = 18302 + len(found)
        if name == "vllm-router":
            flags = ["--vllm-pd-disaggregation", "--kv-connector", "nixl", "--prefill", PREFILL, "none", "--decode", DECODE]
            command = (path, *flags, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(port + 10))
        elif name == "toy-proxy":
            hosts = ["--prefiller-hosts", "127.0.0.1", "--prefiller-ports", str(PREFILL_PORT)]
            hosts += ["--decoder-hosts", "127.0.0.1", "--decoder-ports", str(DECODE_PORT)]
            command = (sys.executable, path, "--host", "127.0.0.1", "--port", str(port), *hosts)
        else:
            raise SystemExit(f"--peer must name vllm-router or toy-proxy, got {name!r}")
        found.append(Contender(name, command, port))
    return found


@contextmanager
def _process(command: Sequence[str], cores: set[int], log: Path) -> Iterator[psutil.Process]:
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        os.sched_setaffinity(child.pid, cores)
        yield psutil.Process(child.pid)
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _check_free(port: int) -> None:
    """Something else that answers on the port would be measured in the contender's place."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        raise SystemExit(f"port {port} must be free, but something listens there")


def _wait_ready(port: int, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port} after {timeout_s} s")


def _wait_serving(contender: Contender, timeout_s: float = 90) -> None:
    """A router may listen long before it has found its servers well."""
    deadline = time.monotonic() + timeout_s
    request = urllib.request.Request(f"http://127.0.0.1:{contender.port}/v1/completions", data=_body(stream=False))
    request.add_header("content-type", "application/json")
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"{contender.name} answers no request after {timeout_s:g} s: {error}") from None
            time.sleep(0.5)


def _body(*, stream: bool) -> bytes:
    return json.dumps({"model": "mock", "prompt": PROMPT, "max_tokens": 16, "stream": stream}).encode()


def _request(stream: bool) -> bytes:
    body = _body(stream=stream)
    lines = (
        "POST /v1/completions HTTP/1.1",
        "host: 127.0.0.1",
        "content-type: application/json",
        f"content-length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


async def _once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    """Send one request and read its whole answer, content-length or chunked."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise SystemExit(f"unexpected answer: {head[:200]!r}")
    if b"content-length:" in head:
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        return
    while (size := int(await reader.readline(), 16)) > 0:
        await reader.readexactly(size + 2)
    await reader.readline()


async def _worker(port: int, request: bytes, count: int, latencies_s: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(count):
        start = time.perf_counter()
        await _once(reader, writer, request)
        latencies_s.append(time.perf_counter() - start)
    writer.close()


async def _direct(count: int, stream: bool) -> list[float]:
    """The two calls a router makes, one after the other, with no router between."""
    prefill = await asyncio.open_connection("127.0.0.1", PREFILL_PORT)
    decode = await asyncio.open_connection("127.0.0.1", DECODE_PORT)
    prompt, answered = _request(False), _request(stream)
    latencies_s = []
    for _ in range(count):
        start = time.perf_counter()
        await _once(*prefill, prompt)
        await _once(*decode, answered)
        latencies_s.append(time.perf_counter() - start)
    for _, writer in (prefill, decode):
        writer.close()
    return latencies_s


def _cpu_s(process: psutil.Process) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in [process, *process.children(recursive=True)])


async def _load(port: int, concurrency: int, count: int, *, stream: bool) -> tuple[float, list[float]]:
    latencies_s: list[float] = []
    request = _request(stream)
    start = time.perf_counter()
    await asyncio.gather(*(_worker(port, request, count // concurrency, latencies_s) for _ in range(concurrency)))
    return time.perf_counter() - start, latencies_s


def _p(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


KINDS = ("json", "stream")


def _alone(contender: Contender, process: psutil.Process, requests: int, kind: str) -> dict[str, float]:
    """Latency at concurrency 1, and what of it the router adds."""
    stream = kind == "stream"
    direct_s = uvloop.run(_direct(requests, stream))
    before_s = _cpu_s(process)
    _, alone_s = uvloop.run(_load(contender.port, 1, requests, stream=stream))
    row = {f"c1_{kind}_cpu_ms": 1e3 * (_cpu_s(process) - before_s) / requests}
    for percent in (50, 99):
        direct_ms, through_ms = 1e3 * _p(direct_s, percent), 1e3 * _p(alone_s, percent)
        row[f"c1_{kind}_direct_p{percent}_ms"] = direct_ms
        row[f"c1_{kind}_added_p{percent}_ms"] = through_ms - direct_ms
    return row


def _together(contender: Contender, process: psutil.Process, concurrency: int, requests: int, kind: str) -> dict[str, float]:
    """Requests per second, of wall time and of the router's CPU time."""
    count = max(LOAD_REQUESTS_PER_ALONE * requests // concurrency, 1) * concurrency
    before_s = _cpu_s(process)
    wall_s, _ = uvloop.run(_load(contender.port, concurrency, count, stream=kind == "stream"))
    cpu_s = _cpu_s(process) - before_s
    name = f"c{concurrency}_{kind}"
    return {f"{name}_rps": count / wall_s, f"{name}_cpu_ms": 1e3 * cpu_s / count, f"{name}_per_core_rps": count / cpu_s}


def measure(contender: Contender, process: psutil.Process, requests: int) -> dict[str, float]:
    """One repeat of one contender."""
    row: dict[str, float] = {}
    for kind in KINDS:
        row |= _alone(contender, process, requests, kind)
    for concurrency in CONCURRENCIES:
        for kind in KINDS:
            row |= _together(contender, process, concurrency, requests, kind)
    row["rss_mb"] = sum(p.memory_info().rss for p in [process, *process.children(recursive=True)]) / 1e6
    return row


def run(found: Sequence[Contender], repeats: int, requests: int, logs: Path) -> dict[str, list[dict[str, float]]]:
    """All contenders in turn, `repeats` times."""
    rows: dict[str, list[dict[str, float]]] = {contender.name: [] for contender in found}
    os.sched_setaffinity(0, LOAD_CORE)
    for port in (PREFILL_PORT, DECODE_PORT, *(contender.port for contender in found)):
        _check_free(port)
    with ExitStack() as stack:
        engines = [sys.executable, "-m", "benchmarks.serving.mock_engines"]
        stack.enter_context(_process(engines, LOAD_CORE, logs / "engines.log"))
        _wait_ready(PREFILL_PORT)
        processes = {}
        for contender in found:
            processes[contender.name] = stack.enter_context(
                _process(contender.command, ROUTER_CORE, logs / f"{contender.name}.log")
            )
            _wait_ready(contender.port)
        for contender in found:
            _wait_serving(contender)
            uvloop.run(_load(contender.port, 8, 400, stream=False))  # warm-up
        for repeat in range(repeats):
            order = found if repeat % 2 == 0 else list(reversed(found))
            for contender in order:
                row = measure(contender, processes[contender.name], requests)
                rows[contender.name].append(row)
                sys.stdout.write(f"repeat {repeat + 1}/{repeats} {contender.name}: {json.dumps(_rounded(row))}\n")
                sys.stdout.flush()
    return rows


def _rounded(row: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 3) for key, value in row.items()}


def summarise(rows: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    """Medians with spread, and the ratio of ours to each peer, repeat by repeat."""
    medians = {
        name: {
            key: {
                "median": statistics.median(r[key] for r in rs),
                "min": min(r[key] for r in rs),
                "max": max(r[key] for r in rs),
            }
            for key in rs[0]
        }
        for name, rs in rows.items()
    }
    ours = rows["kairos-router"]
    ratios = {
        name: {key: statistics.median(a[key] / b[key] for a, b in zip(ours, rs, strict=True)) for key in ours[0]}
        for name, rs in rows.items()
        if name != "kairos-router"
    }
    return {"figures": medians, "ours_over_peer": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what was started is ended
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as logs:
        rows = run(contenders(args.peer), args.repeats, args.requests, Path(logs))
    summary = {
        "command": "python -m benchmarks.serving.router_hop "
        + " ".join(f"--peer {p.partition('=')[0]}=PATH" for p in args.peer),
        "environment": {**describe_machine(), "load_average_before": load_before},
        "repeats": rows,
        **summarise(rows),
    }
    sys.stdout.write(json.dumps(summary["ours_over_peer"], indent=2) + "\n")
    if args.out:
        args.out.write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
