"""The story of one request: decide, prefill leg, decode leg, and what follows when one of them fails."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kairos_router import failures, headers, payload
from kairos_router.config import RetrySettings
from kairos_router.failures import Action, Failure, Fate, Leg
from kairos_router.handles import Handle, HandleBook
from kairos_router.intake import Intake
from kairos_router.job import Incoming, Job, LegFailed, Sink, Story
from kairos_router.legs import Carries, Legs
from kairos_router.metrics import RouterMetrics
from kairos_router.placement import Placement
from kairos_router.refusal import Refusal
from kairos_router.relay import Relay
from kairos_router.release import HandleReleaser
from kairos_router.retry import backoff_s
from kairos_router.sse import error_event
from kairos_router.time_limit import TimeLimit
from kairos_router.upstream import Answer
from vllm_kairos.core.decision import Assign
from vllm_kairos.core.events import Dispatched, Ended, Event, FirstToken, LeaseRefused, PrefillDone
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.shapes import Route
from vllm_kairos.wire.params import LeaseClaim

_LOG = logging.getLogger(__name__)


class View(Protocol):
    """The part of ClusterView that the flow needs."""

    def apply(self, event: Event) -> None:
        """Take one event."""

    def nodes(self, now_s: float) -> Sequence[NodeState]:
        """Every node, in-flight corrections included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """How long and how often; `router_id` is the name under which nodes know this process."""

    router_id: str = ""
    request_timeout_s: float = 1800.0
    retry: RetrySettings = field(default_factory=RetrySettings)
    decision_headers: bool = False


