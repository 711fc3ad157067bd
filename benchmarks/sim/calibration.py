"""What a latency profile cannot know of a served cluster, measured on phases that are not among the compared ones.

Requests one by one over each path give the delays around the engines and the KV link. A load of other
requests of the trace gives how much longer steps take when the API server shares the engine's core.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log
from statistics import linear_regression, median, pstdev
from typing import Any

from benchmarks.sim.packed import packed_steps
from benchmarks.sim.served import Phase
from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost
from vllm_kairos.wire.messages import NodeStateMessage, StepSample, TransferSample

HOP_S = 0.0005
"""Router to engine and back; what else a leg takes is counted as the engine's frontend."""
_TRIMMED = 0.005  # share of the steps left out at either end: stalls that are none of the cluster's doing
_LEAST_FACTOR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Medians over requests that had the cluster to themselves, in seconds."""

    client_s: float  # client to router and back
    prefill_frontend_s: float
    decode_frontend_s: float
    pull_s: float  # what a pulled request takes longer on the decode node than its transfer and its step


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A KV transfer takes `latency_s` and its bytes over `bytes_per_s`."""

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Measured periods over predicted ones, sums over steps; `noise` is the spread of single steps."""

    prefill: float
    decode: float
    extra: float  # of the part of a mixed step that its prompt adds
    steps: int
    noise: float

    def served(self, model: LinearStepModel) -> LinearStepModel:
        """`model` as the node's steps really are."""
        return replace(
            model,
            prefill=PrefillCost(**_times(model.prefill, self.prefill)),
            decode=DecodeCost(**_times(model.decode, self.decode)),
            extra=PrefillCost(**_times(model.extra, self.extra)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything that was measured beforehand; `sizes` are the nodes' own reports, `factors` go by node."""

    delays: Delays
    link: Link
    factors: Mapping[str, Factors]
    sizes: Mapping[str, NodeStateMessage]

    def document(self) -> dict[str, Any]:
        """For the results' JSON."""
        return {
            "delays": asdict(self.delays),
            "kv_link": asdict(self.link),
            "steps": {node: asdict(factors) for node, factors in self.factors.items()},
            "nodes": {
                node: {
                    "token_budget_tokens": size.token_budget_tokens,
                    "max_running_requests": size.max_running_requests,
                    "block_size_tokens": size.block_size_tokens,
                    "kv_blocks": size.total_kv_blocks,
                    "kv_bytes_per_token": size.kv_bytes_per_token,
                }
                for node, size in self.sizes.items()
            },
        }


def delays(remote: Phase, local: Phase, *, prefill_node: str, decode_node: str) -> Delays:
    """From requests sent one by one: `remote` over both nodes, `local` deflected."""
    pairs = [*zip(remote.samples, remote.records, strict=True), *zip(local.samples, local.records, strict=True)]
    prefills, decodes = _by_prompt(remote.feed.steps(prefill_node)), _first_decodes(remote.feed.steps(decode_node))
    deflected = _by_prompt(local.feed.steps(decode_node))
    legs_s = [_left(record["prefill_leg_s"], prefills, record) for record in remote.records]
    locals_s = [_left(record["ttft_s"], deflected, record) for record in local.records]
    after_s = [_left(record["ttft_s"] - record["prefill_leg_s"], decodes, record) for record in remote.records]
    transfer_s = median(sample.transfer_s for sample in remote.feed.transfers(decode_node))
    frontend_s = max(0.0, _median(locals_s) - 2 * HOP_S)
    return Delays(
        client_s=max(0.0, median(sample.ttft_s - record["ttft_s"] for sample, record in pairs)),
        prefill_frontend_s=max(0.0, _median(legs_s) - 2 * HOP_S),
        decode_frontend_s=frontend_s,
        pull_s=max(0.0, _median(after_s) - transfer_s - frontend_s - 2 * HOP_S),
    )


def link(transfers: Sequence[TransferSample]) -> Link:
    """Least squares of seconds over bytes; a line that bytes do not steepen is the median rate without a latency."""
    sizes, seconds = [float(t.transferred_bytes) for t in transfers], [t.transfer_s for t in transfers]
    slope, intercept = linear_regression(sizes, seconds)
    if slope <= 0:
        return Link(latency_s=0.0, bytes_per_s=median(size / time_s for size, time_s in zip(sizes, seconds, strict=True)))
    return Link(latency_s=max(0.0, intercept), bytes_per_s=1 / slope)


def prefill_factors(phases: Iterable[Phase], node: str, model: LinearStepModel, budget_tokens: int) -> Factors:
    """Of a node that takes the kept prompts in the order of arrival: which of them a step held follows from its tokens."""
    pairs = [
        (step_s + phase.feed.between_steps_s(node), model.packed_step_s(0, 0, totals))
        for phase in phases
        for step_s, totals in packed_steps(phase.feed.steps(node), phase.kept_prompts, budget_tokens)
    ]
    factor = ratio(pairs)
    return Factors(prefill=factor, decode=factor, extra=factor, steps=len(pairs), noise=spread(pairs))


def decode_factors(phases: Sequence[Phase], node: str, model: LinearStepModel, *, one_by_one: Sequence[Phase] = ()) -> Factors:
    """Of a node that decodes and takes deflected prompts, one at a time.

    Steps that prefill and decode nothing are rare under load: those of requests sent one by one count with them.
    """
    steps, idle = _steps(phases, node), _steps(one_by_one, node)
    alone = [_pair(step, gap_s, model) for step, gap_s in steps if not step.prefill_tokens and step.running_decodes]
    chunks = [_pair(step, gap_s, model) for step, gap_s in (*steps, *idle) if step.prefill_tokens and not step.running_decodes]
    mixed = [(step, gap_s) for step, gap_s in steps if step.prefill_tokens and step.running_decodes]
    decode = ratio(alone)
    added = [
        (
            step.step_s + gap_s - decode * model.decode.at(step.running_decodes, step.kv_tokens),
            model.extra.at(step.prefill_tokens, step.done_tokens),
        )
        for step, gap_s in mixed
    ]
    return Factors(
        prefill=ratio(chunks) if chunks else decode,
        decode=decode,
        extra=ratio(added) if added else decode,
        steps=len(steps),
        noise=spread(alone),
    )


def ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Sum of measured over sum of predicted times, without those pairs whose own ratio is most extreme."""
    ordered = sorted(pairs, key=lambda pair: pair[0] / pair[1])
    cut = int(len(ordered) * _TRIMMED)
    kept = ordered[cut : len(ordered) - cut]
    return max(_LEAST_FACTOR, sum(measured for measured, _ in kept) / sum(predicted for _, predicted in kept))


def spread(pairs: Sequence[tuple[float, float]]) -> float:
    """Standard deviation of the logarithm of the pairs' ratios, the most extreme left out."""
    logs = sorted(log(measured / predicted) for measured, predicted in pairs if measured > 0)
    cut = int(len(logs) * _TRIMMED)
    return pstdev(logs[cut : len(logs) - cut]) if len(logs) > 1 else 0.0


def _steps(phases: Iterable[Phase], node: str) -> list[tuple[StepSample, float]]:
    """Every step, with what passes between two of its phase."""
    return [(step, phase.feed.between_steps_s(node)) for phase in phases for step in phase.feed.steps(node)]


def _pair(step: StepSample, gap_s: float, model: LinearStepModel) -> tuple[float, float]:
    predicted_s = model.latency_s(step.running_decodes, step.kv_tokens, step.prefill_tokens, step.done_tokens)
    return step.step_s + gap_s, predicted_s


def _by_prompt(steps: Iterable[StepSample]) -> dict[int, float]:
    """Seconds of the steps that computed a whole prompt, by its length."""
    found: dict[int, float] = {}
    seconds, done = 0.0, 0
    for step in steps:
        if not step.prefill_tokens:
            if done:
                found[done] = seconds
            seconds, done = 0.0, 0
            continue
        if step.done_tokens != done:
            found[done] = seconds
            seconds, done = 0.0, 0
        seconds, done = seconds + step.step_s, done + step.prefill_tokens
    if done:
        found[done] = seconds
    return found


def _first_decodes(steps: Iterable[StepSample]) -> dict[int, float]:
    """Seconds of the step that gave the first token after a pull, by the prompt's length."""
    found: dict[int, float] = {}
    held = -2
    for step in steps:
        if step.kv_tokens != held + 1:
            found[step.kv_tokens + 1] = step.step_s
        held = step.kv_tokens
    return found


def _left(whole_s: float, steps_s: Mapping[int, float], record: Mapping[str, Any]) -> float | None:
    step_s = steps_s.get(record["prompt_tokens"])
    return None if step_s is None else whole_s - step_s


def _median(values: Iterable[float | None]) -> float:
    return median(value for value in values if value is not None)


def _times(cost: PrefillCost | DecodeCost, factor: float) -> dict[str, float]:
    return {name: getattr(cost, name) * factor for name in cost.__dataclass_fields__}
