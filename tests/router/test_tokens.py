"""Prompt lengths: exact where they can be, an estimate within its stated factor elsewhere, never a stalled loop."""

import asyncio
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from kairos_router import prompt_parts, token_estimate
from kairos_router.config import TokenSettings
from kairos_router.token_estimate import FIRST_ITEM_TOKENS, TokenEstimate
from kairos_router.tokenizer import load_tokenizer
from kairos_router.tokens import MAX_PENDING, TokenCounter
from vllm_kairos.errors import ConfigError

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CJK = "预填充请求在解码服务器上分块运行以避免排队等待"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}


def chat(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def count(endpoint: str, body: dict[str, Any]) -> Any:
    return asyncio.run(TokenCounter(TokenSettings()).count(endpoint, body))


@pytest.mark.parametrize(
    ("endpoint", "body", "tokens"),
    [
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 3),
        (COMPLETIONS, {"prompt": [[1, 2], [3, 4, 5]]}, 5),
        ("/inference/v1/generate", {"token_ids": [5] * 7}, 7),
    ],
)
def test_token_ids_are_counted(endpoint, body, tokens):
    made = count(endpoint, body)
    assert (made.prompt_tokens, made.exact) == (tokens, True)


@pytest.mark.parametrize(
    "body", [{}, {"prompt": ""}, {"prompt": []}, {"prompt": None}, {"prompt": {"x": 1}}, {"prompt": [None]}]
)
def test_any_body_counts_as_one_token_at_least(body):
    assert count(COMPLETIONS, body).prompt_tokens >= 1


def test_an_english_text_is_estimated_within_a_factor_of_two():
    made = count(COMPLETIONS, {"prompt": "the quick brown fox jumps over the lazy dog " * 100})
    assert not made.exact
    assert 900 / 2 <= made.prompt_tokens <= 900 * 2


def test_cjk_is_not_taken_for_english():
    """Case 71: 4,000 characters; tokenizers make 0.6 to 2.5 tokens of one."""
    made = count(CHAT, chat((CJK * 200)[:4000]))
    assert 4000 * 2.5 / 4 <= made.prompt_tokens <= 4000 * 0.6 * 4


def test_an_image_counts_by_the_picture_not_by_its_bytes():
    made = count(CHAT, chat([{"type": "text", "text": "what is this?"}, IMAGE]))
    assert FIRST_ITEM_TOKENS <= made.prompt_tokens <= FIRST_ITEM_TOKENS + 50


def test_responses_and_messages_are_read_where_their_text_is():
    texts = {"/v1/responses": {"input": "a" * 400}, "/v1/messages": {"system": "a" * 200, **chat("a" * 200)}}
    for endpoint, body in texts.items():
        assert 95 <= count(endpoint, body).prompt_tokens <= 110


def _learn(estimate: TokenEstimate, text: str, tokens: int, times: int) -> int:
    size = token_estimate.measure(prompt_parts.of_body(COMPLETIONS, {"prompt": text}))
    for _ in range(times):
        estimate.learn(size, tokens)
    return estimate.tokens(size)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.6, 12.0), st.sampled_from(["plain text ", CJK]))
def test_usage_corrects_the_estimate_to_within_its_factor(bytes_per_token, text):
    text = text * 200
    tokens = max(1, round(len(text.encode()) / bytes_per_token))
    assert tokens / 1.5 <= _learn(TokenEstimate(), text, tokens, 60) <= tokens * 1.5


def test_one_script_does_not_teach_another():
    estimate = TokenEstimate()
    before = _learn(estimate, "plain text " * 100, 0, 0)
    _learn(estimate, CJK * 100, 9000, 50)
    assert _learn(estimate, "plain text " * 100, 0, 0) == before


@given(st.integers(-5, 10**9), st.text(max_size=400))
def test_no_report_however_absurd_breaks_the_estimate(tokens, text):
    estimate = TokenEstimate()
    assert _learn(estimate, text, tokens, 3) >= 1
    assert _learn(estimate, "plain text " * 100, 0, 0) <= 1100 / 0.5


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["messages", "content", "type", "text", "input", "prompt", "tool_calls"]), inner)
        ),
        max_leaves=15,
    )
)
def test_no_body_however_odd_raises(value):
    body = value if isinstance(value, dict) else {"prompt": value, "messages": value, "input": value}
    for endpoint in (COMPLETIONS, CHAT, "/v1/responses", "/v1/messages", "/inference/v1/generate", "/other"):
        prompt_parts.of_body(endpoint, body)


class SlowTokenizer:
    """Holds every thread until told; a stand-in for a megabyte of text."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.threads: set[str] = set()

    def count(self, endpoint: str, body: Any) -> int:
        self.threads.add(threading.current_thread().name)
        if len(body["prompt"]) > 5000:
            assert self.go.wait(20)
        return len(body["prompt"])


async def test_long_prompts_are_counted_off_the_loop_while_short_ones_go_on():
    """Case 71: the loop is free while a megabyte is counted, and too many such prompts are estimated."""
    tokenizer = SlowTokenizer()
    counter = TokenCounter(TokenSettings(), tokenizer)
    long = [asyncio.create_task(counter.count(COMPLETIONS, {"prompt": "x" * 1_000_000})) for _ in range(MAX_PENDING + 4)]
    await asyncio.sleep(0)
    short = [await counter.count(COMPLETIONS, {"prompt": "hi"}) for _ in range(50)]
    assert all(made.exact and made.prompt_tokens == 2 for made in short)
    tokenizer.go.set()
    counted = await asyncio.gather(*long)
    assert sum(made.exact for made in counted) == MAX_PENDING
    assert all(made.prompt_tokens >= 1_000_000 / 16 for made in counted)
    assert {name.split("_")[0] for name in tokenizer.threads} == {"MainThread", "kairos-tokens"}
    counter.close()


@pytest.fixture
def model_directory(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "user": 1, ":": 2, "hi": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = (
        "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
    )
    (tmp_path / "chat_template.jinja").write_text(template)
    return tmp_path


def test_the_models_own_tokenizer_and_template_are_exact(model_directory):
    tokenizer = load_tokenizer(model_directory)
    assert tokenizer.count(COMPLETIONS, {"prompt": "hi hi you"}) == 3
    assert tokenizer.count(CHAT, chat("hi hi")) == 5
    assert tokenizer.count(CHAT, chat([{"type": "text", "text": "hi"}])) == 4
    assert tokenizer.count(CHAT, chat([IMAGE])) is None
    assert tokenizer.count(CHAT, {"messages": [3]}) is None
    assert tokenizer.count("/v1/responses", {"input": "hi"}) is None


def test_other_threads_run_while_a_long_prompt_is_counted(model_directory):
    """Case 71: the tokenizer lets the interpreter go; were it kept, this loop would turn once or twice."""
    tokenizer, turns = load_tokenizer(model_directory), 0
    thread = threading.Thread(target=tokenizer.count, args=(COMPLETIONS, {"prompt": "hi you " * 400_000}))
    thread.start()
    while thread.is_alive():
        turns += 1
        time.sleep(0)
    assert turns > 50


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--tokenizer must be a directory with tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="must be a tokenizer"):
        load_tokenizer(tmp_path)
