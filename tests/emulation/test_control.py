"""The control routes pass faults on, and never wait for an engine that they ended."""

import asyncio
import json
from typing import Any

import pytest

from vllm_kairos.emulation import control

pytest.importorskip("starlette")


class Engine:
    """An engine client that records what it is asked."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._answer = answer

    async def collective_rpc(self, method: str, args: Any = ()) -> Any:
        self.asked.append((method, args))
        if isinstance(self._answer, Exception):
            raise self._answer
        if self._answer is None:
            await asyncio.sleep(3600)
        return [self._answer]


async def _control(answer: Any) -> tuple[control.EmulationControl, Engine]:
    engine, routes = Engine(answer), control.EmulationControl()
    await routes.init_state(engine, None, None)
    return routes, engine


async def test_the_engine_says_how_it_is() -> None:
    routes, _ = await _control({"steps": 7})
    assert await routes.status() == {"steps": 7}


@pytest.mark.parametrize("answer", [{}, None, RuntimeError("dead")])
async def test_a_fault_is_accepted_whatever_becomes_of_the_engine(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(control, "ANSWER_WAIT_S", 0.01)
    routes, engine = await _control(answer)
    assert await routes.fault({"kind": "crash"}) == {"accepted": True}
    assert engine.asked == [("emulation_fault", ({"kind": "crash"},))]


async def test_a_malformed_fault_is_a_bad_request() -> None:
    routes, engine = await _control({})
    answer = await routes.fault({"kind": "explode"})
    assert answer.status_code == 400
    assert "kind" in json.loads(answer.body)["error"]
    assert not engine.asked


async def test_an_engine_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "STATUS_WAIT_S", 0.01)
    routes, _ = await _control(None)
    answer = await asyncio.wait_for(routes.status(), 10)
    assert answer.status_code == 503
    assert "0.01 s" in json.loads(answer.body)["error"]
