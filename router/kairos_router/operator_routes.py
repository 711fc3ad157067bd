"""What operators and their tools ask: health, loads, metrics, and the servers to add or remove."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from aiohttp import web

from kairos_router import flag_values
from kairos_router.drain import Drain
from kairos_router.key_check import KeyCheck, bearer_key
from kairos_router.metrics import CONTENT_TYPE, RouterMetrics
from kairos_router.payload import parse_object
from kairos_router.refusal import Refusal
from kairos_router.registry import Worker, WorkerRegistry
from kairos_router.router import View
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.errors import RequestError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WorkerAdmin(Protocol):
    """Adds and removes servers at run time."""

    async def add(self, raw_url: str, role: Role, bootstrap_port: int | None = None) -> Worker:
        """Add a server once it is healthy and fits; raises RequestError."""

    async def remove(self, name: str) -> Worker:
        """Forget a server; raises RequestError for an unknown name."""


class OperatorRoutes:
    """`needs_prefill`: without a prefill server nothing is served (--prefill-unavailable fail)."""

    def __init__(
        self,
        *,
        admin: WorkerAdmin,
        workers: WorkerRegistry,
        view: View,
        metrics: RouterMetrics,
        drain: Drain,
        clock: Callable[[], float],
        needs_prefill: bool,
        api_key: str | None,
        keys: KeyCheck | None,
    ) -> None:
        self._admin = admin
        self._workers = workers
        self._view = view
        self._metrics = metrics
        self._drain = drain
        self._clock = clock
        self._needs_prefill = needs_prefill
        self._api_key = api_key
        self._keys = keys

    def add_to(self, app: web.Application) -> None:
        """Register every route."""
        for path in ("/health", "/healthcheck", "/health_generate", "/readiness"):
            app.router.add_get(path, self.health)
        app.router.add_get("/liveness", self.liveness)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/get_loads", self._guarded(self.loads))
        app.router.add_get("/workers", self._guarded(self.list_workers))
        app.router.add_get("/list_workers", self._guarded(self.list_workers))
        for path in ("/workers", "/add_worker"):
            app.router.add_post(path, self._guarded(self.add_worker))
        app.router.add_post("/remove_worker", self._guarded(self.remove_worker))
        app.router.add_delete("/workers", self._guarded(self.remove_worker))
        app.router.add_delete("/workers/{worker:.+}", self._guarded(self.remove_worker))

    async def health(self, _request: web.Request) -> web.Response:
        """200 while requests are served, else 503 with the reason."""
        nodes = [node for node in self._view.nodes(self._clock()) if node.accepting]
        prefill, decode = sum(node.role.prefills for node in nodes), sum(node.role.decodes for node in nodes)
        reason = self._not_ready(prefill, decode)
        said = {"status": reason or "ok", "prefill_instances": prefill, "decode_instances": decode}
        return _json(said, status=503 if reason else 200)

    async def liveness(self, _request: web.Request) -> web.Response:
        """200 while the process runs."""
        return _json({"status": "ok"})

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(body=self._metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def loads(self, _request: web.Request) -> web.Response:
        """What each node carries."""
        return _json({"loads": [_load(node) for node in self._view.nodes(self._clock())]})

    async def list_workers(self, _request: web.Request) -> web.Response:
        """Every registered server."""
        workers = self._workers.all()
        return _json({"workers": [self._shown(worker) for worker in workers], "urls": [worker.url for worker in workers]})

    async def add_worker(self, request: web.Request) -> web.Response:
        """Register a server: `url` and `role`, in the query or a JSON body."""
        asked = await _asked(request)
        worker = await self._admin.add(_text(asked, "url"), _role(asked), _port(asked))
        return _json(self._shown(worker), status=201)

    async def remove_worker(self, request: web.Request) -> web.Response:
        """Forget a server, by name or URL: in the path, the query or a JSON body; what runs there goes on."""
        given = request.match_info.get("worker")
        if given is None:
            asked = await _asked(request)
            given = _text(asked, "url" if "url" in asked else "name")
        known = self._workers.find(given) or self._workers.by_url(given)
        if known is None:
            raise Refusal(404, "unknown-worker", f"worker must be registered, got {given!r}")
        return _json(self._shown_removed(await self._admin.remove(known.name)))

    def _not_ready(self, prefill: int, decode: int) -> str:
        if self._drain.draining:
            return "draining"
        if not decode:
            return "no-decode-node"
        return "no-prefill-node" if self._needs_prefill and not prefill else ""

    def _guarded(self, handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            try:
                await self._check_key(request)
                return await handler(request)
            except Refusal as refused:
                return _answer_of(refused)
            except RequestError as error:
                return _answer_of(Refusal(400, "invalid-request", str(error)))

        return checked

    async def _check_key(self, request: web.Request) -> None:
        """The router's own key where it has one: a client's key then opens nothing here."""
        authorization = request.headers.get("authorization", "")
        if not self._api_key:
            if self._keys is not None:
                await self._keys.check(authorization)
            return
        given = bearer_key(authorization)
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), self._api_key.encode()):
            raise Refusal(401, "unauthorized", "this route needs the router's API key as a bearer token")

    def _shown(self, worker: Worker) -> dict[str, Any]:
        causes = sorted(self._workers.causes(worker.name))
        return {**self._shown_removed(worker), "accepting": not causes, "causes": causes}

    def _shown_removed(self, worker: Worker) -> dict[str, Any]:
        return {"name": worker.name, "url": worker.url, "role": str(worker.role), "dp_size": worker.dp_size}


def _load(node: NodeState) -> dict[str, Any]:
    return {
        "node": node.node_id,
        "role": str(node.role),
        "running_decodes": node.running_decodes,
        "queued_prefill_tokens": node.queued_prefill_tokens,
        "free_kv_blocks": node.free_kv_blocks,
        "total_kv_blocks": node.total_kv_blocks,
        "accepting": node.accepting,
        "stale": node.stale,
    }


async def _asked(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    return {**request.query, **(parse_object(raw) if raw else {})}


def _text(asked: dict[str, Any], key: str) -> str:
    value = asked.get(key)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{key} must be a non-empty string, got {value!r}")
    return value


def _role(asked: dict[str, Any]) -> Role:
    value = asked.get("role", asked.get("worker_type"))
    try:
        return Role(str(value))
    except ValueError:
        raise RequestError(f"role must be one of prefill, decode, both, got {value!r}") from None


def _port(asked: dict[str, Any]) -> int | None:
    value = asked.get("bootstrap_port")
    if value is None:
        return None
    try:
        port: int = flag_values.integer(1, 65535)(str(value))
    except ValueError as error:
        raise RequestError(f"bootstrap_port {error}, got {value!r}") from None
    return port


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def _answer_of(refused: Refusal) -> web.Response:
    return web.Response(status=refused.status, headers=refused.headers, body=refused.body)
