"""The cluster that TaiChi's tests run on: the paper's 2P2D, or less of it."""

from vllm_kairos.core.node import Role
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.profiles.shipped import load_shipped
from vllm_kairos.sim.cluster_spec import ClusterSpec
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.network import TwoTierTopology

PROFILE = load_shipped("a100-deepseek-v2-lite-paper")
MODEL = PROFILE.step_model
KV_BYTES_PER_TOKEN = 31_104
NIC_BYTES_PER_S = 3e9


def cluster(prefills: int = 2, decodes: int = 2, *, kv_blocks: int = 80_000, profile: bool = True) -> ClusterSpec:
    """Engines p0, p1, ... and d0, d1, ... of one size; `profile` False: the router has none."""
    roles = {f"p{at}": Role.PREFILL for at in range(prefills)} | {f"d{at}": Role.DECODE for at in range(decodes)}
    engines = tuple(
        EngineSpec(
            name=name,
            role=role,
            model=MODEL,
            kv_blocks=kv_blocks,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            token_budget_tokens=2048,
        )
        for name, role in roles.items()
    )
    return ClusterSpec(
        engines=engines,
        prefill_model=MODEL if profile else None,
        decode_model=MODEL if profile else None,
        topology=TwoTierTopology(nic_bytes_per_s=NIC_BYTES_PER_S),
        settings=DecisionSettings(kv_bytes_per_token=KV_BYTES_PER_TOKEN),
    )
