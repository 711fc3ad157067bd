"""Sizes the prefill of each engine step by the deadlines of the requests that decode (SLOWeave)."""

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from vllm_kairos.core.governor.bound import StepBound
from vllm_kairos.core.governor.chunk import NO_CHUNKS, Prompt, largest_chunk, with_chunk
from vllm_kairos.core.governor.correction import Correction, MeasuredMargin
from vllm_kairos.core.governor.counts import GovernorCounts
from vllm_kairos.core.governor.deadlines import Deadlines, Moment
from vllm_kairos.core.governor.price import StepPrice
from vllm_kairos.core.governor.settings import GovernorSettings
from vllm_kairos.core.latency import PrefillTotals, StepLatencyModel
from vllm_kairos.core.regime import Regime

_MOST_IN_FLIGHT = 64
_ROUNDING_S = 1e-6  # ends and deadlines are sums
_WORTH_DECODES = 3.0  # times the prefill per second: what makes up for decodes that lose their objective by it
_PREFILL, _DECODE, _MIXED = Regime.PREFILL, Regime.DECODE, Regime.MIXED


class Queue(NamedTuple):
    """What waits for prefill: how many prompts, and of the first one its chunk, if whole, and since when it waits.

    `most_tokens` of it fit in one step.
    """

    prompts: int
    first: PrefillTotals
    since_s: float
    most_tokens: int


@dataclass(slots=True, eq=False)
class Flight(Moment):
    """A step between its scheduling and its output; as a moment, its end."""

    begin_s: float
    regime: Regime
    model_s: float  # by the model as it is
    predicted_s: float  # corrected
    due_s: float = inf  # the earliest deadline as predicted, where prefill was bounded by it
    left_s: float = inf  # the time to it from when the step was to begin


