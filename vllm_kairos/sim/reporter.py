"""An engine's node-state publisher in simulated time: reads the state as steps end, repeats it while none does."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm_kairos.core.events import TransferObserved
from vllm_kairos.core.node import NodeState
from vllm_kairos.sim.kernel import REPORT, Kernel

if TYPE_CHECKING:
    from vllm_kairos.sim.engine import Engine

Heard = Callable[[NodeState, float, list[TransferObserved]], None]
"""Told a state, how old it was when it was sent, and the transfers measured since the report before."""


class Reporter:
    """Reads its engine when a step ends after the period is over, ended a deflected prefill, or was the last for now.

    An engine looks at what arrived when a step begins, so what a report shows of its queue is as old as that. With
    async scheduling it also shows the step that begins then, which was composed as the one that ended began.
    In between the last report is sent again, with its age, so that a long step does not look like a lost node.
    """

    def __init__(self, engine: "Engine", kernel: Kernel, period_s: float, send: Heard) -> None:
        self.transfers: list[TransferObserved] = []
        self._engine, self._kernel, self._period_s, self._send = engine, kernel, period_s, send
        self._next_s = 0.0
        self._read_s = 0.0
        self._state = engine.state()

    def begin(self, offset_s: float) -> None:
        """Send from `offset_s` on, every period."""
        self._kernel.at(offset_s, self._beat, REPORT)

    def step_ended(self, *, urgent: bool) -> None:
        """Report if that is due; `urgent`: whatever the time."""
        if urgent or self._kernel.now_s >= self._next_s or not self._engine.seen_work:
            self._report(self._kernel.now_s)

    def stop(self) -> None:
        """Send nothing more."""
        self._period_s = 0.0

    def _beat(self) -> None:
        if not self._period_s:
            return
        read_s = self._engine.last_step_end_s
        if read_s > self._read_s:
            self._report(read_s)
        else:
            self._repeat()
        self._kernel.after(self._kernel.until_next_report_s(self._period_s), self._beat, REPORT)

    def _report(self, read_s: float) -> None:
        self._state, self._read_s = self._engine.shown_state(), read_s
        self._next_s = self._kernel.now_s + self._period_s
        self._repeat()

    def _repeat(self) -> None:
        transfers, self.transfers = self.transfers, []
        self._send(self._state, self._kernel.now_s - self._read_s, transfers)
