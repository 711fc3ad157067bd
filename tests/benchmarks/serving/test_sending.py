"""Where the requests of a load go."""

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serving.sending import InTurn


class _Noting:
    def __init__(self) -> None:
        self.got: list[int] = []

    async def send(self, exchange, clock) -> None:
        self.got.append(exchange.at)
        clock()


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(0, 20))
async def test_requests_go_to_the_senders_in_turn(count, requests):
    senders = [_Noting() for _ in range(count)]
    in_turn = InTurn(senders)
    for at in range(requests):
        await in_turn.send(SimpleNamespace(at=at), lambda: 0.0)
    assert [sender.got for sender in senders] == [list(range(first, requests, count)) for first in range(count)]