class Governor:
    """Bounds each step, and learns from how long steps take. Reads no clock: times are arguments, on one clock.

    A step is predicted to begin when those in flight have ended, one after the other. Its price is that of
    `packed_step_s`: the chunks of all its prompts count by what their features add up to. Corrected, a step with
    prefill is never priced below its decodes alone, so prices rise with the prefill.
    """

    def __init__(self, model: StepLatencyModel, settings: GovernorSettings) -> None:
        self._model, self._settings = model, settings
        self.deadlines = Deadlines()
        self._correction = Correction()
        self._applied = self._correction if settings.correct else Correction()
        self._margin = MeasuredMargin() if isinstance(settings.beta, str) else None
        self.share = float(settings.beta) if self._margin is None else self._margin.share
        """What share of the time to a deadline a step with prefill may take."""
        self.serves_ttft = settings.ttft_slo_s is not None
        """Whether a `queue` makes a difference."""
        self._flights: deque[Flight] = deque()
        self._head: str | None = None
        self._head_served = False  # in the step scheduled last
        self._dry_since_s: float | None = None  # None: no prompt waited then
        self._reported_drift = 1.0
        self.counts = GovernorCounts(share=self.share, correction=self._correction.factors)
        self._asked: tuple[float, bool, bool] | None = None  # deadline, lost, starving: of the step being scheduled

    def bound(
        self, now_s: float, running_decodes: int, kv_tokens: int, head: str, queue: Queue | None = None
    ) -> StepBound | None:
        """Bound the step about to be scheduled, for which prefill waits; None when no deadline does.

        It serves `running_decodes` with `kv_tokens` of KV, those of prompts not included. `head` is the first prompt
        in the queue that deadlines bound; `head_served` is to be told when it gets tokens. Where decodes alone would
        miss the earliest deadline, it gets the floor: waiting cannot save it. `queue` serves a TTFT objective; None:
        the head has had its first token. A head that took the place of one that got nothing has waited as long.
        """
        if self._dry_since_s is None or (self._head_served and head != self._head):
            self._dry_since_s = now_s
        self._head, self._head_served, self._asked = head, False, None
        begin_s = self._next_begin_s(now_s)
        due_s, tpot_s = self.deadlines.earliest(begin_s)
        left_s = due_s - begin_s
        if left_s == inf:
            return None
        factors, model, settings = self._applied.factors, self._model, self._settings
        decodes_s = factors[_DECODE] * model.packed_step_s(running_decodes, kv_tokens, NO_CHUNKS)
        factor = factors[_MIXED if running_decodes else _PREFILL]
        price = StepPrice(model, running_decodes, kv_tokens, factor, decodes_s)
        limit_s = left_s * self.share
        if queue is not None and self._is_due(begin_s, limit_s, price, running_decodes, queue):
            return None
        dry_s = now_s - self._dry_since_s
        starving = dry_s >= settings.starvation_s
        patient = dry_s < settings.patience_tokens * tpot_s
        lost = decodes_s > left_s
        self._asked = (due_s, lost, starving)
        floor_tokens = settings.floor_tokens if starving or lost else 0
        return StepBound(price, limit_s, floor_tokens, starving, patient)

    def _is_due(self, begin_s: float, limit_s: float, price: StepPrice, running_decodes: int, queue: Queue) -> bool:
        """Whether the first prompt must run now to meet its TTFT objective, or is late, and no more decodes pay for it.

        A chunk that large may cost every decode its objective. That is worth it where prompts are then served far sooner:
        where steps have fixed costs that leave a chunk in time little room. Else prompts gain next to nothing.
        """
        ttft_slo_s, first = self._settings.ttft_slo_s, queue.first
        if ttft_slo_s is None or queue.prompts < running_decodes:
            return False
        whole_s = price.step_s(first)
        if begin_s + whole_s - queue.since_s < self.share * ttft_slo_s:
            return False
        most, done = min(first.tokens, queue.most_tokens), first.done_tokens
        tokens = largest_chunk(price, limit_s, NO_CHUNKS, Prompt(done, most), most)
        if not tokens:
            return True
        in_time_s, most_s = price.step_s(with_chunk(NO_CHUNKS, done, tokens)), price.step_s(with_chunk(NO_CHUNKS, done, most))
        return most * in_time_s >= _WORTH_DECODES * tokens * most_s

    def head_served(self, now_s: float) -> None:
        """The first prompt in the queue gets tokens in the step that is being scheduled."""
        self._dry_since_s, self._head_served = now_s, True

    def nobody_waits(self) -> None:
        """No prompt waited for prefill when the last step was scheduled."""
        self._dry_since_s = None

    def scheduled(self, now_s: float, running_decodes: int, kv_tokens: int, chunks: PrefillTotals) -> Flight:
        """A step leaves for the device. `kv_tokens` counts what all its sequences hold before it.

        Whoever gets a token of it is to be told to `deadlines`, with the flight as the moment.
        """
        begin_s = self._next_begin_s(now_s)
        regime = (_MIXED if running_decodes else _PREFILL) if chunks.tokens else _DECODE
        model_s = self._model.packed_step_s(running_decodes, kv_tokens, chunks)
        predicted_s = self._applied.factors[regime] * model_s
        flight = Flight(begin_s + predicted_s, begin_s, regime, model_s, predicted_s)
        asked, self._asked = self._asked, None
        if asked is not None and chunks.tokens:
            flight.due_s, lost, starving = asked
            flight.left_s = flight.due_s - begin_s
            self.counts.bounded_steps += 1
            self.counts.starved_steps += starving
            self.counts.lost_steps += lost and not starving
        if len(self._flights) == _MOST_IN_FLIGHT:
            self._flights.popleft()  # its output never came
        self._flights.append(flight)
        return flight

    def finished(self, flight: Flight, now_s: float, took_s: float) -> None:
        """The output of `flight` was taken in; it took `took_s`, the host's work included."""
        flights = self._flights
        while flights and flights.popleft() is not flight:
            pass  # its output never came
        if flights:
            flights[0].begin_s = now_s
        self.deadlines.settle(flight, now_s)
        if flight.due_s < inf:
            # One that only began late is not late: where the step before it took longer, TBT deadlines moved with its tokens.
            self.counts.late_steps += min(now_s - flight.due_s, now_s - flight.begin_s - flight.left_s) > _ROUNDING_S
        if flight.model_s <= 0 or took_s <= 0:
            return
        self._correction.observe(flight.regime, took_s / flight.model_s)
        if self._margin is not None and flight.regime is _MIXED:
            self._margin.observe(took_s / flight.predicted_s)
            self.share = self.counts.share = self._margin.share

    def ran(self, running_decodes: int, kv_tokens: int, took_s: float) -> None:
        """A step of decodes alone, of which nothing was told when it was scheduled, has taken `took_s`."""
        model_s = self._model.packed_step_s(running_decodes, kv_tokens, NO_CHUNKS)
        if model_s > 0 and took_s > 0:
            self._correction.observe(_DECODE, took_s / model_s)

    def new_drift(self) -> float | None:
        """By how much steps take longer than the model says, where that has changed by a quarter since it was told last."""
        factor = self._correction.factors[_DECODE]
        if 0.8 <= factor / self._reported_drift <= 1.25:
            return None
        self._reported_drift = factor
        return factor

    def _next_begin_s(self, now_s: float) -> float:
        """When a step scheduled now begins: after those in flight, whose ends move when they begin late or take too long."""
        begin_s, follows = now_s, False
        for flight in self._flights:
            if follows:
                flight.begin_s = begin_s
            begin_s, follows = flight.begin_s + flight.predicted_s, True
            if begin_s < now_s:
                begin_s = now_s
            if begin_s != flight.at_s:
                self.deadlines.settle(flight, begin_s)
        return begin_s