class Router:
    """Serves the endpoints that may take two legs."""

    def __init__(
        self,
        *,
        intake: Intake,
        placement: Placement,
        legs: Legs,
        view: View,
        handles: HandleBook,
        releaser: HandleReleaser,
        metrics: RouterMetrics,
        clock: Callable[[], float],
        settings: FlowSettings,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._intake = intake
        self._placement = placement
        self._legs = legs
        self._view = view
        self._handles = handles
        self._releaser = releaser
        self._metrics = metrics
        self._clock = clock
        self._settings = settings
        self._uniform = uniform

    async def complete(self, incoming: Incoming, story: Story, sink: Sink) -> None:
        """Answer one request through `sink`; raises Refusal or RequestError when nothing was sent."""
        job = await self._intake.admit(incoming, story)
        try:
            with TimeLimit(self._settings.request_timeout_s):
                await self._serve(job, sink)
        except TimeoutError:
            await self._time_out(job, sink)
        finally:
            self._give_up_handle(job)

    async def _serve(self, job: Job, sink: Sink) -> None:
        while True:
            decision = self._placement.decide(job)
            try:
                await self._attempt(job, decision, sink)
            except LegFailed as failed:
                if await self._recover(job, failed, sink):
                    return
            else:
                self._intake.learn(job)
                return

    async def _attempt(self, job: Job, decision: Assign, sink: Sink) -> None:
        """Tell the view what is on its way, which is undone on success, error and disconnect, and run both legs."""
        job.attempts += 1
        self._view.apply(_dispatched(job, decision, self._clock()))
        try:
            await self._run_legs(job, decision, sink)
        finally:
            self._view.apply(Ended(job.attempt_id, self._clock()))

    async def _run_legs(self, job: Job, decision: Assign, sink: Sink) -> None:
        body = await self._decode_body(job, decision)
        extra = headers.of_decision(decision) if self._settings.decision_headers else {}
        relay = Relay(job.story, sink, extra, lambda: self._text_arrived(job, decision))
        job.handle_sent = True
        carries = Carries.HANDLE if job.handle is not None else Carries.NOTHING
        if decision.claim is not None:
            carries = Carries.CLAIM

        async def pass_on(answer: Answer) -> None:
            job.handle = None  # D has it; it frees P whatever becomes of the request
            await relay.pass_on(answer)

        await self._legs.decode(job, decision.decode_node, body, sink, pass_on, carries)

    async def _decode_body(self, job: Job, decision: Assign) -> bytes:
        if decision.route is Route.LOCAL or decision.prefill_node is None:
            return payload.deflected_leg(job.request, decision.schedule, self._claim(decision))
        if job.handle is None:
            job.handle, job.handle_sent = await self._legs.prefill(job, decision.prefill_node), False
        self._view.apply(PrefillDone(job.attempt_id, self._clock()))
        self._check_handle(job, job.handle)
        return payload.decode_leg(job.request, job.handle.params)

    def _claim(self, decision: Assign) -> LeaseClaim | None:
        claim = decision.claim
        return None if claim is None else LeaseClaim(id=claim.lease_id, router=self._settings.router_id)

    def _check_handle(self, job: Job, handle: Handle) -> None:
        objection = self._handles.objection(handle, self._clock())
        if objection is not None:
            job.handle = None
            raise LegFailed(Leg.DECODE, handle.prefill_node, objection, "handle dropped, not sent")

    async def _recover(self, job: Job, failed: LegFailed, sink: Sink) -> bool:
        """Do what the rules say; True when the client has its answer, False to try again."""
        rule = failures.rule(failed.leg, failed.failure)
        if rule.action is Action.TAKE_PREFILL:
            await self._take_prefill(job, failed)
            return False
        _LOG.warning("request %s: %s: %s", job.incoming.request_id, failed, rule.action)
        job.story.error = f"{failed.leg}-{failed.failure}"
        self._metrics.error(job.story.error)
        self._settle_handle(job, rule.handle)
        if sink.started:
            await self._end_stream(job, failed, sink)
            return True
        return await self._act(rule.action, job, failed, sink)

    async def _act(self, action: Action, job: Job, failed: LegFailed, sink: Sink) -> bool:
        match action:
            case Action.ANSWER:
                await self._pass_answer(job, failed, sink)
                return True
            case Action.DECODE_ONLY:
                self._placement.force_local(job, failed)
            case Action.DEFLECT:
                self._placement.leave_prefill(job)
            case Action.OTHER_PAIR:
                if not self._placement.avoid_pair(job):
                    await self._pass_answer(job, failed, sink)
                    return True
            case Action.PREFILL_AGAIN:
                self._metrics.stranded_kv(failed.failure)
                await self._before_retry(job, failed, wait=False)
            case _:
                job.left_out.add(failed.worker)
                await self._before_retry(job, failed, wait=True)
        return False

    async def _take_prefill(self, job: Job, failed: LegFailed) -> None:
        """The node did not begin with it, so nothing failed; where no prefill node is left it may come to this again."""
        decision, again = job.story.decision, job.lease_refused
        if isinstance(decision, Assign) and decision.claim is not None:
            self._view.apply(LeaseRefused(decision.decode_node, decision.claim.lease_id))
        job.story.lease_gone = failed.detail
        self._metrics.lease_gone(failed.worker, failed.detail)
        self._placement.take_prefill(job)
        if again:
            await self._before_retry(job, failed, wait=True)

    async def _before_retry(self, job: Job, failed: LegFailed, *, wait: bool) -> None:
        if job.story.retries >= self._settings.retry.max_retries:
            self._exhaust(job, failed)
            return
        job.story.retries += 1
        self._metrics.retry(failed.leg, job.incoming.path)
        if wait:
            await asyncio.sleep(backoff_s(self._settings.retry, job.story.retries, self._uniform()))

    def _exhaust(self, job: Job, failed: LegFailed) -> None:
        """No retry is left: a prefill leg's request goes to the decode servers, a decode leg's is refused."""
        if not job.prefill_given_up:
            self._metrics.retries_exhausted(failed.leg, job.incoming.path)
        if failed.leg is Leg.PREFILL and not job.prefill_given_up:
            self._placement.leave_prefill(job)
            return
        status = 502 if failed.failure in (Failure.RESET, Failure.BROKEN) else 503
        raise Refusal(status, f"{failed.leg}-{failed.failure}", failed.told, retry_after_s=1.0) from failed

    async def _pass_answer(self, job: Job, failed: LegFailed, sink: Sink) -> None:
        answer = failed.answer
        if answer is None:
            raise Refusal(502, f"{failed.leg}-{failed.failure}", failed.told) from failed
        passed = headers.client_headers(answer.headers, request_id=job.incoming.request_id)
        await sink.whole(answer.status, passed, answer.body)

    async def _end_stream(self, job: Job, failed: LegFailed, sink: Sink) -> None:
        worker = self._placement.worker(failed.worker)
        if worker is not None:
            self._metrics.stream_error(worker)
        await sink.abort(error_event(f"the {failed.leg} server broke off", "BadGateway", 502))

    async def _time_out(self, job: Job, sink: Sink) -> None:
        limit_s = self._settings.request_timeout_s
        message = f"request took longer than the configured limit of {limit_s:g} s"
        job.story.error = "request-timeout"
        self._metrics.error(job.story.error)
        if not sink.started:
            raise Refusal(504, "request-timeout", message)
        await sink.abort(error_event(message, "GatewayTimeout", 504))

    def _text_arrived(self, job: Job, decision: Assign) -> None:
        story, now_s = job.story, self._clock()
        if story.first_text_at_s is None:
            story.first_text_at_s = now_s
            self._view.apply(FirstToken(job.attempt_id, now_s))
            self._metrics.ttft(decision.predicted_ttft_s, now_s - story.received_at_s, decision.route)
        elif story.last_text_at_s is not None:
            self._metrics.tokens_gap(now_s - story.last_text_at_s, decision.route)
        story.last_text_at_s = now_s

    def _settle_handle(self, job: Job, fate: Fate) -> None:
        """After a failed leg: keep the handle for another decode server, have P free its blocks, or forget it."""
        job.handle_sent = False
        if fate is Fate.UNKNOWN:
            self._give_up_handle(job)
        elif fate is Fate.SPENT:
            job.handle = None

    def _give_up_handle(self, job: Job) -> None:
        """A handle that no decode server got keeps P's blocks until its lease ends, unless it is given up."""
        if job.handle is None or job.handle_sent:
            return
        leg_id = headers.leg_id(job.incoming.request_id, job.unique, Leg.DECODE, job.attempts + 1)
        self._releaser.give_up(job.handle, job.incoming.headers, leg_id)
        job.handle = None


def _dispatched(job: Job, decision: Assign, now_s: float) -> Dispatched:
    return Dispatched(
        request_id=job.attempt_id,
        route=decision.route,
        prefill_node=decision.prefill_node,
        decode_node=decision.decode_node,
        prompt_tokens=job.shape.prompt_tokens,
        at_s=now_s,
        need=None if decision.claim is None else decision.claim.need,
    )
