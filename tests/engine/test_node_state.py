"""What leaves the engine core, when, and that it keeps coming while the engine is idle."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from msgspec.structs import replace

from tests.engine.builder import make_request, remote_params, run_model, schedule_params, step, warm_decodes
from vllm_kairos.engine.publisher import StatePublisher
from vllm_kairos.engine.reporter import StateReporter
from vllm_kairos.engine.settings import parse_settings
from vllm_kairos.errors import ConfigError
from vllm_kairos.wire.codec import StateDecoder
from vllm_kairos.wire.messages import NodeStateMessage

KEY = b"key of the feed"
RECEIVE_LIMIT_MS = 20_000


def free_endpoint() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class Reader:
    """A router's end of the feed."""

    def __init__(self, endpoint: str, key: bytes | None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVTIMEO, RECEIVE_LIMIT_MS)
        self._socket.connect(endpoint)
        self._socket.subscribe(b"")
        self._decoder = StateDecoder(key)

    def read(self) -> NodeStateMessage:
        return self._decoder.decode(self._socket.recv_multipart())

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture
def endpoint() -> str:
    return free_endpoint()


@pytest.fixture
def reader(endpoint: str) -> Iterator[Reader]:
    opened = Reader(endpoint, KEY)
    yield opened
    opened.close()


class Recorder:
    """Stands in for the publisher."""

    def __init__(self) -> None:
        self.sent: list[NodeStateMessage] = []

    def publish(self, message: NodeStateMessage) -> None:
        self.sent.append(message)

    def close(self) -> None:
        pass


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def reported(build: Any) -> tuple[Any, Recorder, Clock]:
    """A decode node's scheduler that reports into a list, on a clock that the test moves."""
    return reporting(build, async_scheduling=False)


def reporting(build: Any, *, async_scheduling: bool) -> tuple[Any, Recorder, Clock]:
    kairos = {"node_id": "d0", "role": "decode", "default_chunk_tokens": 32, "heartbeat_period_s": 0.1}
    options = {"connector": "KairosNixlConnector", "token_budget": 256, "blocks": 100}
    scheduler = build(kairos=kairos, async_scheduling=async_scheduling, **options)
    recorder, clock = Recorder(), Clock()
    settings = parse_settings({"kairos": kairos})
    scheduler._kairos_reporter = StateReporter(scheduler, settings, recorder, clock)  # type: ignore[arg-type]
    return scheduler, recorder, clock


def test_no_endpoint_no_publisher(build: Any) -> None:
    assert build(kairos={"role": "decode"})._kairos_reporter is None


def test_heartbeats_are_signed_and_go_on_while_idle(build: Any, endpoint: str, reader: Reader, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY)
    kairos = {"node_id": "d0", "state_endpoint": endpoint, "heartbeat_period_s": 0.02, "state_key_file": str(key_file)}
    scheduler = build(kairos=kairos)
    sequences = [reader.read().sequence for _ in range(3)]
    assert sequences == list(range(sequences[0], sequences[0] + 3))
    scheduler.shutdown()
    scheduler.shutdown()
    again = build(kairos=kairos)  # the endpoint is free again
    assert again._kairos_reporter is not None


def test_port_in_use_is_one_clear_line(build: Any, endpoint: str) -> None:
    build(kairos={"state_endpoint": endpoint})
    with pytest.raises(ConfigError, match="state_endpoint: cannot bind"):
        build(kairos={"state_endpoint": endpoint})


def test_a_repeated_message_carries_no_samples(endpoint: str, reader: Reader, reported: tuple[Any, Recorder, Clock]) -> None:
    scheduler, recorder, _ = reported
    scheduler.add_request(make_request("A", 8, max_tokens=1))
    step(scheduler)
    message = recorder.sent[-1]
    assert message.step_samples
    publisher = StatePublisher(endpoint, key=KEY, period_s=0.02)
    publisher.publish(replace(message, step_samples=[]))
    reader.read()  # the reader is connected from here on
    publisher.publish(message)
    received = [reader.read() for _ in range(8)]
    publisher.close()
    assert [one.step_samples for one in received if one.step_samples] == [message.step_samples]


def test_a_repeated_message_says_how_old_its_state_is(
    endpoint: str, reader: Reader, reported: tuple[Any, Recorder, Clock]
) -> None:
    """A long step or an idle engine repeats a state that shows nothing of what arrived meanwhile."""
    _, recorder, _ = reported
    publisher = StatePublisher(endpoint, key=KEY, period_s=0.02)
    publisher.publish(recorder.sent[-1])
    ages_s = [reader.read().state_age_s for _ in range(4)]
    publisher.close()
    assert ages_s == sorted(ages_s)
    assert ages_s[-1] - ages_s[0] >= 0.06 * 0.5


