"""A prefill/decode cluster on this machine: what it is made of, how it starts and how it ends."""

from vllm_kairos.cluster.local import LocalCluster
from vllm_kairos.cluster.spec import ClusterSpec, Device, Scheduler

__all__ = ["ClusterSpec", "Device", "LocalCluster", "Scheduler"]
