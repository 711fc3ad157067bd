"""What goes wrong in a replay, and when."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from benchmarks.serving.failing.stage import Stage

HANG_S = 6.0
AFTER_RETURN_S = 6.0
_RETURN_S = 8.0  # a server's start on two idle cores, and its first request
_MOST_S = 120.0
TRANSFERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`act` runs at `fault_s` of a load that is `duration_s` long.

    A killed server starts again at `back_s`. Its load ends AFTER_RETURN_S after it is used again, however long that takes.
    """

    name: str
    title: str
    act: Callable[[Stage, "Scenario"], Awaitable[None]]
    fault_s: float
    duration_s: float
    back_s: float | None = None

    @property
    def judged_until_s(self) -> float:
        """Recovery is of the requests due before this: the router must do without the server that is gone."""
        return self.duration_s if self.back_s is None else self.back_s

    @property
    def expected_s(self) -> float:
        """How long the load will take."""
        return self.duration_s if self.back_s is None else self.back_s + _RETURN_S + AFTER_RETURN_S


def _kill(role: str) -> Callable[[Stage, Scenario], Awaitable[None]]:
    async def act(stage: Stage, scenario: Scenario) -> None:
        assert scenario.back_s is not None
        name = stage.victim(role)
        stage.kill(name)
        await stage.until(scenario.back_s)
        await stage.bring_back(name)

    return act


async def _hang_decode(stage: Stage, scenario: Scenario) -> None:
    await stage.fault(stage.victim("d"), kind="hang", duration_s=HANG_S)


def _spoil(role: str, kind: str) -> Callable[[Stage, Scenario], Awaitable[None]]:
    async def act(stage: Stage, scenario: Scenario) -> None:
        await stage.fault(stage.victim(role), kind=kind, count=TRANSFERS)

    return act


async def _new_router(stage: Stage, scenario: Scenario) -> None:
    """SIGTERM first and only then another one, so that requests arrive while none is ready."""
    stage.front.ask_to_end()
    stage.note("start")
    stage.front = await stage.new_front()
    stage.note("healthy")


def _killing(role: str) -> Scenario:
    return Scenario(
        name=f"kill-{role}",
        title=f"kill -9 of a {role} server, started again 8 s later",
        act=_kill(role[0]),
        fault_s=6,
        back_s=14,
        duration_s=_MOST_S,
    )


SCENARIOS: Mapping[str, Scenario] = {
    each.name: each
    for each in (
        _killing("prefill"),
        _killing("decode"),
        Scenario(
            name="hang-decode", title=f"a decode server hangs for {HANG_S:g} s", act=_hang_decode, fault_s=6, duration_s=20
        ),
        Scenario(
            name="expire-transfer",
            title=f"{TRANSFERS} KV leases of a prefill server end at once",
            act=_spoil("p", "expire_transfers"),
            fault_s=5,
            duration_s=15,
        ),
        Scenario(
            name="fail-transfer",
            title=f"{TRANSFERS} KV pulls of a decode server fail",
            act=_spoil("d", "fail_transfers"),
            fault_s=5,
            duration_s=15,
        ),
        Scenario(
            name="router-drain",
            title="SIGTERM to the router, and another one started at once",
            act=_new_router,
            fault_s=6,
            duration_s=18,
        ),
    )
}
"""By name, in the order in which they run."""
