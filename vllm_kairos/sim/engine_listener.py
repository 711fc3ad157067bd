"""What an engine tells of itself."""

from typing import TYPE_CHECKING, Protocol

from vllm_kairos.sim.job import Job

if TYPE_CHECKING:
    from vllm_kairos.sim.engine import Engine


class EngineListener(Protocol):
    """Told what happens on an engine, at the time it happens."""

    def kv_wanted(self, engine: "Engine", job: Job) -> None:
        """Blocks for `job` are held: its KV may be pulled; `Engine.kv_arrived` ends that."""

    def prefilled(self, engine: "Engine", job: Job) -> None:
        """A prefill leg is done and holds its KV until `Engine.release`."""

    def first_token(self, engine: "Engine", job: Job) -> None:
        """The job's first token left the engine."""

    def finished(self, engine: "Engine", job: Job) -> None:
        """The job's last token left the engine, which holds nothing of it any more."""

    def step_ended(self, engine: "Engine", *, deflection_ended: bool) -> None:
        """A step, or the last one of a run, is over; whether one that carried the last of a deflected prompt."""
