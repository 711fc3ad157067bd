"""Request traces and generated workloads, for the simulator and for replay against a cluster."""

from vllm_kairos.workload.describe import Description, describe
from vllm_kairos.workload.formats.kairos import load_workload, save_workload
from vllm_kairos.workload.generate import generate
from vllm_kairos.workload.load import load_trace
from vllm_kairos.workload.request import TraceRequest, Workload

__all__ = [
    "Description",
    "TraceRequest",
    "Workload",
    "describe",
    "generate",
    "load_trace",
    "load_workload",
    "save_workload",
]
