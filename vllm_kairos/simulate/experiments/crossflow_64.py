"""The experiment `crossflow` on 64 nodes, where a trace lasts for a shorter time: its requests are shared by more nodes."""

from vllm_kairos.simulate.experiments.crossflow import rows_of, sweeps_of
from vllm_kairos.simulate.experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="crossflow-64",
    summary="leases against one deflection per node and static P/D, 64 nodes, on the traces in KAIROS_TRACES",
    sweeps=lambda: sweeps_of({64: (1, 4)}),
    rows=rows_of,
    expected_from="the Crossflow paper",
)
