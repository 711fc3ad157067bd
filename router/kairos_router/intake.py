"""Turns a client's bytes and headers into a Job: parsed, counted, with its objectives and its constraints."""

from collections.abc import Callable

import msgspec

from kairos_router import affinity, headers, payload
from kairos_router.config import DeflectSettings
from kairos_router.job import Incoming, Job, Story
from kairos_router.payload import Endpoint, ParsedRequest
from kairos_router.registry import WorkerRegistry
from kairos_router.selection import BY_SESSION
from kairos_router.slo import Objectives, objectives
from kairos_router.tokens import TokenCount, TokenCounter
from vllm_kairos.core.shapes import RequestShape, Route
from vllm_kairos.errors import RequestError
from vllm_kairos.wire.objectives import XARGS_KEY

UNSUPPORTED = "unsupported-by-two-leg"
CLIENT_ASKED = "client-asked"
OVER_MODEL_LENGTH = "over-model-length"
_LOGGED_MODEL_CHARS = 256


class _Force(msgspec.Struct, frozen=True):
    route: Route | None = None
    reason: str = ""


class Intake:
    """`new_unique` returns an id that no other request has, in this process or any other."""

    def __init__(
        self,
        *,
        tokens: TokenCounter,
        workers: WorkerRegistry,
        deflect: DeflectSettings,
        new_unique: Callable[[], str] = headers.new_unique,
    ) -> None:
        self._tokens = tokens
        self._workers = workers
        self._deflect = deflect
        self._objectives = Objectives(ttft_s=deflect.ttft_slo_s, tbt_s=deflect.tbt_slo_s)
        self._by_session = BY_SESSION in (deflect.prefill_policy, deflect.decode_policy)
        self._new_unique = new_unique
        self.model_length_tokens: Callable[[], int | None] = lambda: None  # of the decode servers, None: not known

    async def admit(self, incoming: Incoming, story: Story) -> Job:
        """Build the job; raises RequestError for a body or a header that is not valid."""
        request = payload.parse(Endpoint(incoming.path), incoming.body)
        wanted = objectives(incoming.headers, self._objectives, request.body.get(XARGS_KEY))
        if wanted.for_engine:
            request = payload.with_xargs(request, wanted.for_engine)
        pinned = self._pinned(incoming)
        count = await self._tokens.count(request.endpoint, request.body)
        force = self._force(request, incoming, count)
        story.model = request.model[:_LOGGED_MODEL_CHARS]
        story.prompt_tokens, story.prompt_tokens_exact = count.prompt_tokens, count.exact
        unique = self._new_unique()
        shape = RequestShape(
            request_id=unique,
            prompt_tokens=max(1, count.prompt_tokens),
            max_output_tokens=request.max_output_tokens,
            ttft_slo_s=wanted.ttft_s,
            tbt_slo_s=wanted.tbt_s,
            forced_route=force.route,
            forced_reason=force.reason,
            pinned_prefill_node=pinned,
            affinity_key=affinity.affinity_key(incoming.headers, request.body) if self._by_session else "",
        )
        return Job(incoming=incoming, request=request, shape=shape, story=story, unique=unique, count=count)

    def learn(self, job: Job) -> None:
        """Correct the estimate by what the server counted; its cached_tokens are never learned from.

        On the two-leg path a decode server reports the KV it pulled as prefix-cache hits.
        """
        usage = job.story.usage
        if usage is not None and usage.prompt_tokens > 0 and not job.request.two_leg_obstacle:
            self._tokens.learn(job.count, usage.prompt_tokens)

    def _force(self, request: ParsedRequest, incoming: Incoming, count: TokenCount) -> _Force:
        if request.two_leg_obstacle:
            return _Force(Route.LOCAL, UNSUPPORTED)
        if self._deflect.force_local and (request.wants_local or headers.asks_local(incoming.headers)):
            return _Force(Route.LOCAL, CLIENT_ASKED)
        if count.exact and self._over_length(count.prompt_tokens + request.max_output_tokens):
            return _Force(Route.LOCAL, OVER_MODEL_LENGTH)
        return _Force()

    def _over_length(self, tokens: int) -> bool:
        limit = self.model_length_tokens()
        return limit is not None and tokens > limit

    def _pinned(self, incoming: Incoming) -> str | None:
        asked = incoming.headers.get(headers.PINNED_PREFILL)
        if asked is None:
            return None
        worker = self._workers.by_url(asked)
        if worker is None or not worker.role.prefills:
            raise RequestError(f"header {headers.PINNED_PREFILL} must name a registered prefill server, got {asked!r}")
        return worker.node_ids[0]
