"""Requests are sent when they are due, whatever has become of the others."""

import asyncio
from itertools import pairwise

import pytest

from tests.replay.virtual_time import Notes, replay_virtually, request
from vllm_kairos.replay.exchange import Clock, Exchange, SendError

TOKEN = b'data: {"choices": [{"text": "x"}], "usage": {"completion_tokens": 1, "prompt_tokens": 8}}\n\n'
DONE = b"data: [DONE]\n\n"


async def _at_once(exchange: Exchange, clock: Clock) -> None:
    exchange.stream.feed(TOKEN + DONE, clock())


async def _never(exchange: Exchange, clock: Clock) -> None:
    await asyncio.sleep(1_000)
    raise SendError("timeout", "no answer")


def test_97_sending_does_not_wait_for_answers():
    for play, count in ((_at_once, 5_000), (_never, 1_000)):
        requests = [request(index, index / 500) for index in range(count)]
        replayed = replay_virtually(requests, play)
        assert [sample.sent_s for sample in replayed.samples] == pytest.approx([one.arrival_s for one in requests], abs=1e-6)
        assert replayed.not_sent == 0


def test_97_a_busy_client_shows_as_send_lag():
    async def slow_to_send(exchange: Exchange, clock: Clock) -> None:
        # The loop of a busy client, in virtual time: its clock moves on while nothing else runs.
        asyncio.get_running_loop()._jumping.now_s += 0.05  # type: ignore[attr-defined]
        await _at_once(exchange, clock)

    samples = replay_virtually([request(index, index * 0.001) for index in range(10)], slow_to_send).samples
    assert samples[0].send_lag_s == pytest.approx(0, abs=1e-6)
    assert samples[9].send_lag_s > 0.4
    assert samples[9].ttft_s == pytest.approx(samples[9].send_lag_s + samples[9].ttft_from_sent_s)


def test_91_every_row_is_sent_in_order_and_on_schedule():
    requests = [request(index, index * 1.5) for index in range(25)]
    replayed = replay_virtually(requests, _at_once)
    assert [sample.request for sample in replayed.samples] == requests
    assert [sample.sent_s for sample in replayed.samples] == pytest.approx([index * 1.5 for index in range(25)])


def test_x2_a_gap_of_days_is_waited_for_and_told():
    notes = Notes()
    replayed = replay_virtually([request(0), request(1, 259_200.0)], _at_once, notes=notes)
    assert replayed.samples[1].sent_s == pytest.approx(259_200)
    assert (0.0, 259_200.0) in [(round(now_s, 6), due_s) for now_s, due_s in notes.waits]


def test_a_session_waits_for_its_answers_and_thinks():
    async def two_seconds(exchange: Exchange, clock: Clock) -> None:
        await asyncio.sleep(2)
        await _at_once(exchange, clock)

    turns = [request(0), request(1, 1.0, after="r0", think_s=5.0), request(2, 30.0, after="r1", think_s=1.0), request(3, 3.0)]
    turns.sort(key=lambda one: one.arrival_s)
    sent_s = {one.request.request_id: one.sent_s for one in replay_virtually(turns, two_seconds).samples}
    assert sent_s == pytest.approx({"r0": 0.0, "r1": 7.0, "r2": 30.0, "r3": 3.0})


def test_a_session_goes_on_after_a_failure():
    async def fail(exchange: Exchange, clock: Clock) -> None:
        raise SendError("http_500", "no")

    replayed = replay_virtually([request(0), request(1, 0.0, after="r0", think_s=4.0)], fail)
    assert [(one.error, round(one.sent_s, 6)) for one in replayed.samples] == [("http_500", 0.0), ("http_500", 4.0)]


def test_a_stop_keeps_what_there_is():
    async def slow(exchange: Exchange, clock: Clock) -> None:
        exchange.stream.feed(TOKEN, clock())
        await asyncio.sleep(100)

    replayed = replay_virtually([request(index, float(index)) for index in range(10)], slow, stop_at_s=3.5)
    assert [sample.error for sample in replayed.samples] == ["interrupted"] * 4
    assert all(sample.ttft_s is not None for sample in replayed.samples)
    assert replayed.not_sent == 6


def test_a_mistake_of_ours_is_not_taken_for_a_failed_request():
    async def broken(exchange: Exchange, clock: Clock) -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        replay_virtually([request(0), request(1, 50.0)], broken)


def test_a_ramp_raises_the_rate_from_nothing():
    replayed = replay_virtually([request(index, float(index)) for index in range(40)], _at_once, ramp_s=10.0)
    sent_s = [sample.sent_s for sample in replayed.samples]
    gaps_s = [later - earlier for earlier, later in pairwise(sent_s)]
    assert gaps_s[:5] == sorted(gaps_s[:5], reverse=True)
    assert gaps_s[6:] == pytest.approx([1.0] * len(gaps_s[6:]))
