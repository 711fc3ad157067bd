"""The profiler's seams on the real engine: shapes run as planned, and a failed start is one line."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData

from vllm_kairos.engine.compat_inprocess import InprocessEngine, cpu_clock
from vllm_kairos.errors import ConfigError, ProfileError

ROOT = Path(__file__).parents[2]
HEADS, HEAD_SIZE = 4, 64


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "router"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.fixture(scope="module")
def result(model: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = json.loads((Path(model) / "config.json").read_text())
    folder = tmp_path_factory.mktemp("runnable")  # the CPU attention kernel has no heads as small as the scheduler tests'
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": HEADS * HEAD_SIZE, "num_attention_heads": HEADS}))
    finished = _run("tests/engine/profiled_sweep.py", str(folder))
    lines = [line for line in finished.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, finished.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))


def test_every_step_carries_exactly_the_planned_batch(result: Any) -> None:
    assert result["unplanned"] == 0
    assert [batch[0::2] for batch in result["batches"]] == [
        *([0, 64], [0, 64], [0, 200]),
        *([3, 0], [3, 0], [3, 61], [3, 29], [3, 0]),
        [4, 0],
    ]


def test_held_tokens_count_as_computed_without_being_computed(result: Any) -> None:
    first_decode, with_prompt = result["batches"][3], result["batches"][6]
    assert first_decode[1] == 3 * (65 + 2)  # its last prompt token, one decode step, one warm-up step
    assert with_prompt[3] == 250
    assert with_prompt[1] > 3 * 65 + 250


def test_a_sweep_leaves_no_request_in_the_engine(result: Any) -> None:
    assert result["after"] == [[[3, 0, False]], [[1, 3, True]]]


def test_a_step_takes_less_than_its_period(result: Any) -> None:
    assert result["ordered"]


def test_kv_bytes_per_token_are_those_of_the_model(result: Any) -> None:
    layers, element_bytes = 2, 2
    assert result["kv_bytes_per_token"] == 2 * layers * HEADS * HEAD_SIZE * element_bytes
    assert result["capacity_blocks"] > 512 // 32


def test_a_scheduler_output_has_the_fields_that_steps_are_read_from() -> None:
    assert {"req_id", "num_computed_tokens"} <= set(NewRequestData.__dataclass_fields__)
    assert {"req_ids", "num_computed_tokens", "num_output_tokens"} <= set(CachedRequestData.__dataclass_fields__)


def test_the_cpu_clock_counts_this_process_and_its_workers() -> None:
    worker = multiprocessing.get_context("spawn").Process(target=sum, args=(range(10**12),))
    worker.start()
    try:
        clock = cpu_clock()
        began_s, own_s = clock(), time.process_time()
        for _ in range(60_000):
            others_s = clock() - began_s - (time.process_time() - own_s)
            if others_s > 0.05:
                break
            time.sleep(0.001)
        assert others_s > 0.05
    finally:
        worker.kill()
        worker.join()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["--no-such-flag"], ConfigError, "engine arguments: unrecognized arguments: --no-such-flag"),
        (["--tensor-parallel-size", "many"], ConfigError, "engine arguments: argument --tensor-parallel-size"),
        (["--max-model-len", "999999999"], ProfileError, "engine did not start: "),
    ],
)
def test_an_engine_that_does_not_start_is_one_line(model: str, words: list[str], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        InprocessEngine.build(["--model", model, "--skip-tokenizer-init", *words])
    assert len(str(caught.value).splitlines()) == 1
