"""A mix of requests on the real scheduler with two steps in flight, as vLLM's engine core has them with async scheduling."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.engine.builder import run_model
from tests.engine.simulated import Arrival, Node, Steps, arriving_request, govern_anew

_LONGEST_S = 3000
_IN_FLIGHT = 2
_QUIET = 3  # outputs in a row without any news after which nothing will happen before time passes


class _InFlight(NamedTuple):
    output: Any
    answer: Any
    end_s: int
    news: bool


class AsyncCore:
    """The loop of EngineCore.step_with_batch_queue; a step with tokens takes a second, one without none.

    Ends of transfers are looked for as a step is handed over, as by vLLM's workers.
    """

    def __init__(self, scheduler: Any, mix: Sequence[Arrival], node: Node) -> None:
        self._scheduler, self._mix = scheduler, mix
        self._to_come = deque(sorted(range(len(mix)), key=lambda number: mix[number].at_step))
        self._queue: deque[_InFlight] = deque()
        self._pulls: dict[str, int] = {}  # asked for, by when they end
        self._sends: dict[str, int] = {}
        self._asked: set[str] = set()
        self._now_s = self._device_free_s = self._quiet = 0
        self._steps: Steps = {}
        govern_anew(scheduler, node, lambda: float(self._now_s))

    def play(self) -> Steps:
        """Run until the last request is gone."""
        while self._to_come or self._queue or self._scheduler.requests:
            assert self._now_s < _LONGEST_S, f"still unfinished: {list(self._scheduler.requests)}"
            self._arrive()
            if self._scheduler.has_requests():
                self._hand_over()
                if len(self._queue) < _IN_FLIGHT:
                    continue
            elif not self._queue:
                self._now_s, self._quiet = self._now_s + 1, 0
                continue
            self._take_in(self._queue.popleft())
        return self._steps

    def _arrive(self) -> None:
        while self._to_come and self._mix[self._to_come[0]].at_step <= self._now_s and not self._looking:
            number = self._to_come.popleft()
            self._scheduler.add_request(arriving_request(f"R{number}", self._mix[number], self._now_s))

    @property
    def _looking(self) -> bool:
        """Whether time has just passed without a step: what ended then is found before anything else arrives."""
        return self._quiet < 0

    def _hand_over(self) -> None:
        output = self._scheduler.schedule()
        received, sent = self._due(self._pulls), self._due(self._sends)
        self._note_pulls()
        if output.total_num_scheduled_tokens:
            start_s = max(self._now_s, self._device_free_s)
            self._device_free_s = start_s + 1
            self._steps[start_s] = dict(output.num_scheduled_tokens)
        answer = run_model(self._scheduler, output, finished_recving=received, finished_sending=sent)
        end_s = self._device_free_s if output.total_num_scheduled_tokens else 0
        self._queue.append(_InFlight(output, answer, end_s, bool(received or sent or output.total_num_scheduled_tokens)))

    def _take_in(self, step: _InFlight) -> None:
        self._now_s = max(self._now_s, step.end_s)
        self._scheduler.update_from_output(step.output, step.answer)
        for name in step.output.num_scheduled_tokens:
            held_steps = self._mix[int(name[1:])].held_steps
            request = self._scheduler.requests.get(name)
            if held_steps is not None and request is not None and request.is_finished():
                self._sends[name] = self._now_s + held_steps
        self._quiet = 0 if step.news and not self._looking else self._quiet + 1
        if self._quiet == _QUIET:
            self._now_s, self._quiet = self._now_s + 1, -_IN_FLIGHT

    def _note_pulls(self) -> None:
        for name, request in self._scheduler.requests.items():
            if request.status.name == "WAITING_FOR_REMOTE_KVS" and name not in self._asked:
                self._asked.add(name)
                self._pulls[name] = self._now_s + (self._mix[int(name[1:])].pull_steps or 1)

    def _due(self, ends_s: dict[str, int]) -> set[str]:
        due = {name for name, end_s in ends_s.items() if end_s <= self._now_s}
        for name in due:
            del ends_s[name]
        return due
