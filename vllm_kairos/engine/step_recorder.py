"""Records each engine step against its prediction, and what every running request's token gap is put down to."""

import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.engine import compat, compat_steps
from vllm_kairos.engine.compat_steps import StepLoad
from vllm_kairos.engine.settings import EngineSettings
from vllm_kairos.engine.step_settings import StepRecordSettings
from vllm_kairos.engine.step_totals_file import totals_path
from vllm_kairos.engine.step_writer import StepWriter
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.profiles import resolve_profile
from vllm_kairos.steps.attribution import CauseClock, StepSpan, carried, step_cause
from vllm_kairos.steps.gap_tracker import Gap, GapTracker, Mark
from vllm_kairos.steps.step_file import FILE_SCHEMA, FileHeader, StepLine
from vllm_kairos.steps.totals import StepTotals, regime_of

_MOST_IN_FLIGHT = 64


class StepSink(Protocol):
    """Where lines go; must not block."""

    def put(self, line: StepLine) -> None:
        """Take one line."""

    def close(self) -> None:
        """No line will come any more."""


class _Scheduled(NamedTuple):
    output: Any
    number: int
    load: StepLoad
    handed_over_s: float
    follows: bool
    same: bool  # requests and unfinished prompts as in the step before


class StepRecorder:
    """Called at the ends of schedule() and update_from_output(), in the scheduler's thread.

    A step ends when its output has been taken in. With several steps in flight each runs from the end
    of the one before it.
    """

    def __init__(
        self,
        scheduler: Any,
        settings: StepRecordSettings,
        model: StepLatencyModel | None,
        sink: StepSink,
        totals: StepTotals,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler, self._model, self._sink, self._clock = scheduler, model, sink, clock
        self._tbt_slo_s, self._stall_factor = settings.tbt_slo_s, settings.stall_factor
        self._in_flight: deque[_Scheduled] = deque()
        self._number = 0  # of the last step scheduled
        self._last_ids: Any = frozenset()
        self._last_ran_all = False
        self._last_recorded = 0
        self._unfinished: frozenset[str] = frozenset()
        self._ended: dict[str, int] = {}  # ended request -> last step that may hold it
        self._started_s = self._last_end_s = clock()
        self._by_cause = CauseClock()
        self.gaps = GapTracker(self._left_by_client)
        self.totals = totals

    @classmethod
    def create(cls, scheduler: Any, settings: EngineSettings) -> "StepRecorder | None":
        """A recorder as the settings ask, or None; ConfigError or ProfileError when it cannot do what they say."""
        record = settings.step_record
        if record is None:
            return None
        model = load_profile(resolve_profile(record.profile)).step_model if record.profile else None
        if model is None:
            compat.init_logger("vllm.kairos.steps").warning("step_record has no profile: steps are recorded unpredicted.")
        totals, header = StepTotals(), _header(scheduler, settings, record)
        path = totals_path(scheduler.vllm_config, record, header.dp_rank)
        sink = StepWriter(header, totals, path, record.file, record.max_file_bytes)
        return cls(scheduler, record, model, sink, totals)

    def step_scheduled(self, output: Any) -> None:
        """A step leaves for the workers."""
        if not output.total_num_scheduled_tokens:
            return
        self._number += 1
        load = compat_steps.read_load(self._scheduler, output, self._unfinished)
        ids = output.num_scheduled_tokens.keys()
        follows = not ids.isdisjoint(self._last_ids)
        same = self._last_ran_all and len(ids) == len(self._last_ids) and load.unfinished == self._unfinished
        same = same and compat_steps.goes_on(self._scheduler, output)
        self._last_ran_all = compat_steps.runs_all(self._scheduler, output)
        self._unfinished, self._last_ids = load.unfinished, ids
        if len(self._in_flight) == _MOST_IN_FLIGHT:
            self._in_flight.popleft()  # its output never came
        self._in_flight.append(_Scheduled(output, self._number, load, self._clock(), follows, same))

    def step_finished(self, output: Any, results: Any) -> None:
        """A step's output was taken in, and `results` leave for the clients."""
        now_s = self._clock()
        step = self._take(output)
        if step is not None:
            self._record(step, results, now_s)
        self._note_ended(0 if step is None else step.number)

    def preempted(self, request_id: str) -> None:
        """`request_id` lost its place, most often while the next step is being scheduled."""
        self.gaps.preempt(request_id, self._number + 1)

    def requests_finished(self) -> None:
        """Requests were ended from outside."""
        self._note_ended(0)

    def close(self) -> None:
        """Write what is left."""
        self._sink.close()

    def _take(self, output: Any) -> _Scheduled | None:
        """The step of `output`, with those before it, whose outputs never came; None for a step without tokens."""
        if not any(step.output is output for step in self._in_flight):
            return None
        while (step := self._in_flight.popleft()).output is not output:
            pass
        return step

    def _record(self, step: _Scheduled, results: Any, now_s: float) -> None:
        begun_s = max(step.handed_over_s, self._last_end_s)
        span = StepSpan(begun_s - self._last_end_s, now_s - begun_s, step.follows)
        self._last_end_s = now_s
        load, predicted_s = step.load, self._predicted_s(step.load)
        took_s, prefill_tokens = span.actual_s, step.load.chunks.tokens
        content = carried(load.deflected_tokens, prefill_tokens - load.deflected_tokens)
        cause = step_cause(content, took_s, predicted_s, self._stall_factor)
        now = Mark(now_s, self._by_cause.advance(span, cause))
        gaps = self._gaps(step, results, now)
        self.totals.add_step(regime_of(load.running_decodes, prefill_tokens), took_s, predicted_s)
        self.totals.add_gaps(gaps, self._tbt_slo_s)
        self._sink.put(_line(step, span, predicted_s, cause.label, gaps, now_s - self._started_s))

    def _predicted_s(self, load: StepLoad) -> float | None:
        if self._model is None:
            return None
        return self._model.packed_step_s(load.running_decodes, load.kv_tokens, load.chunks)

    def _gaps(self, step: _Scheduled, results: Any, now: Mark) -> list[Gap]:
        """The gaps that a step ends; most often it has served the same requests as the one before."""
        served = len(step.output.num_scheduled_tokens) - len(step.load.unfinished)
        same = step.same and not self._ended and self._last_recorded == step.number - 1
        self._last_recorded = step.number
        if same and self.gaps.members == served == compat_steps.output_count(results):
            return self.gaps.all_served(step.number, now)
        return self.gaps.served(self._with_tokens(step, results), step.number, now)

    def _with_tokens(self, step: _Scheduled, results: Any) -> set[str]:
        """Who got a token: as a rule all in the step but unfinished prompts and those that have ended since."""
        expected = set(step.output.num_scheduled_tokens)
        expected -= step.load.unfinished
        expected.difference_update(self._ended)
        if len(expected) == compat_steps.output_count(results):
            return expected
        return compat_steps.requests_with_tokens(results)

    def _note_ended(self, step: int) -> None:
        """Forget the requests that ended; steps in flight may still hold them, up to the last one scheduled."""
        if self._ended:
            self._ended = {request_id: last for request_id, last in self._ended.items() if last > step}
        ended = compat_steps.ended_requests(self._scheduler)
        if not ended:
            return
        self.gaps.forget(ended)
        if self._in_flight:
            self._ended |= dict.fromkeys(ended, self._number)
        else:
            self._ended = {}

    def _left_by_client(self, request_id: str) -> bool:
        """Whether a request without a token waits for its client: a streaming-input session between two inputs."""
        request = self._scheduler.requests.get(request_id)
        return request is None or compat.is_between_inputs(request)


def _line(step: _Scheduled, span: StepSpan, predicted_s: float | None, cause: str, gaps: list[Gap], at_s: float) -> StepLine:
    load = step.load
    return StepLine(
        step=step.number,
        at=at_s,
        B=load.running_decodes,
        K=load.kv_tokens,
        n=load.chunks.tokens,
        p=load.chunks.done_tokens,
        deflected=load.deflected_tokens,
        predicted=predicted_s,
        took=span.actual_s,
        idle=span.idle_s,
        run=span.run_s,
        cause=cause,
        gaps=[(gap.cause.label, gap.requests, gap.gap_s) for gap in gaps],
    )


def _header(scheduler: Any, settings: EngineSettings, record: StepRecordSettings) -> FileHeader:
    model = scheduler.vllm_config.model_config
    return FileHeader(
        kairos_steps=FILE_SCHEMA,
        node_id=settings.node_id,
        dp_rank=compat.dp_rank(scheduler),
        role=str(settings.role),
        model=str(model.served_model_name or model.model),
        profile=record.profile or "",
        tbt_slo_s=record.tbt_slo_s,
        stall_factor=record.stall_factor,
        boot_id=uuid.uuid4().hex,
        started_at_s=time.time(),
    )
