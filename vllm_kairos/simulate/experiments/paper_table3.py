"""Table 3: where the P95 TTFT of plain P/D goes, for each workload at Table 1's rate."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.experiments.experiment import Experiment, Groups, Row
from vllm_kairos.simulate.experiments.paper_setting import PLAIN, paper_config
from vllm_kairos.simulate.figures import Figures
from vllm_kairos.workload.paper import PAPER_WORKLOADS


class _Printed(NamedTuple):
    """One row of Table 3, P95s in milliseconds."""

    prefill_queue: float
    prefill_execution: float
    transfer: float
    decode_queue: float
    ttft: float


_TABLE = {
    "LPLD": _Printed(59.2, 191.4, 4205.4, 54.5, 6278.8),
    "LPHD": _Printed(54.4, 177.0, 1428.9, 58.6, 7876.1),
    "HPLD": _Printed(655.3, 1340.2, 1723.4, 37.4, 5781.5),
    "HPHD": _Printed(349.6, 1222.8, 3584.6, 55.4, 6292.0),
    "Bursty": _Printed(840.8, 1070.1, 2175.6, 55.6, 7893.9),
}
_PARTS: dict[str, Callable[[Figures], float | None]] = {
    "prefill_queue": lambda one: one.breakdown["prefill_queue_s"].p95,
    "prefill_execution": lambda one: one.breakdown["prefill_exec_s"].p95,
    "transfer": lambda one: one.breakdown["transfer_s"].p95,
    "decode_queue": lambda one: one.breakdown["decode_wait_s"].p95,
    "ttft": lambda one: one.ttft_s.p95,
}
_NAMES = {
    "prefill_queue": "prefill queue",
    "prefill_execution": "prefill execution",
    "transfer": "KV transfer",
    "decode_queue": "decode queue",
    "ttft": "TTFT",
}


def _sweeps() -> Mapping[str, SimulateConfig]:
    return {
        name: paper_config((PLAIN,), workload=name, rates=(workload.rate_rps,)) for name, workload in PAPER_WORKLOADS.items()
    }


def _rows(groups: Groups) -> Sequence[Row]:
    return [row for name in _TABLE if name in groups for row in _rows_of(name, groups)]


def _rows_of(name: str, groups: Groups) -> Iterator[Row]:
    printed = _TABLE[name]
    for group in groups[name]:
        values = {part: group.middle(read) for part, read in _PARTS.items()}
        for part, value_s in values.items():
            ours_ms = None if value_s is None else value_s * 1e3
            yield Row(quantity=f"{name}: P95 {_NAMES[part]}", expected=getattr(printed, part), ours=ours_ms, unit="ms")
        share = 100 * printed.prefill_execution / printed.ttft
        execution_s, ttft_s = values["prefill_execution"], values["ttft"]
        ours = 100 * execution_s / ttft_s if execution_s is not None and ttft_s else None
        yield Row(quantity=f"{name}: P95 prefill execution over P95 TTFT", expected=share, ours=ours, unit="%")


EXPERIMENT = Experiment(
    name="paper-table3",
    summary="plain P/D on 2P2D under the paper's five workloads at Table 1's rates: P95 of each part of the TTFT",
    sweeps=_sweeps,
    rows=_rows,
    expected_from="the paper's Table 3",
)
