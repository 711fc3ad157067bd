"""`kairos router` as a process: one-line errors, a real start, a drain on SIGTERM."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.router.cluster import read_to_break
from tests.router.stubs import Received, Reply, Script, chat_events, decode_server, prefilled, running

MAIN = (
    "import sys; from kairos_router.command import COMMAND; from vllm_kairos.errors import KairosError\n"
    "try: sys.exit(COMMAND.run(COMMAND.make_parser('kairos router').parse_args(sys.argv[1:])))\n"
    "except KairosError as error: sys.exit(f'kairos: {error}')"
)
ROOT = Path(__file__).parents[2]
NOBODY = ("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2")


@contextmanager
def router(*arguments: str, port: str = "0") -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'router'}", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "--port", port, "--prometheus-port", "0", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def complaint(*arguments: str, port: str = "0") -> str:
    """Run until it gives up; return its last line."""
    with router(*arguments, port=port) as process:
        _, said = process.communicate(timeout=60)
        assert process.returncode != 0
        return said.decode().strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*NOBODY, "--profile", "/nope.json"), "kairos: profile /nope.json"),
        ((*NOBODY, "--worker-startup-timeout-secs", "0.2"), "kairos: --prefill http://127.0.0.1:1 must become healthy"),
        ((*NOBODY, "--state-key-file", "/nope"), "kairos: --state-key-file must be readable, got '/nope'"),
        ((*NOBODY, "--host", "no.such.host.invalid"), "kairos: --port host must be an address of this machine"),
        ((*NOBODY, "--host", "a..b"), "kairos: --port host must be an address of this machine, got 'a..b' (no host name)"),
        ((*NOBODY, "--log-dir", "/proc/nope"), "kairos: --log-dir must be a writable directory, got '/proc/nope'"),
        ((*NOBODY, "--enable-trace", "--otlp-traces-endpoint", "c:4317"), "kairos: --otlp-traces-endpoint must be"),
        ((*NOBODY, "--tokenizer", "/nope"), "kairos: --tokenizer must be a directory with tokenizer.json, got '/nope'"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_flag_and_the_value(arguments, said):
    assert complaint(*arguments).startswith(said)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert complaint(*NOBODY, port=str(port)).startswith(f"kairos: --port must be free on 127.0.0.1, got {port}")


async def test_a_port_that_another_router_took_meanwhile_is_named():
    async with running(server(lambda _: prefilled())) as prefill, running(server(decode_server)) as decode:
        port = str(_free_port())
        arguments = ("--prefill", prefill.url, "--decode", decode.url, "--prometheus-port", port)
        said = await asyncio.to_thread(complaint, *arguments, port=port)
        assert said == f"kairos: port must be free on 127.0.0.1, got {port} (Address already in use)"


def server(script: Script) -> Script:
    """A whole server: healthy, without our endpoint plugin, with one model."""

    def play(received: Received) -> Reply:
        if received.method == "POST":
            return script(received)
        gets = {"/health": Reply(), "/v1/models": Reply(json={"data": [{"id": "m"}]})}
        return gets.get(received.path, Reply(status=404))

    return play


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def test_it_serves_logs_and_drains(tmp_path):
    async with running(server(lambda _: prefilled())) as prefill, running(server(decode_server)) as decode:
        port = _free_port()
        arguments = ("--prefill", prefill.url, "--decode", decode.url, "--log-dir", str(tmp_path), "--decision-headers")
        with router(*arguments, "--worker-startup-timeout-secs", "30", port=str(port)) as process:
            answer = await asyncio.to_thread(_ask_until_up, port)
            assert answer["choices"]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
    record = json.loads((tmp_path / "access.jsonl").read_text().splitlines()[-1])
    assert record["status"] == 200
    assert record["decision"] == "prefill-decode"
    assert record["reason"] == "policy-never"
    assert "secret prompt" not in (tmp_path / "access.jsonl").read_text()


async def test_a_stream_that_is_open_when_it_stops_ends_in_an_error_event():
    def endless(received: Received) -> Reply:
        return Reply(parts=[*chat_events("a")[:2], None], gate=asyncio.Event())

    async with running(server(lambda _: prefilled())) as prefill, running(server(endless)) as decode:
        port = _free_port()
        arguments = ("--prefill", prefill.url, "--decode", decode.url, "--drain-timeout-secs", "0")
        with router(*arguments, port=str(port)) as process:
            async with aiohttp.ClientSession() as session:
                await _until_up(session, port)
                body = {"model": "m", "messages": [], "stream": True}
                async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as response:
                    await response.content.readexactly(len(b"".join(chat_events("a")[:2])))
                    process.send_signal(signal.SIGTERM)
                    rest, whole = await read_to_break(response)
            assert await asyncio.to_thread(process.wait, 30) == 0
        assert b'"error"' in rest
        assert not whole


async def _until_up(session: aiohttp.ClientSession, port: int) -> None:
    async with asyncio.timeout(40):
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/health"):
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)


def _ask_until_up(port: int) -> dict[str, list[object]]:
    body = json.dumps({"model": "m", "prompt": "secret prompt", "max_tokens": 2}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"})
    deadline_s = time.monotonic() + 40
    while True:
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                said: dict[str, list[object]] = json.loads(answer.read())
                return said
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
