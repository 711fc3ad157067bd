"""KairosScheduler: vLLM's scheduler, told before each step how much its prefills may take."""

from collections.abc import Sequence
from typing import Any

from vllm_kairos.core.lease import LeaseGone
from vllm_kairos.engine import compat, compat_refusal
from vllm_kairos.engine.deflection import is_deflected
from vllm_kairos.engine.governor import StepGovernor
from vllm_kairos.engine.lease_keeper import LeaseKeeper
from vllm_kairos.engine.planner import StepPlanner
from vllm_kairos.engine.reporter import StateReporter
from vllm_kairos.engine.settings import check_profile, foreign_profiles, parse_settings
from vllm_kairos.engine.step_recorder import StepRecorder

logger = compat.init_logger("vllm.kairos")

_CACHED_TOKENS = ("num_new_local_computed_tokens", "num_external_computed_tokens")


class KairosScheduler(compat.SchedulerBase):
    """Runs deflected prefills by their chunk schedules beside the decodes; otherwise exactly vLLM's scheduler.

    `--scheduler-cls vllm_kairos.KairosScheduler`. Every override narrows what vLLM sees for one step
    and delegates; what a new vLLM adds to a signature is passed on.
    """

    _kairos_reporter: StateReporter | None = None
    _kairos_recorder: StepRecorder | None = None
    _kairos_governor: StepGovernor | None = None
    _kairos_leases: LeaseKeeper | None = None
    _kairos_refused: Sequence[tuple[Any, str]] = ()  # ended, and owed their output

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = parse_settings(self.vllm_config.additional_config)
        model = self.vllm_config.model_config
        check_profile(settings, model.model, model.served_model_name)
        kv_bytes = compat.kv_bytes_per_token(self)
        for setting, profile, of in foreign_profiles(settings, model.model, model.served_model_name, kv_bytes):
            logger.warning("%s %r is of model %r: steps of %r may take other times", setting, profile, of, model.model)
        self._kairos_active = settings.enabled
        self._kairos_governor = StepGovernor.create(self, settings)
        self._kairos_planner = StepPlanner(self, settings, self._kairos_governor)
        self._kairos_reporter = StateReporter.create(self, settings)
        self._kairos_leases = None if self._kairos_reporter is None else self._kairos_reporter.leases
        self._kairos_recorder = StepRecorder.create(self, settings)

    def _too_long_for_one_step(self, request: Any) -> bool:
        return compat.must_run_whole(request) and request.num_tokens > compat.token_budget(self, 1)

    @property
    def malformed_schedules(self) -> int:
        """Requests whose kairos parameters were malformed and ignored, since boot."""
        return self._kairos_planner.malformed_schedules

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._kairos_planner.adopt(request)
        gone = None if request.request_id in self.requests else self._lease_gone(request)
        if self._kairos_governor is not None:
            self._kairos_governor.adopt(request)
        result = super().add_request(request, *args, **kwargs)
        if gone is not None:
            self._kairos_refused = (*self._kairos_refused, (request, gone))
            compat_refusal.end_unserved(self, request)
            return result
        limited = self._kairos_active or compat.state_of(request) is not None
        if limited and (compat.can_never_fit(self, request) or self._too_long_for_one_step(request)):
            compat.fail_request(self, request)
        return result

    def _lease_gone(self, request: Any) -> LeaseGone | None:
        """Why a request is not admitted under the lease that it claims."""
        if self._kairos_leases is not None:
            return self._kairos_leases.admit(request)
        claimed = is_deflected(request) and compat_refusal.claim_of(request.kv_transfer_params) is not None
        return LeaseGone.UNKNOWN if claimed else None

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        planner = self._kairos_planner
        held = planner.begin()
        step = planner.step
        if step is None:
            output = super().schedule(*args, **kwargs)
        else:
            free_width = 0 if step.skipped else planner.free_width
            with compat.held_out(self, held), compat.limited_requests(self, planner.limit, free_width):
                output = super().schedule(*args, **kwargs)
        deflection_ended = planner.end()
        if self._kairos_governor is not None:
            self._kairos_governor.step_scheduled(output)
        if self._kairos_leases is not None:
            self._kairos_leases.step_scheduled(output)
        if self._kairos_recorder is not None:
            self._kairos_recorder.step_scheduled(output)
        if self._kairos_reporter is not None:
            self._kairos_reporter.step_scheduled(output, deflection_ended)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().update_from_output(scheduler_output, model_runner_output, *args, **kwargs)
        if self._kairos_governor is not None:
            self._kairos_governor.step_finished(scheduler_output)
        if self._kairos_recorder is not None:
            self._kairos_recorder.step_finished(scheduler_output, result)
        if self._kairos_leases is not None:
            self._kairos_leases.step_finished(scheduler_output)
        if self._kairos_refused:
            compat_refusal.add_refusals(result, self._kairos_refused)
            self._kairos_refused = ()
        if compat.has_failed_blocks(model_runner_output):
            self._kairos_planner.note_failed_blocks()
        if self._kairos_reporter is not None:
            self._kairos_reporter.step_finished(scheduler_output, model_runner_output)
        return result

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        result = super().finish_requests(*args, **kwargs)
        if self._kairos_recorder is not None:
            self._kairos_recorder.requests_finished()
        if self._kairos_reporter is not None:
            self._kairos_reporter.requests_finished()
        return result

    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        if self._kairos_governor is not None:
            self._kairos_governor.close()
        if self._kairos_recorder is not None:
            self._kairos_recorder.close()
        if self._kairos_reporter is not None:
            self._kairos_reporter.close()
        return super().shutdown(*args, **kwargs)

    def limit_new_tokens(self, request: Any, num_computed_tokens: int, num_new_tokens: int, **_: Any) -> int:
        """The hook of patches/0001; vLLM without that patch never calls it."""
        return self._kairos_planner.limit(request, num_computed_tokens, num_new_tokens)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._kairos_planner.forget_grant(request)
        if self._kairos_governor is not None:
            self._kairos_governor.preempted(request.request_id)
        if self._kairos_recorder is not None:
            self._kairos_recorder.preempted(request.request_id)
        return super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._kairos_leases is not None:
            self._kairos_leases.ended(request)
        return super()._free_request(request, *args, **kwargs)

    def _mamba_block_aligned_split(self, request: Any, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """Cap before the split, so that vLLM aligns the chunk we allow."""
        cached = args[:2] + tuple(kwargs[name] for name in _CACHED_TOKENS if name in kwargs)
        computed = request.num_computed_tokens + sum(cached)
        return super()._mamba_block_aligned_split(request, self._cap(request, computed, num_new_tokens), *args, **kwargs)

    def _try_schedule_encoder_inputs(
        self, request: Any, num_computed_tokens: int, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Cap before media items are picked, so that vLLM picks those of the chunk we allow."""
        capped = self._cap(request, num_computed_tokens, num_new_tokens)
        return super()._try_schedule_encoder_inputs(request, num_computed_tokens, capped, *args, **kwargs)

    def _cap(self, request: Any, computed_tokens: int, new_tokens: int) -> int:
        if compat.HAS_LIMIT_HOOK:
            return new_tokens
        return self._kairos_planner.limit(request, computed_tokens, new_tokens)
