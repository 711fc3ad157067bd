"""Small clusters and workloads for the simulator's tests."""

from collections.abc import Iterable

from tests.strategies import A100
from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost
from vllm_kairos.core.node import Role
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.sim.cluster_spec import ClusterSpec, RouterSpec
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.network import TwoTierTopology
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.sim.simulator import Outcome, Simulation
from vllm_kairos.workload.request import TraceRequest, Workload

IDEAL_ROUTER = RouterSpec(decision_latency_s=0.0, hop_s=0.0, heartbeat_delay_s=0.0, heartbeat_period_s=1.0, stale_after_s=3.0)
"""A router whose own work takes no time."""
FREE_NETWORK = TwoTierTopology(latency_s=0.0, cross_latency_s=0.0)


def prefill_cost(fixed_s: float = 0.0, per_token_s: float = 0.0) -> PrefillCost:
    return PrefillCost(fixed_s=fixed_s, per_token_s=per_token_s, per_done_token_s=0.0, per_attention_work_s=0.0)


def steps_of(prefill: PrefillCost, decode_s: float = 0.0) -> LinearStepModel:
    """A model whose decode steps all take the same."""
    decode = DecodeCost(fixed_s=decode_s, per_decode_s=0.0, per_kv_token_s=0.0)
    return LinearStepModel(prefill=prefill, decode=decode, extra=prefill)


def engine(name: str, role: Role, **fields: object) -> EngineSpec:
    """An engine with much KV, an A100's step times and 128 KiB of KV per token unless `fields` say otherwise."""
    values: dict[str, object] = {"model": A100, "kv_blocks": 100_000, "kv_bytes_per_token": 131072}
    return EngineSpec(name=name, role=role, **{**values, **fields})  # type: ignore[arg-type]


def cluster(
    prefills: int,
    decodes: int,
    *,
    router: RouterSpec | None = None,
    topology: TwoTierTopology | None = None,
    settings: DecisionSettings | None = None,
    **fields: object,
) -> ClusterSpec:
    """Prefill nodes p0.. and decode nodes d0.. of equal engines."""
    engines = [engine(f"p{at}", Role.PREFILL, **fields) for at in range(prefills)]
    engines += [engine(f"d{at}", Role.DECODE, **fields) for at in range(decodes)]
    model = engines[0].model
    return ClusterSpec(
        engines=tuple(engines),
        prefill_model=model,
        decode_model=model,
        topology=topology or TwoTierTopology(),
        router=router or RouterSpec(),
        settings=settings or DecisionSettings(kv_bytes_per_token=131072),
    )


def requests(*shapes: tuple[float, int, int]) -> Workload:
    """The workload of requests with these arrivals, prompt and output lengths."""
    return workload(
        TraceRequest(request_id=f"r{at}", arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output)
        for at, (arrival_s, prompt, output) in enumerate(shapes)
    )


def workload(items: Iterable[TraceRequest]) -> Workload:
    return Workload.in_time_order("test", items)


def simulation(spec: ClusterSpec, load: Workload, policy: str = "never", **options: object) -> Simulation:
    return Simulation(spec, load, build_policy(policy, spec).policy, **options)  # type: ignore[arg-type]


def run(spec: ClusterSpec, load: Workload, policy: str = "never", **options: object) -> Outcome:
    return simulation(spec, load, policy, **options).run()
