"""`kairos replay` from its flags to its files."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from tests.router.stubs import Received, Reply, Script, event, running
from vllm_kairos.errors import ConfigError, KairosError, WorkloadError
from vllm_kairos.replay.command import COMMAND, settings_of
from vllm_kairos.replay.load import build_workload

MOONCAKE = [
    {"timestamp": 1_000 * at, "input_length": 20 + at, "output_length": 2, "hash_ids": [7, 4_294_967_303 + at][:1]}
    for at in range(25)
]


@contextmanager
def _served(script: Script) -> Iterator[str]:
    """A stub in a thread of its own: the command runs its own event loop."""
    started: Queue[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Queue()

    async def serve() -> None:
        done = asyncio.Event()
        async with running(script) as stub:
            started.put((stub.url, asyncio.get_running_loop(), done))
            await done.wait()

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    url, loop, done = started.get(timeout=60)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in MOONCAKE))
    return path


def _server(received: Received) -> Reply:
    if received.path == "/v1/models":
        return Reply(json={"data": [{"id": "tiny"}]})
    usage = [{"prompt_tokens": len(received.body["prompt"]), "completion_tokens": at} for at in (1, 2)]
    chunks = [event({"choices": [{"text": "x"}], "usage": one}) for one in usage]
    return Reply(parts=[*chunks, b"data: [DONE]\n\n"])


def _run(*words: str) -> int:
    return COMMAND.run(COMMAND.make_parser("kairos replay").parse_args([*words]))


def test_91_all_rows_end_in_the_files(trace, tmp_path, capsys):
    out = tmp_path / "out"
    with _served(_server) as url:
        code = _run("--url", url, "--trace", str(trace), "--speed", "1000", "--api-key", "hidden", "--out", str(out))
    assert code == 0
    rows = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert [row["trace_prompt_tokens"] for row in rows] == [row["input_length"] for row in MOONCAKE]
    assert all(row["prompt_tokens"] == row["trace_prompt_tokens"] and not row["error"] for row in rows)
    document = json.loads((out / "results.json").read_text())
    assert (document["figures"]["requests"], document["complete"], document["endpoint"]["model"]) == (25, True, "tiny")
    page = (out / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert "TTFT from due" in page
    assert "TTFT from due" in capsys.readouterr().out
    assert not any("hidden" in path.read_text() for path in out.iterdir())


def test_results_have_the_same_keys_whatever_happened(trace, tmp_path):
    def keys(value: object) -> object:
        return {name: keys(item) for name, item in value.items()} if isinstance(value, dict) else None

    flags = ("--trace", str(trace), "--limit", "3", "--speed", "1000", "--no-plots", "--model", "tiny")
    with _served(_server) as url:
        assert _run("--url", url, *flags, "--out", str(tmp_path / "good")) == 0
    assert _run("--url", "http://127.0.0.1:9", *flags, "--out", str(tmp_path / "bad")) == 0
    assert _run("--url", "http://127.0.0.1:9", *flags, "--fail-on-errors", "--out", str(tmp_path / "bad")) == 1
    good, bad = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("good", "bad"))
    assert bad["figures"]["errors"] == {"connect": 3}
    for document in (good, bad):
        document["figures"]["errors"] = document["figures"]["error_examples"] = None
    assert keys(good) == keys(bad)
    assert list(good["figures"]) == list(bad["figures"])


def test_names_that_are_no_text_end_in_the_files_too(trace, tmp_path, capsys):
    odd = trace.rename(tmp_path / "odd-\udcff.jsonl")
    with _served(_server) as url:
        assert _run("--url", url, "--trace", str(odd), "--limit", "1", "--no-plots", "--out", str(tmp_path / "\udcfe")) == 0
    assert "odd-\\udcff.jsonl" in (tmp_path / "\udcfe" / "report.html").read_text()
    assert "\\udcfe" in capsys.readouterr().out


def test_ctrl_c_leaves_what_there_is(trace, tmp_path):
    def first_then_interrupt(received: Received) -> Reply:
        if len(received.body["prompt"]) == 21:
            os.kill(os.getpid(), signal.SIGINT)
        return _server(received)

    flags = ("--trace", str(trace), "--speed", "1", "--no-plots", "--model", "tiny", "--out", str(tmp_path))
    with _served(first_then_interrupt) as url:
        assert _run("--url", url, *flags) == 130
    document = json.loads((tmp_path / "results.json").read_text())
    assert (document["complete"], document["figures"]["requests"] >= 1, document["figures"]["not_sent"] > 0) == (
        False,
        True,
        True,
    )


def test_ctrl_c_does_not_wait_for_a_server_that_says_nothing(trace, tmp_path, capsys):
    def never(received: Received) -> Reply:
        os.kill(os.getpid(), signal.SIGINT)
        return Reply(json={}, gate=asyncio.Event())

    with _served(never) as url:
        assert _run("--url", url, "--trace", str(trace), "--out", str(tmp_path / "out")) == 130
    assert "stopped before anything was sent" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


UNUSABLE_URLS = (
    "http://[",
    "http://host:port",
    "http://host:99999",
    "http://host:0",
    "http://host/v1?key=1",
    "http://host/#v1",
    "http://a host",
    "http://host\n",
    f"http://{'a' * 300}.example",
    "http://..",
)


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ([], "--trace FILE or as --workload NAME, got neither"),
        (["--trace", "t", "--workload", "LPLD"], "got both"),
        (["--workload", "LPLD", "--speed", "2", "--rate", "3"], "--speed must be left out"),
        (["--workload", "LPLD", "--rate", "0"], "--rate must be a finite number > 0, got 0"),
        (["--workload", "LPLD", "--slice", "9:3"], "--slice must be START:END"),
        (["--workload", "LPLD", "--extra-body", "[1]"], "--extra-body must be a JSON object"),
        (["--workload", "LPLD", "--url", "ftp://x"], "--url must begin with http"),
        (["--workload", "LPLD", "--url", "http://me:pass@host"], "--url must hold no user and password"),
        *((["--workload", "LPLD", "--url", url], "--url must be http") for url in UNUSABLE_URLS),
        (["--workload", "LPLD", "--url", "http:///v1"], "--url must name a host"),
        (["--workload", "LPLD", "--api-key", "two\nlines"], "--api-key must be printable ASCII, .* got another one$"),
        (["--workload", "LPLD", "--model", "a\udcff"], "--model must be UTF-8"),
        (["--workload", "LPLD", "--extra-body", "[" * 100_000], r"--extra-body must be a JSON object, got '\[{80}\.\.\.'"),
        (["--workload", "LPLD", "--extra-body", '{"stop": "\\ud800"}'], "--extra-body must be a JSON object"),
        (["--workload", "LPLD", "--extra-body", '{"top_p": NaN}'], "--extra-body must be a JSON object"),
        (["--workload", "LPLD", "--vocabulary", "7"], "--vocabulary must be"),
        (["--workload", "LPLD", "--ramp-s", "inf"], "--ramp-s must be a finite number >= 0, got inf"),
        (["--workload", "LPLD", "--warn-lag-ms", "nan"], "--warn-lag-ms must be a finite number >= 0, got nan"),
        (["--workload", "LPLD", "--limit", "0"], "--limit must be >= 1, got 0"),
    ],
)
def test_bad_flags_are_named(flags, rule):
    with pytest.raises(ConfigError, match=rule):
        settings_of(COMMAND.make_parser("kairos replay").parse_args(flags))


def _load(*flags: str) -> list[float]:
    settings = settings_of(COMMAND.make_parser("kairos replay").parse_args([*flags]))
    return [one.arrival_s for one in build_workload(settings.load).requests]


@pytest.mark.parametrize("origin", [0, 1_700_000_000_000])
def test_88_gaps_are_scaled_and_the_first_request_is_at_once(tmp_path, origin):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({**row, "timestamp": row["timestamp"] + origin}) + "\n" for row in MOONCAKE))
    for speed in (0.5, 2.0):
        assert _load("--trace", str(path), "--speed", str(speed)) == pytest.approx([at / speed for at in range(25)])


def test_a_load_is_cut_before_it_is_paced(trace):
    base = ("--trace", str(trace))
    assert _load(*base, "--slice", "5:9", "--rate", "2") == pytest.approx([0.0, 0.5, 1.0, 1.5])
    assert _load(*base, "--limit", "2") == [0.0, 1.0]
    assert _load(*base, "--slice", "20:", "--max-gap-s", "0.25")[-1] == pytest.approx(1.0)


def test_a_ramp_must_leave_something_to_measure(trace):
    with pytest.raises(ConfigError, match="--ramp-s must be short enough"):
        _load("--trace", str(trace), "--limit", "3", "--ramp-s", "60")


def test_a_ramp_that_no_float_holds_is_refused(trace):
    with pytest.raises(ConfigError, match="--ramp-s must be short enough"):
        _load("--trace", str(trace), "--ramp-s", "1e308")


@pytest.mark.parametrize("lengths", [{"input_length": 10**12}, {"output_length": 10**30}])
def test_lengths_that_no_process_holds_are_refused(tmp_path, lengths):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({**MOONCAKE[0], "hash_ids": [], **lengths}) + "\n")
    with pytest.raises(ConfigError, match=r"at most 10,000,000 tokens .* request 'row-1' has"):
        _load("--trace", str(path))


def test_a_trace_that_is_not_there_is_bad_input(tmp_path):
    with pytest.raises(KairosError) as failure:
        _load("--trace", str(tmp_path / "none.jsonl"))
    assert isinstance(failure.value, WorkloadError)
