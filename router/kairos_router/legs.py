"""Sends one leg to one server and turns whatever happens into a result or a LegFailed."""

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from types import TracebackType

from kairos_router import answers, failures, headers, payload, tracing
from kairos_router.breaker import Breakers
from kairos_router.failures import Failure, Leg
from kairos_router.handles import Handle, HandleBook
from kairos_router.job import Job, LegFailed, Sink
from kairos_router.metrics import RouterMetrics
from kairos_router.registry import Worker, WorkerRegistry
from kairos_router.relay import failure_of
from kairos_router.tracing import Span
from kairos_router.upstream import Answer, Call, ServerAnswer, Upstream, UpstreamFailure
from vllm_kairos.errors import RequestError

Take = Callable[[Answer], Awaitable[None]]


class Carries(Enum):
    """What a decode leg's body has beside what the client sent."""

    NOTHING = auto()  # or a chunk schedule alone
    HANDLE = auto()  # of KV to pull
    CLAIM = auto()  # on the server's lease


class Legs:
    """The calls of both legs, each counted, timed and reported to its server's breaker."""

    def __init__(
        self,
        *,
        upstream: Upstream,
        workers: WorkerRegistry,
        breakers: Breakers,
        metrics: RouterMetrics,
        handles: HandleBook,
        clock: Callable[[], float],
        api_key: str | None = None,
    ) -> None:
        self._upstream = upstream
        self._workers = workers
        self._breakers = breakers
        self._metrics = metrics
        self._handles = handles
        self._clock = clock
        self._api_key = api_key

    async def prefill(self, job: Job, node_id: str) -> Handle:
        """Compute the prompt on `node_id`; raises LegFailed unless a handle comes back."""
        worker, rank = self._resolve(Leg.PREFILL, node_id)
        body = payload.prefill_leg(job.request)
        with self._tracked(job, Leg.PREFILL, worker) as span:
            call = self._call(job, Leg.PREFILL, worker, rank, body, span)
            try:
                async with self._upstream.send(call) as answer:
                    whole = ServerAnswer(status=answer.status, headers=answer.headers, body=await answer.read())
            except UpstreamFailure as failure:
                raise LegFailed(Leg.PREFILL, worker.name, failure.failure, failure.detail) from failure
            return self._handle(job, worker, node_id, whole)

    async def decode(self, job: Job, node_id: str, body: bytes, sink: Sink, take: Take, carries: "Carries") -> None:
        """Have `take` pass the answer on to `sink`, once its status is a success; raises LegFailed."""
        worker, rank = self._resolve(Leg.DECODE, node_id)
        with self._tracked(job, Leg.DECODE, worker) as span:
            call = self._call(job, Leg.DECODE, worker, rank, body, span)
            try:
                async with self._upstream.send(call) as answer:
                    await _check_decode(answer)
                    await take(answer)
            except UpstreamFailure as failure:
                kind = _decode_failure(failure.failure, carries, started=sink.started)
                raise LegFailed(Leg.DECODE, worker.name, kind, failure.detail, failure.answer) from failure

    def _resolve(self, leg: Leg, node_id: str) -> tuple[Worker, int | None]:
        """The server of a node; one that was removed after the decision is as good as one that cannot be reached."""
        try:
            return self._workers.resolve(node_id)
        except RequestError as error:
            raise LegFailed(leg, node_id, Failure.REFUSED, "removed since the decision") from error

    def _handle(self, job: Job, worker: Worker, node_id: str, whole: ServerAnswer) -> Handle:
        failure = failures.of_status(whole.status, leg=Leg.PREFILL, rewritten=job.request.constrained)
        if failure is not None:
            raise LegFailed(Leg.PREFILL, worker.name, failure, f"status {whole.status}", whole)
        answer = answers.read_prefill(whole.body)
        if answer.handle is None:
            raise LegFailed(Leg.PREFILL, worker.name, Failure.FAULTY_ANSWER, answer.fault)
        now_s = self._clock()
        return Handle(
            params=answer.handle,
            prefill_node=node_id,
            generation=self._handles.saw_engine(node_id, answer.engine_id, now_s),
            received_at_s=now_s,
        )

    def _call(self, job: Job, leg: Leg, worker: Worker, rank: int | None, body: bytes, span: Span | None) -> Call:
        leg_id = headers.leg_id(job.incoming.request_id, job.unique, leg, job.attempts)
        sent = headers.leg_headers(job.incoming.headers, leg_id=leg_id, dp_rank=rank, api_key=self._api_key)
        if span is not None:
            span.carry(sent)
        return Call(url=worker.url + job.request.endpoint, headers=sent, body=body)

    def _tracked(self, job: Job, leg: Leg, worker: Worker) -> "_Tracked":
        return _Tracked(self._clock, self._metrics, self._breakers, job, leg, worker)


class _Tracked:
    """Counts, times and traces a leg; entering gives its span, None where it is not traced.

    Spelled out, since a generator's context costs more, twice per request.
    """

    __slots__ = ("_breakers", "_clock", "_job", "_leg", "_metrics", "_span", "_started_s", "_worker")

    def __init__(
        self, clock: Callable[[], float], metrics: RouterMetrics, breakers: Breakers, job: Job, leg: Leg, worker: Worker
    ) -> None:
        self._clock, self._metrics, self._breakers = clock, metrics, breakers
        self._job, self._leg, self._worker = job, leg, worker

    def __enter__(self) -> Span | None:
        job, worker = self._job, self._worker
        self._started_s = self._clock()
        self._span = tracing.leg_span(job.story.span, self._leg, worker.name, worker.url, attempt=job.attempts)
        self._metrics.leg_started(self._leg, worker)
        return self._span

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        now_s = self._clock()
        took_s, outcome = now_s - self._started_s, "cancelled"
        if error is None:
            outcome = "ok"
            self._breakers.success(self._worker.name, now_s)
        elif isinstance(error, LegFailed):
            outcome = str(error.failure)
            self._tell_breaker(error, now_s)
        leg_s = self._job.story.leg_s
        leg_s[self._leg] = leg_s.get(self._leg, 0.0) + took_s
        self._metrics.leg_finished(self._leg, self._worker, took_s, outcome)
        if self._span is not None:
            tracing.end_leg(self._span, outcome)

    def _tell_breaker(self, failed: LegFailed, now_s: float) -> None:
        if failures.rule(failed.leg, failed.failure).node_fault:
            self._breakers.failure(failed.worker, now_s)
        else:
            self._breakers.success(failed.worker, now_s)


async def _check_decode(answer: Answer) -> None:
    if failures.of_status(answer.status, leg=Leg.DECODE) is None:
        return
    whole = ServerAnswer(status=answer.status, headers=answer.headers, body=await answer.read())
    raise failure_of(whole, f"status {answer.status}")


def _decode_failure(failure: Failure, carries: Carries, *, started: bool) -> Failure:
    if failure is Failure.BROKEN and not started:
        return Failure.RESET
    if failure is Failure.SERVER_ERROR and carries is Carries.HANDLE:
        return Failure.KV_LEG_ERROR
    if failure is Failure.LEASE_GONE and carries is not Carries.CLAIM:
        return Failure.CLIENT_ERROR  # nothing that this router asked for
    return failure
