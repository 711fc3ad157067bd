"""Records each engine step against its prediction, and what every running request's token gap is put down to."""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import msgspec

from vllm_kairos.engine import compat, compat_steps
from vllm_kairos.engine.settings import EngineSettings
from vllm_kairos.engine.step_settings import StepRecordSettings
from vllm_kairos.engine.step_totals_file import totals_path
from vllm_kairos.engine.step_writer import StepWriter
from vllm_kairos.engine.steps_in_flight import StepsInFlight
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.profiles import resolve_profile
from vllm_kairos.steps.analyst import StepAnalyst
from vllm_kairos.steps.gap_tracker import GapTracker, Mark, Wait
from vllm_kairos.steps.recorded import RecordedStep, StepLoad
from vllm_kairos.steps.step_file import FILE_SCHEMA, FileHeader
from vllm_kairos.steps.totals import StepTotals


class StepSink(Protocol):
    """Where steps go to be worked out; must not block."""

    def put(self, step: RecordedStep) -> None:
        """Take one step."""

    def close(self) -> None:
        """No step will come any more."""


class _Scheduled(msgspec.Struct, frozen=True):
    output: Any
    number: int
    load: StepLoad
    handed_over_s: float
    follows: bool
    entered: AbstractSet[str]
    none_returned: bool  # all others in it were in the step before


class StepRecorder:
    """Called at the ends of schedule() and update_from_output(), in the scheduler's thread.

    It notes what only this thread can see, at a cost that goes with who joins and leaves, not with who runs;
    the sink works it out. A step ends when its output has been taken in.
    """

    def __init__(self, scheduler: Any, sink: StepSink, clock: Callable[[], float] = time.perf_counter) -> None:
        self._scheduler, self._sink, self._clock = scheduler, sink, clock
        self._in_flight: StepsInFlight[_Scheduled] = StepsInFlight()
        self._number = 0  # of the last step scheduled
        self._last_ids: Mapping[str, int] = {}
        self._ids_before_last: Mapping[str, int] = {}
        self._passed_over = 0  # running requests that were not in the last step
        self._last_preempting = 0  # number of a step
        self._last_recorded = 0
        self._last_as_expected = True
        self._unfinished: AbstractSet[str] = frozenset()
        self._ended: dict[str, int] = {}  # ended request -> last step that may hold it
        self.gaps = GapTracker(self._left_by_client)

    @classmethod
    def create(cls, scheduler: Any, settings: EngineSettings) -> "StepRecorder | None":
        """A recorder as the settings ask, or None; ConfigError or ProfileError when it cannot do what they say."""
        record = settings.step_record
        if record is None:
            return None
        model = load_profile(resolve_profile(record.profile)).step_model if record.profile else None
        if model is None:
            compat.init_logger("vllm.kairos.steps").warning("step_record has no profile: steps are recorded unpredicted.")
        header, started_s = _header(scheduler, settings, record), time.perf_counter()
        analyst = StepAnalyst(
            model, StepTotals(), tbt_slo_s=record.tbt_slo_s, stall_factor=record.stall_factor, started_s=started_s
        )
        path = totals_path(scheduler.vllm_config, record, header.dp_rank)
        return cls(scheduler, StepWriter(header, analyst, path, record.file, record.max_file_bytes))

    def step_scheduled(self, output: Any) -> None:
        """A step leaves for the workers."""
        if not output.total_num_scheduled_tokens:
            return
        self._number += 1
        scheduler, last_ids, ids = self._scheduler, self._last_ids, output.num_scheduled_tokens
        entered = compat_steps.entered(output, self._unfinished)
        load = compat_steps.read_load(scheduler, output, entered)
        none_returned = self._passed_over == 0 or self._passed_over_ended(output.finished_req_ids)
        follows = not ids.keys().isdisjoint(last_ids)
        self._passed_over = compat_steps.passed_over(scheduler, output)
        self._unfinished = compat_steps.still_unfinished(scheduler, output, self._unfinished, load)
        self._ids_before_last, self._last_ids = last_ids, ids
        self._in_flight.add(output, _Scheduled(output, self._number, load, self._clock(), follows, entered, none_returned))

    def step_finished(self, output: Any, results: Any) -> None:
        """A step's output was taken in, and `results` leave for the clients."""
        now = Mark(self._clock())
        step = self._in_flight.take(output)
        if step is None:
            self._note_ended(0)
            return
        number, waits = step.number, self._waits(step, results, now)
        self._sink.put(RecordedStep(number, step.load, step.handed_over_s, step.follows, now, waits))
        self._note_ended(number)

    def preempted(self, request_id: str) -> None:
        """`request_id` lost its place, most often while the next step is being scheduled."""
        self._last_preempting = self._number + 1
        self.gaps.preempt(request_id, self._last_preempting)

    def requests_finished(self) -> None:
        """Requests were ended from outside."""
        self._note_ended(0)

    def close(self) -> None:
        """Write what is left."""
        self._sink.close()

    def _passed_over_ended(self, ended: Iterable[str]) -> bool:
        """Whether all whom the last step passed over have ended, as they do where their last token was under way."""
        if self._last_preempting >= self._number - 1:
            return False  # one who is not in the last step may have been preempted instead
        before, last = self._ids_before_last, self._last_ids
        gone = [request_id for request_id in ended if request_id in before and request_id not in last]
        return len(gone) == self._passed_over

    def _waits(self, step: _Scheduled, results: Any, now: Mark) -> list[Wait]:
        """The waits that a step ends; as a rule it has served who the step before did, but for a few."""
        outputs = compat_steps.output_count(results)
        known = step.none_returned and self._last_as_expected and self._last_recorded == step.number - 1
        self._last_recorded = step.number
        if known and self._expected_count(step) == outputs:
            entered = self._entered(step) if step.entered else ()
            waits = self.gaps.went_on(entered, outputs, step.number, now)
            if waits is not None:
                return waits
        served = self._expected(step)
        self._last_as_expected = len(served) == outputs
        if not self._last_as_expected:
            served = compat_steps.requests_with_tokens(results)
        return self.gaps.served(served, step.number, now)

    def _expected(self, step: _Scheduled) -> set[str]:
        """Who should get a token: all in the step but unfinished prompts and those that have ended since."""
        expected = set(step.output.num_scheduled_tokens)
        expected -= step.load.unfinished
        expected.difference_update(self._ended)
        return expected

    def _expected_count(self, step: _Scheduled) -> int:
        """How many `_expected` has."""
        scheduled, unfinished = step.output.num_scheduled_tokens, step.load.unfinished
        count = len(scheduled) - len(unfinished)
        for request_id in self._ended:
            if request_id in scheduled and request_id not in unfinished:
                count -= 1
        return count

    def _entered(self, step: _Scheduled) -> Sequence[str]:
        """Those of `_expected` that entered with the step."""
        unfinished, ended = step.load.unfinished, self._ended
        return [request_id for request_id in step.entered if request_id not in unfinished and request_id not in ended]

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
        hardware=compat.device_name(),
        vllm_version=compat.VLLM_VERSION,
        block_size_tokens=scheduler.block_size,
        token_budget_tokens=scheduler.max_num_scheduled_tokens,
        kv_bytes_per_token=compat.kv_bytes_per_token(scheduler),
    )
