"""The `vllm.endpoint_plugins` entry point.

GET /kairos/node, GET /kairos/metrics, what is counted of steps, the governor and leases on /metrics, a 400 for malformed kairos
parameters, and an answer of its own for requests whose lease is gone.
"""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import msgspec

from vllm_kairos import __version__
from vllm_kairos.engine.settings import EngineSettings, parse_settings, rank_endpoint
from vllm_kairos.errors import WireError
from vllm_kairos.wire import objectives, params
from vllm_kairos.wire.body import read_as_servers_do

NODE_PATH = "/kairos/node"
METRICS_PATH = "/kairos/metrics"
_STATE_ATTRIBUTE = "kairos_node"
_METRICS_ATTRIBUTE = "kairos_metrics"
_TRANSFER_KEY = "kv_transfer_params"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class KairosEndpoint:
    """Tells a router what this server is; loaded by vLLM's API server."""

    name = "kairos"
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Add the route and the check of request bodies to vLLM's application."""
        app.add_middleware(RequestCheck)

        async def node() -> Any:
            return getattr(app.state, _STATE_ATTRIBUTE)

        async def metrics() -> Any:
            return _metrics_answer(getattr(app.state, _METRICS_ATTRIBUTE, ()))

        app.add_api_route(NODE_PATH, node, methods=["GET"], include_in_schema=False)
        app.add_api_route(METRICS_PATH, metrics, methods=["GET"], include_in_schema=False)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Describe the node, once, from the engine's configuration."""
        if engine_client is None:
            setattr(state, _STATE_ATTRIBUTE, {"schema": 1})
            return
        from vllm_kairos.engine.compat_refusal import tell_refusals

        tell_refusals(engine_client)
        setattr(state, _STATE_ATTRIBUTE, describe_node(engine_client.vllm_config, args))
        setattr(state, _METRICS_ATTRIBUTE, _register_metrics(engine_client.vllm_config))


def _register_metrics(vllm_config: Any) -> list[Any]:
    """Have the server's own /metrics show what is counted of steps, the governor and leases; returns who counts.

    With several API-server processes vLLM shows only what these themselves count, and the route
    /kairos/metrics alone has them.
    """
    settings, collectors = parse_settings(vllm_config.additional_config), list[Any]()
    if settings.step_record is not None:
        from vllm_kairos.engine.step_metrics import collector_for

        collectors.append(collector_for(vllm_config, settings.step_record))
    if settings.governor is not None:
        from vllm_kairos.engine.governor_metrics import governor_collector_for

        collectors.append(governor_collector_for(vllm_config, settings.governor))
    if settings.leases is not None:
        from vllm_kairos.engine.lease_metrics import lease_collector_for

        collectors.append(lease_collector_for(vllm_config, settings.leases))
    if collectors:
        from prometheus_client import REGISTRY

        for collector in collectors:
            REGISTRY.register(collector)
    return collectors


def _metrics_answer(collectors: Sequence[Any]) -> Any:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from starlette.responses import PlainTextResponse

    if not collectors:
        return PlainTextResponse("additional_config.kairos: step_record, governor and leases are off\n", status_code=404)
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return PlainTextResponse(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def describe_node(vllm_config: Any, args: Any) -> dict[str, Any]:
    """The answer of GET /kairos/node; `node_id` is null on a server without kairos settings."""
    from vllm_kairos.engine.compat import VLLM_VERSION

    settings = parse_settings(vllm_config.additional_config)
    model = vllm_config.model_config
    served = getattr(args, "served_model_name", None)
    ranks = vllm_config.parallel_config.data_parallel_size
    return {
        "schema": 1,
        "node_id": settings.node_id if settings.enabled else None,
        "role": str(settings.role),
        "model": served[0] if served else model.model,
        "state_endpoints": _state_endpoints(settings, ranks),
        "vllm_version": VLLM_VERSION,
        "kairos_version": __version__,
        "block_size_tokens": vllm_config.cache_config.block_size,
        "max_model_len_tokens": model.max_model_len,
        "dp_size": ranks,
    }


def _state_endpoints(settings: EngineSettings, ranks: int) -> list[str]:
    endpoint = settings.state_endpoint
    return [] if endpoint is None else [rank_endpoint(endpoint, rank) for rank in range(ranks)]


class Problem(NamedTuple):
    """What is wrong with a request, and in which of its parameters."""

    message: str
    param: str


class RequestCheck:
    """ASGI middleware: refuses a body whose kairos parameters are malformed, naming the field.

    These are `kv_transfer_params.kairos` and the keys of `vllm_xargs` that begin with `kairos_`.

    Only bodies that hold the word are parsed; every other request passes byte for byte.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, messages = await _read(receive)
        problem = request_problem(body)
        if problem is None:
            await self._app(scope, _replay(messages, receive), send)
        else:
            await _refuse(send, problem)


async def _read(receive: Receive) -> tuple[bytes, list[Message]]:
    messages: list[Message] = []
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request" or not message.get("more_body", False):
            return b"".join(m.get("body", b"") for m in messages), messages


def _replay(messages: list[Message], receive: Receive) -> Receive:
    pending = iter(messages)

    async def replayed() -> Message:
        for message in pending:
            return message
        return await receive()

    return replayed


def request_problem(body: bytes) -> Problem | None:
    """What is wrong with the kairos parameters in a request body, or None; other faults are vLLM's to report."""
    if b"kairos" not in body:
        return None
    try:
        parsed = read_as_servers_do(body)
    except RecursionError:
        return None
    if not isinstance(parsed, dict):
        return None
    return _schedule_problem(parsed.get(_TRANSFER_KEY)) or _objectives_problem(parsed.get(objectives.XARGS_KEY))


def _schedule_problem(transfer: Any) -> Problem | None:
    if not isinstance(transfer, dict) or transfer.get(params.PARAMS_KEY) is None:
        return None
    try:
        params.parse(transfer[params.PARAMS_KEY])
    except WireError as error:
        return Problem(str(error), f"{_TRANSFER_KEY}.{params.PARAMS_KEY}")
    return None


def _objectives_problem(extra_args: Any) -> Problem | None:
    try:
        objectives.check_objectives(extra_args)
    except WireError as error:
        return Problem(str(error), objectives.XARGS_KEY)
    return None


async def _refuse(send: Send, problem: Problem) -> None:
    error = {"message": problem.message, "type": "BadRequestError", "param": problem.param, "code": 400}
    body = msgspec.json.encode({"error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
