"""How a request ends before any work so that its router can tell why: vLLM's own errors all read alike.

Read against vLLM 0.30.0, 0.31.0 and 0.32.0. The scheduler ends the request and says why in the `stop_reason` of its
only output, which reaches the API server; there it becomes an error of its own status and text, where vLLM would
answer with a 500, "Internal server error". The error is raised before the first output is passed on, so it is the
first thing that a stream says.
"""

from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from vllm.exceptions import GenerationError
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from vllm_kairos.wire.params import PARAMS_KEY
from vllm_kairos.wire.refusal import LEASE_GONE_STATUS, refusal_message, refusal_reason

_WRAPPED = "kairos_tells_refusals"
_LEASE_KEY = "lease"


class LeaseGoneError(GenerationError):
    """What a server answers to a request whose lease is gone.

    Seam: vLLM's servers answer a GenerationError with its `status_code` and text, or, once the head of a stream
    has gone out, with an event that has both (0.30-0.32).
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.status_code = HTTPStatus(LEASE_GONE_STATUS)


def claim_of(transfer_params: Any) -> Any:
    """The lease that a request's `kv_transfer_params` claim, as it was sent; None without one."""
    ours = transfer_params.get(PARAMS_KEY) if isinstance(transfer_params, dict) else None
    return ours.get(_LEASE_KEY) if isinstance(ours, dict) else None


def end_unserved(scheduler: Any, request: Any) -> None:
    """End a request that was just added. It is owed an output: `add_refusals`.

    Seam: finish_requests() takes it out of the waiting queues; there is a next step for as long as
    `finished_req_ids` holds somebody (0.30-0.32).
    """
    scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ERROR)


def add_refusals(results: MutableMapping[int, Any], refused: Sequence[tuple[Any, str]]) -> None:
    """Add to what update_from_output() returned the outputs of requests that were not served, each with its reason."""
    for request, reason in refused:
        output = EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=request.get_finished_reason(),
            stop_reason=refusal_message(reason),
            events=request.take_events(),
            trace_headers=request.trace_headers,
        )
        results.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(output)


def tell_refusals(engine_client: Any) -> None:
    """Have an API server's engine client raise LeaseGoneError for refused requests; safe to call twice.

    Seam: servers call `generate(prompt, sampling_params, ...)` of the client that plugins are given, and a request's
    `kv_transfer_params` are in the sampling parameters' `extra_args` (0.30-0.32). Only requests that claim a lease
    pay for it.
    """
    if getattr(engine_client, _WRAPPED, False):
        return
    generate = engine_client.generate

    def telling(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = generate(prompt, sampling_params, *args, **kwargs)
        extra = getattr(sampling_params, "extra_args", None) or {}
        return outputs if claim_of(extra.get("kv_transfer_params")) is None else _told(outputs)

    engine_client.generate = telling
    setattr(engine_client, _WRAPPED, True)


async def _told(outputs: Any) -> AsyncIterator[Any]:
    """The outputs of one request, unless it was refused."""
    gone: str | None = None
    async with aclosing(outputs):
        async for output in outputs:
            gone = gone or _refusal_in(output)
            if gone is None:
                yield output
            elif not output.finished:
                break  # of a request's several sequences, some were refused: the others are aborted
    if gone is not None:
        raise LeaseGoneError(gone)


def _refusal_in(output: Any) -> str | None:
    reasons = (each.stop_reason for each in output.outputs if each.finish_reason == "error")
    return next((text for text in reasons if isinstance(text, str) and refusal_reason(text)), None)
