"""Several routers in front of one cluster: each request is one router's, and none knows what the others send."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from vllm_kairos.sim.engine import Engine
from vllm_kairos.sim.job import Job
from vllm_kairos.sim.leases import Leases
from vllm_kairos.sim.network import Network
from vllm_kairos.sim.router import SimRouter
from vllm_kairos.workload.request import TraceRequest


class Fleet:
    """Hands requests to its routers in turn, and what engines tell to the one that it is for."""

    def __init__(self, routers: Sequence[SimRouter]) -> None:
        self.routers, self._next = tuple(routers), cycle(routers)

    @property
    def open_requests(self) -> int:
        return sum(router.open_requests for router in self.routers)

    @property
    def tracked_requests(self) -> int:
        """Requests that the routers' views still count."""
        return sum(router.tracked_requests for router in self.routers)

    def connect(self, engines: Mapping[str, Engine], network: Network, leases: Leases | None = None) -> None:
        """Have every router follow every engine."""
        for router in self.routers:
            router.connect(engines, network, leases)

    def stop_reports(self) -> None:
        """No request will come any more."""
        for router in self.routers:
            router.stop_reports()

    def arrive(self, request: TraceRequest) -> None:
        """Take in a request now."""
        next(self._next).arrive(request)

    def kv_wanted(self, engine: Engine, job: Job) -> None:
        """Tell whose request it is."""
        self._of(job).kv_wanted(engine, job)

    def prefilled(self, engine: Engine, job: Job) -> None:
        """Tell whose request it is."""
        self._of(job).prefilled(engine, job)

    def first_token(self, engine: Engine, job: Job) -> None:
        """Tell whose request it is."""
        self._of(job).first_token(engine, job)

    def finished(self, engine: Engine, job: Job) -> None:
        """Tell whose request it is."""
        self._of(job).finished(engine, job)

    def step_ended(self, engine: Engine, *, deflection_ended: bool) -> None:
        """Tell all."""
        for router in self.routers:
            router.step_ended(engine, deflection_ended=deflection_ended)

    def _of(self, job: Job) -> SimRouter:
        return next(router for router in self.routers if router.has(job.request.request_id))
