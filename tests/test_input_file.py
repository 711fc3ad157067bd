"""Files that users name: read whole, or refused where they would never end."""

import os
import threading
from pathlib import Path

import pytest

from vllm_kairos import input_file
from vllm_kairos.cli.main import main
from vllm_kairos.input_file import read_input

ENDLESS = Path("/dev/zero")


def test_a_file_is_read_as_utf8(tmp_path):
    (tmp_path / "a").write_bytes("größe: 1\r\n".encode())
    assert read_input(tmp_path / "a") == "größe: 1\r\n"
    (tmp_path / "b").write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        read_input(tmp_path / "b")


def test_a_pipe_is_read_to_its_end(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("requests: 5"))
    writer.start()
    assert read_input(tmp_path / "pipe") == "requests: 5"
    writer.join()


@pytest.mark.parametrize(("size_bytes", "fits"), [(8, True), (9, False)])
def test_the_largest_file_is_read_and_a_larger_one_refused(tmp_path, monkeypatch, size_bytes, fits):
    monkeypatch.setattr(input_file, "MOST_BYTES", 8)
    (tmp_path / "a").write_text("x" * size_bytes)
    if fits:
        assert len(read_input(tmp_path / "a")) == size_bytes
    else:
        with pytest.raises(OSError, match="File too large"):
            read_input(tmp_path / "a")


@pytest.mark.skipif(not ENDLESS.exists(), reason="needs a device that never ends")
@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "--config", str(ENDLESS)],
        ["simulate", "--profile", str(ENDLESS)],
        ["plan", "--config", str(ENDLESS)],
        ["up", "--config", str(ENDLESS)],
        ["router", "--config", str(ENDLESS)],
        ["decide", "--profile", "a100-llama3-8b", "--cluster", str(ENDLESS), "--prompt-tokens", "5"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_no_command_reads_without_an_end(words, capsys):
    assert main(words) == 2
    assert "File too large" in capsys.readouterr().err


@pytest.mark.skipif(not ENDLESS.exists(), reason="needs a device that never ends")
@pytest.mark.parametrize("command", ["simulate", "replay"])
@pytest.mark.parametrize("format_", ["auto", "azure"])
def test_no_trace_is_read_without_an_end(command, format_, capsys):
    assert main([command, "--trace", str(ENDLESS), "--format", format_]) == 2
    assert "row 1 must be shorter than" in capsys.readouterr().err
