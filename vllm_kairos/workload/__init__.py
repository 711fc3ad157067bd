"""Request traces and generated workloads, for the simulator and for replay against a cluster."""

from vllm_kairos.workload.generate import generate
from vllm_kairos.workload.load import load_trace
from vllm_kairos.workload.request import TraceRequest, Workload

__all__ = ["TraceRequest", "Workload", "generate", "load_trace"]
