"""Decides when the node state leaves the engine core, and measures steps on the way."""

import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from vllm_kairos.engine import compat
from vllm_kairos.engine.lease_counts import counts_path
from vllm_kairos.engine.lease_keeper import LeaseKeeper
from vllm_kairos.engine.node_state import constant_fields, read_state
from vllm_kairos.engine.publisher import StatePublisher, nothing_granted
from vllm_kairos.engine.settings import EngineSettings, rank_endpoint
from vllm_kairos.engine.steps_in_flight import StepsInFlight
from vllm_kairos.wire.messages import StepSample, TransferSample

_SAMPLES_PER_PERIOD = 4
_KEPT_SAMPLES = 64


class StateReporter:
    """Called at the ends of schedule() and update_from_output(), in the scheduler's thread.

    A snapshot is taken when a heartbeat is due, at once when a deflected prefill ends, and when the
    engine falls idle: when no request is left to run, and when none is left to be pulled from either.
    In between vLLM polls for the end of pulls, up to a thousand times a second, which is no news.
    While the engine stays idle the publisher repeats the last one.
    """

    def __init__(
        self,
        scheduler: Any,
        settings: EngineSettings,
        publisher: StatePublisher,
        clock: Callable[[], float] = time.perf_counter,
        *,
        boot_id: str | None = None,
        leases: LeaseKeeper | None = None,
    ) -> None:
        self._scheduler, self._publisher, self._clock, self._leases = scheduler, publisher, clock, leases
        self._period_s = settings.heartbeat_period_s
        self._constants = constant_fields(scheduler, settings, boot_id or uuid.uuid4().hex)
        self._step_samples: deque[StepSample] = deque(maxlen=_KEPT_SAMPLES)
        self._in_flight: StepsInFlight[tuple[tuple[int, int, int, int], float]] = StepsInFlight()
        self._next_sample_s = self._next_beat_s = self._last_finish_s = 0.0
        self._report_now = False
        self._left = (False, False)
        self._report()

    @classmethod
    def create(cls, scheduler: Any, settings: EngineSettings) -> "StateReporter | None":
        """A reporter as the settings ask, and the keeper of leases that goes with it; None without a state endpoint."""
        if settings.state_endpoint is None:
            return None
        endpoint = rank_endpoint(settings.state_endpoint, compat.dp_rank(scheduler))
        boot_id = uuid.uuid4().hex
        leases = LeaseKeeper.create(scheduler, settings, boot_id)
        publisher = StatePublisher(
            endpoint,
            key=settings.state_key,
            period_s=settings.heartbeat_period_s,
            lease=nothing_granted if leases is None else leases.current,
        )
        if leases is not None and settings.leases is not None:
            path = counts_path(scheduler.vllm_config, settings.leases, compat.dp_rank(scheduler))
            leases.start(publisher.repeat, path)
        return cls(scheduler, settings, publisher, boot_id=boot_id, leases=leases)

    @property
    def leases(self) -> LeaseKeeper | None:
        """What grants leases with each report, None where they are off."""
        return self._leases

    def step_scheduled(self, output: Any, deflection_ended: bool) -> None:
        """A step leaves for the workers."""
        self._report_now = self._report_now or deflection_ended
        now_s = self._clock()
        if output.total_num_scheduled_tokens and now_s >= self._next_sample_s:
            self._next_sample_s = now_s + self._period_s / _SAMPLES_PER_PERIOD
            self._in_flight.add(output, (compat.batch_shape(self._scheduler, output), now_s))

    def step_finished(self, output: Any, model_runner_output: Any) -> None:
        """A step's output was taken in: measure it, and report when that is due."""
        now_s = self._clock()
        self._measure(output, now_s)
        self._last_finish_s = now_s
        if self._fell_idle() or self._report_now or now_s >= self._next_beat_s:
            self._report()

    def requests_finished(self) -> None:
        """Requests were ended from outside: the next report says so without waiting for a heartbeat."""
        if not self._scheduler.has_unfinished_requests():
            self._report()

    def close(self) -> None:
        """Stop publishing."""
        self._publisher.close()
        if self._leases is not None:
            self._leases.close()

    def _fell_idle(self) -> bool:
        """Whether nothing is left to run, or to be pulled, where something was at the last call."""
        before, self._left = self._left, (self._scheduler.has_unfinished_requests(), self._scheduler.has_requests())
        return self._left != before and not self._left[0]

    def _measure(self, output: Any, now_s: float) -> None:
        """Take the sample of `output`; steps in flight with it are timed from the end of the one before."""
        taken = self._in_flight.take(output)
        if taken is not None:
            shape, scheduled_s = taken
            self._step_samples.append(StepSample(*shape, now_s - max(scheduled_s, self._last_finish_s)))

    def _report(self) -> None:
        self._report_now = False
        self._next_beat_s = self._clock() + self._period_s
        samples = list(self._step_samples)
        self._step_samples.clear()
        transfers, skipped, skipped_bytes = self._transfers()
        if self._leases is not None:
            self._leases.grant(samples)
        message = read_state(
            self._scheduler,
            self._constants,
            step_samples=samples,
            transfer_samples=transfers,
            skipped_transfers=skipped,
            skipped_transfer_bytes=skipped_bytes,
            malformed_schedules=self._scheduler.malformed_schedules,
            speaks_leases=self._leases is not None,
        )
        self._publisher.publish(message)

    def _transfers(self) -> tuple[list[TransferSample], int, int]:
        ledger = getattr(self._scheduler.connector, "kairos_ledger", None)
        if ledger is None:
            return [], 0, 0
        bytes_per_token = self._constants["kv_bytes_per_token"]
        samples = [
            TransferSample(peer, moved if moved is not None else tokens * bytes_per_token, seconds)
            for peer, tokens, moved, seconds in ledger.take_finished()
        ]
        return samples, ledger.skipped_transfers, ledger.skipped_tokens * bytes_per_token
