"""What was said is kept, byte for byte, and read as words; the target may change under way."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from benchmarks.serving.failing.expected import Model
from benchmarks.serving.failing.transcript import RecordingSender, words_of
from vllm_kairos.emulation.sequences import SequenceTable, Turn
from vllm_kairos.replay.endpoint import Endpoint, prepared
from vllm_kairos.replay.exchange import Clock, Exchange, SendError
from vllm_kairos.workload.request import TraceRequest


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def test_words_are_those_of_whole_events() -> None:
    stream = event(" one") + event(" two") + b'data: {"usage": {}}\n\n' + b"data: [DONE]\n\n" + event(" three")[:-1]
    assert words_of(stream) == ["one", "two"]


def test_an_error_event_says_nothing() -> None:
    assert words_of(event(" one") + b'data: {"error": {"message": "gone"}}\n\n') == ["one"]


class Scripted:
    """A target that says one word and then may fail."""

    def __init__(self, word: str, *, fails: bool = False) -> None:
        self._word, self._fails = word, fails

    async def send(self, exchange: Exchange, clock: Clock) -> None:
        exchange.stream.feed(event(f" {self._word}"), clock())
        if self._fails:
            raise SendError("cut_off", "gone")


def exchange(name: str) -> Exchange:
    request = TraceRequest(request_id=name, arrival_s=0.0, prompt_tokens=2, output_tokens=1)
    return Exchange(prepared=prepared(request, name, Endpoint(url="", model="m"), [1, 2]), due_s=0.0, sent_s=0.0)


async def test_a_recording_sender_keeps_what_each_request_was_told_wherever_it_went() -> None:
    sender = RecordingSender()
    sender.target = Scripted("old", fails=True)
    with pytest.raises(SendError):
        await sender.send(exchange("a"), lambda: 1.0)
    sender.target = Scripted("new")
    second = exchange("b")
    await sender.send(second, lambda: 2.0)
    assert sender.words("a") == ["old"]
    assert sender.words("b") == ["new"]
    assert sender.words("c") == []
    assert [arrival.at_s for arrival in second.stream.arrivals] == [2.0]


def test_the_model_says_what_an_emulated_engine_says(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0} | {"\u0120" + name: index for index, name in enumerate(("alpha", "beta", "gamma", "delta"), 1)}
    Tokenizer(WordLevel(vocabulary, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    prompt = [7, 8, 9]
    table = SequenceTable((1, 2, 3, 4))
    table.begin("r", len(prompt), prompt)
    tokens = table.say([Turn("r", 0, 3)])["r"]
    for computed in range(3, 8):
        tokens += table.say([Turn("r", computed, 1)])["r"]
    names = {index: text[1:] for text, index in vocabulary.items()}
    assert Model(tmp_path).closed([7, 8, 3]) == [7, 8, 1]
    assert Model(tmp_path).answer(prompt, 6) == [names[token] for token in tokens]
