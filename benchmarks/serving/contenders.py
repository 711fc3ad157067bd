"""Who is compared: each contender is a front process of its own before the same servers."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from vllm_kairos.cluster.machine import HOST, choose_ports
from vllm_kairos.cluster.plan import ClusterPlan, ProcessPlan, router_plan
from vllm_kairos.cluster.spec import ClusterSpec
from vllm_kairos.errors import ConfigError


class Front(StrEnum):
    """Which program stands in front."""

    KAIROS = "kairos"
    VLLM_ROUTER = "vllm-router"
    TOY_PROXY = "toy-proxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to serve. `policy` is the front's own name for it; `disaggregated` false uses all servers alike.

    With several `processes`, equal fronts stand side by side before the same servers, and requests go to them in turn.
    """

    name: str
    front: Front
    policy: str = ""
    args: tuple[str, ...] = ()  # more of the front's flags
    disaggregated: bool = True
    processes: int = 1

    @property
    def health_path(self) -> str:
        """What answers 200 when the front serves."""
        return "/healthcheck" if self.front is Front.TOY_PROXY else "/health"


_PORTS = 2  # of a process: one for requests, one for metrics
_OURS = (
    "never",
    "kairos",
    "crossflow",
    "always",
    "static-length:2048",
    "static-queue:4",
    "dynamo-isl",
    "dynamo-load",
    "llmd-noncached:512",
)
_VLLM_ROUTER = ("round_robin", "power_of_two", "cache_aware")

CONTENDERS: Mapping[str, Contender] = {
    each.name: each
    for each in (
        *(Contender(name=policy, front=Front.KAIROS, policy=policy) for policy in _OURS),
        Contender(name="kairos-4-per-node", front=Front.KAIROS, policy="kairos", args=("--deflect-per-node", "4")),
        *(
            Contender(name=f"{policy}-two-routers", front=Front.KAIROS, policy=policy, processes=2)
            for policy in ("kairos", "crossflow")
        ),
        *(
            Contender(name=f"vllm-router-{policy.replace('_', '-')}", front=Front.VLLM_ROUTER, policy=policy)
            for policy in _VLLM_ROUTER
        ),
        Contender(name="toy-proxy", front=Front.TOY_PROXY),
        *(
            Contender(name=name, front=Front.VLLM_ROUTER, policy=policy, disaggregated=False)
            for name, policy in (("aggregated", "round_robin"), ("aggregated-power-of-two", "power_of_two"))
        ),
    )
}
"""By name. Any policy that our router takes is a contender too: see `find`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPlan:
    """One process of a contender, and the folder of its own for what it logs."""

    process: ProcessPlan
    log_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where the peers are; None where none was given."""

    vllm_router: Path | None = None
    toy_proxy: Path | None = None


def find(names: Sequence[str], programs: Programs) -> tuple[Contender, ...]:
    """The contenders, each with its program there. `kairos:SPEC` is our router with `--deflect-policy SPEC`.

    Raises ConfigError for an unknown name or a program that is missing.
    """
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not names:
        raise ConfigError(f"contenders must be one or more different names, got {list(names)}")
    found = tuple(of_name(name) for name in names)
    for contender in found:
        _check_program(contender, programs)
    return found


def front_plan(
    contender: Contender, spec: ClusterSpec, plan: ClusterPlan, programs: Programs, *, ports: Sequence[int], log_dir: Path
) -> ProcessPlan:
    """One front's command line, listening on the first of `ports`, its metrics on the second."""
    if contender.front is Front.KAIROS:
        placed = replace(plan, router_port=ports[0], metrics_port=ports[1])
        ours = router_plan(spec, placed, policy=contender.policy, log_dir=log_dir)
        return replace(ours, argv=(*ours.argv, *contender.args))
    if contender.front is Front.VLLM_ROUTER:
        argv = _vllm_router(contender, plan, programs, ports)
    else:
        argv = _toy_proxy(plan, programs, ports[0])
    return ProcessPlan(name=contender.front, argv=argv, environment={}, port=ports[0])


def front_plans(
    contender: Contender, spec: ClusterSpec, plan: ClusterPlan, programs: Programs, *, ports: Sequence[int], log_dir: Path
) -> tuple[FrontPlan, ...]:
    """All its processes, each with two of `ports`; several have a folder each in `log_dir`."""
    folders = [log_dir] if contender.processes == 1 else [log_dir / f"{at}" for at in range(contender.processes)]
    pairs = [ports[at : at + _PORTS] for at in range(0, len(ports), _PORTS)]
    return tuple(
        FrontPlan(process=front_plan(contender, spec, plan, programs, ports=pair, log_dir=folder), log_dir=folder)
        for folder, pair in zip(folders, pairs, strict=True)
    )


def free_ports(contender: Contender) -> list[int]:
    """Two for each of its processes. Raises ClusterError when there are none."""
    return list(choose_ports(_PORTS * contender.processes, None))


def of_name(name: str) -> Contender:
    """The contender that `name` stands for. Raises ConfigError."""
    policy = name.removeprefix("kairos:")
    if policy != name:
        return Contender(name=name, front=Front.KAIROS, policy=policy)
    if name not in CONTENDERS:
        raise ConfigError(f"contender must be one of {', '.join(CONTENDERS)} or kairos:SPEC, got {name!r}")
    return CONTENDERS[name]


def _check_program(contender: Contender, programs: Programs) -> None:
    needed = {
        Front.VLLM_ROUTER: ("--vllm-router", programs.vllm_router, "vllm-router 0.1.17 from the package index"),
        Front.TOY_PROXY: ("--toy-proxy", programs.toy_proxy, "toy_proxy_server.py of vLLM's source distribution"),
    }
    if contender.front not in needed:
        return
    flag, path, what = needed[contender.front]
    if path is None or not path.is_file():
        raise ConfigError(
            f"{contender.name}: {flag} must be the path of {what}, got {'nothing' if path is None else str(path)!r}"
        )


def _vllm_router(contender: Contender, plan: ClusterPlan, programs: Programs, ports: Sequence[int]) -> tuple[str, ...]:
    flags = ["--policy", contender.policy, "--host", HOST, "--port", str(ports[0]), "--prometheus-port", str(ports[1])]
    flags += ["--worker-startup-check-interval", "1"]
    if not contender.disaggregated:
        return (str(programs.vllm_router), "--worker-urls", *(server.url for server in plan.servers), *flags)
    workers = [word for server in plan.prefill for word in ("--prefill", server.url, "none")]
    workers += [word for server in plan.decode for word in ("--decode", server.url)]
    return (str(programs.vllm_router), "--vllm-pd-disaggregation", "--kv-connector", "nixl", *workers, *flags)


def _toy_proxy(plan: ClusterPlan, programs: Programs, port: int) -> tuple[str, ...]:
    words = [sys.executable, str(programs.toy_proxy), "--host", HOST, "--port", str(port)]
    for role, servers in (("prefiller", plan.prefill), ("decoder", plan.decode)):
        words += [f"--{role}-hosts", *[HOST] * len(servers), f"--{role}-ports", *(str(server.port) for server in servers)]
    return tuple(words)
