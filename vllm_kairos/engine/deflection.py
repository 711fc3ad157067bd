"""Which requests are deflected: those that carry a valid chunk schedule."""

from typing import Any

from vllm_kairos.core.schedule_state import ScheduleState
from vllm_kairos.engine import compat
from vllm_kairos.wire import params


def adopt_schedule(request: Any) -> ScheduleState | None:
    """Read the chunk schedule that `request` carries, if any, and hang its state on the request.

    WireError when there is one that is malformed; the request then is a normal one.
    """
    transfer_params = request.kv_transfer_params
    raw = transfer_params.get(params.PARAMS_KEY) if isinstance(transfer_params, dict) else None
    if raw is None:
        return None
    state = ScheduleState(params.parse(raw).chunk_schedule, planned=True)
    compat.attach_state(request, state)
    return state


def is_deflected(request: Any) -> bool:
    """Whether this engine computes the prompt itself, by order of the router."""
    state = compat.state_of(request)
    return state is not None and state.planned