def test_fields(reported: tuple[Any, Recorder, Clock]) -> None:
    scheduler, recorder, clock = reported
    warm_decodes(scheduler, "A", "B", prompt=20)
    scheduler.add_request(make_request("P", 200, transfer=schedule_params(32)))
    scheduler.add_request(make_request("Q", 70))
    scheduler.add_request(make_request("R", 40, transfer=remote_params(40)))
    clock.now_s += 1
    step(scheduler)
    state = recorder.sent[-1]
    assert (state.node_id, state.role, state.dp_rank) == ("d0", "decode", 0)
    assert (state.running_decodes, state.running_prefill_tokens) == (2, 170)
    assert state.kv_tokens == sum(r.num_computed_tokens for r in scheduler.running if not r.is_prefill_chunk)
    assert (state.queued_prompt_tokens, state.queued_prefill_tokens) == ([70], 70)
    assert (state.remote_kv_requests, state.remote_kv_tokens) == (1, 40)
    assert state.deflected_tokens_left == [170]
    assert (state.token_budget_tokens, state.block_size_tokens, state.total_kv_blocks) == (256, 16, 99)
    assert 0 < state.free_kv_blocks < 99
    assert (state.skipped_transfers, state.skipped_transfer_bytes) == (1, 200 * state.kv_bytes_per_token)
    assert state.engine_id == "engine-under-test"


def test_reports_when_due_and_not_in_between(reported: tuple[Any, Recorder, Clock]) -> None:
    scheduler, recorder, clock = reported
    warm_decodes(scheduler, "A")
    clock.now_s += 1
    step(scheduler)
    count = len(recorder.sent)
    for _ in range(5):
        clock.now_s += 0.01
        step(scheduler)
    assert len(recorder.sent) == count
    clock.now_s += 0.06
    step(scheduler)
    assert len(recorder.sent) == count + 1


def test_reports_at_once_when_a_deflected_prefill_ends(reported: tuple[Any, Recorder, Clock]) -> None:
    scheduler, recorder, clock = reported
    warm_decodes(scheduler, "A")
    scheduler.add_request(make_request("P", 40, transfer=schedule_params(32)))
    clock.now_s += 1
    step(scheduler)
    count = len(recorder.sent)
    step(scheduler)
    assert len(recorder.sent) == count + 1
    assert recorder.sent[-1].deflected_tokens_left == []


def test_polling_for_pulls_is_no_news(reported: tuple[Any, Recorder, Clock], monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM steps on and on while blocks wait to be pulled: told are the last step with work, and the last pull."""
    scheduler, recorder, _ = reported
    unfinished, waiting = [True], [True]
    monkeypatch.setattr(scheduler, "has_unfinished_requests", lambda: unfinished[0])
    monkeypatch.setattr(scheduler, "has_requests", lambda: waiting[0])
    step(scheduler)
    told = []
    for state in ([True, True], [False, True], [False, True], [False, True], [False, False], [False, False]):
        unfinished[0], waiting[0] = state
        before = len(recorder.sent)
        step(scheduler)
        told.append(len(recorder.sent) - before)
    assert told == [0, 1, 0, 0, 1, 0]


def test_reports_at_once_when_the_engine_falls_idle(reported: tuple[Any, Recorder, Clock]) -> None:
    from vllm.v1.request import RequestStatus

    scheduler, recorder, _ = reported
    warm_decodes(scheduler, "A")
    scheduler.finish_requests("A", RequestStatus.FINISHED_ABORTED)
    assert recorder.sent[-1].running_decodes == 0


def test_step_samples_are_measured_from_schedule_to_update(reported: tuple[Any, Recorder, Clock]) -> None:
    scheduler, recorder, clock = reported
    warm_decodes(scheduler, "A", "B", prompt=20)
    scheduler.add_request(make_request("P", 100, transfer=schedule_params(32)))
    kv_tokens = sum(request.num_computed_tokens for request in scheduler.running)
    clock.now_s += 1
    output = scheduler.schedule()
    clock.now_s += 0.25
    scheduler.update_from_output(output, run_model(scheduler, output))
    sample = recorder.sent[-1].step_samples[-1]
    assert (sample.running_decodes, sample.prefill_tokens, sample.done_tokens) == (2, 30, 0)
    assert sample.kv_tokens == kv_tokens
    assert sample.step_s == pytest.approx(0.25)


def test_overlapping_steps_are_timed_one_after_the_other(build: Any) -> None:
    scheduler, recorder, clock = reporting(build, async_scheduling=True)
    warm_decodes(scheduler, "A")
    clock.now_s += 1
    first = scheduler.schedule()
    clock.now_s += 0.1
    second = scheduler.schedule()
    answers = [run_model(scheduler, output) for output in (first, second)]
    clock.now_s += 0.1
    scheduler.update_from_output(first, answers[0])
    clock.now_s += 0.2
    scheduler.update_from_output(second, answers[1])
    assert [sample.step_s for sample in recorder.sent[-1].step_samples[-1:]] == [pytest.approx(0.2)]


def test_transfer_samples(reported: tuple[Any, Recorder, Clock]) -> None:
    scheduler, recorder, clock = reported
    scheduler.add_request(make_request("R", 40, transfer=remote_params(40)))
    step(scheduler)
    clock.now_s += 1
    step(scheduler, finished_recving={"R"})
    samples = [sample for message in recorder.sent for sample in message.transfer_samples]
    assert [(sample.peer, sample.transferred_bytes) for sample in samples] == [("prefill-engine", 40 * 8)]
