"""A real engine in this process, with the small model: what only shows when tokens are really computed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.builder import schedule_params

CACHE = Path(os.environ.get("KAIROS_CACHE_DIR") or Path.home() / ".cache" / "vllm-kairos")
MODEL = CACHE / "models" / "smollm2-135m-instruct"
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}
PROMPT = "The history of the city begins in the year nine hundred, when " * 12

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="the small model is not converted yet (make model)"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    from vllm import LLM

    patch = pytest.MonkeyPatch()
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }.items():
        patch.setenv(name, value)
    llm = LLM(
        str(MODEL),
        scheduler_cls="vllm_kairos.KairosScheduler",
        scheduling_policy="priority",
        enforce_eager=True,
        dtype="float32",
        block_size=32,
        max_model_len=1024,
        max_num_seqs=8,
        enable_prefix_caching=False,
        additional_config={"kairos": {"role": "decode", "default_chunk_tokens": 96}},
    )
    yield llm
    del llm
    patch.undo()


def sampling(*chi: int, **options: Any) -> Any:
    from vllm import SamplingParams

    extra = {"kv_transfer_params": schedule_params(*chi)} if chi else None
    temperature = 1.0 if "seed" in options else 0.0
    return SamplingParams(temperature=temperature, extra_args=extra, **{"max_tokens": 16, **options})


def test_scheduler_is_ours_and_follows_the_configured_mode(engine: Any) -> None:
    """Case 50 on the running engine; the CPU platform turns async scheduling off."""
    from vllm_kairos import KairosScheduler

    assert type(engine.llm_engine.engine_core.engine_core.scheduler) is KairosScheduler


@pytest.mark.parametrize("chi", [(64,), (37, 5, 128), (1,)])
def test_deflected_answers_equal_plain_ones_token_for_token(engine: Any, chi: tuple[int, ...]) -> None:
    plain, deflected = (engine.generate([PROMPT], p, use_tqdm=False)[0].outputs[0] for p in (sampling(), sampling(*chi)))
    assert list(plain.token_ids) == list(deflected.token_ids)


def test_grammar_holds_for_a_deflected_request(engine: Any) -> None:
    """Case 63: json_schema with schedule [32, ...]: valid JSON."""
    from vllm.sampling_params import StructuredOutputsParams

    options = sampling(32, structured_outputs=StructuredOutputsParams(json=SCHEMA), max_tokens=64)
    answer = engine.generate(["Answer in JSON: how old is a twenty year old? "], options, use_tqdm=False)[0]
    assert isinstance(json.loads(answer.outputs[0].text)["age"], int)


def test_two_choices_under_the_priority_policy(engine: Any) -> None:
    """Case 62: n=2 under the priority policy, deflected: two choices."""
    from vllm import SamplingParams

    extra = {"kv_transfer_params": schedule_params(48)}
    options = SamplingParams(n=2, temperature=1.0, max_tokens=8, ignore_eos=True, extra_args=extra)
    answers = engine.generate([PROMPT, PROMPT], options, priority=[1, 0], use_tqdm=False)
    assert [len(answer.outputs) for answer in answers] == [2, 2]
    assert all(len(choice.token_ids) == 8 for answer in answers for choice in answer.outputs)


def test_seeded_deflected_request_does_not_kill_the_engine(engine: Any) -> None:
    """vLLM's CPU engine dies when a seeded prompt is split; ours is not."""
    plain, deflected = (
        engine.generate([PROMPT], options, use_tqdm=False)[0].outputs[0] for options in (sampling(seed=7), sampling(32, seed=7))
    )
    assert list(plain.token_ids) == list(deflected.token_ids)
