"""The story of the demo: profile, serve, the same load under each policy, answers, report."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_kairos.cluster import ClusterSpec, LocalCluster
from vllm_kairos.cluster.local import Report
from vllm_kairos.demo.answers import AnswerCheck, check_answers
from vllm_kairos.demo.client import Sample, send_load, send_one_by_one
from vllm_kairos.demo.counters import between, read_transfers
from vllm_kairos.demo.figures import Objectives, Transfers, decision_figures, latency_figures, transfer_figures
from vllm_kairos.demo.load import LoadSettings, make_load, one_by_one
from vllm_kairos.demo.progress import DemoProgress

PLAIN, DEFLECTING = "never", "kairos"
POLICIES = (PLAIN, DEFLECTING)
UNLOADED_REQUESTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """One demo: `repeats` runs of each policy, alternating."""

    load: LoadSettings
    objectives: Objectives = field(default_factory=Objectives)
    repeats: int = 1
    model: str | None = None
    check_answers: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """What one policy made of the load once."""

    policy: str
    repeat: int
    samples: tuple[Sample, ...]
    records: tuple[dict[str, Any], ...]
    transfers: Transfers

    def figures(self, objectives: Objectives) -> dict[str, Any]:
        """The run's part of the summary."""
        return (
            {"policy": self.policy, "repeat": self.repeat}
            | latency_figures(self.samples, objectives)
            | decision_figures(self.records)
            | transfer_figures(self.transfers)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Everything the reports are made of."""

    settings: DemoSettings
    unloaded: tuple[Sample, ...]
    runs: tuple[PolicyRun, ...]
    answers: AnswerCheck | None


async def run_demo(settings: DemoSettings, profile: Path, progress: DemoProgress) -> DemoResult:
    """Serve the load under each policy, then check answers on a float32 cluster. Raises KairosError."""
    flags = _objective_flags(settings)
    spec = ClusterSpec(model=settings.model, profile=str(profile), policy=PLAIN, router_args=flags)
    progress.step("starting a prefill and a decode server")
    async with LocalCluster(spec, report=progress.report) as cluster:
        progress.step(f"{UNLOADED_REQUESTS} requests one by one: the unloaded system")
        unloaded = await send_one_by_one(cluster.router_url, cluster.plan.served_model_name, _unloaded(settings))
        runs = [
            await _run_policy(cluster, settings, policy, repeat, progress)
            for repeat in range(settings.repeats)
            for policy in POLICIES
        ]
    answers = await _answers(settings, progress.report, progress) if settings.check_answers else None
    return DemoResult(settings=settings, unloaded=tuple(unloaded), runs=tuple(runs), answers=answers)


async def _run_policy(
    cluster: LocalCluster, settings: DemoSettings, policy: str, repeat: int, progress: DemoProgress
) -> PolicyRun:
    """Restart the router alone, so that both policies meet the same servers."""
    cluster.stop_router()
    log_dir = cluster.log_dir / f"{policy}-{repeat}"
    await cluster.start_router(policy, log_dir=log_dir)
    load = make_load(settings.load, run=_run_number(policy, repeat))
    decode_urls = [server.url for server in cluster.plan.decode]
    before = await read_transfers(decode_urls, cluster.router_url)
    with progress.load(f"policy {policy}, run {repeat + 1} of {settings.repeats}", len(load)) as done:
        samples = await send_load(cluster.router_url, cluster.plan.served_model_name, load, done=done)
    after = await read_transfers(decode_urls, cluster.router_url)
    return PolicyRun(
        policy=policy,
        repeat=repeat,
        samples=tuple(samples),
        records=tuple(_access_records(log_dir / "access.jsonl")),
        transfers=between(before, after),
    )


async def _answers(settings: DemoSettings, report: Report, progress: DemoProgress) -> AnswerCheck:
    progress.step("the same prompts every way, in float32, for equal answers")
    spec = ClusterSpec(model=settings.model, dtype="float32", policy=PLAIN)
    async with LocalCluster(spec, report=report) as cluster:
        return await check_answers(
            prefill_url=cluster.plan.prefill[0].url,
            decode_url=cluster.plan.decode[0].url,
            router_url=cluster.router_url,
            model=cluster.plan.served_model_name,
        )


def _unloaded(settings: DemoSettings) -> Sequence[Any]:
    return one_by_one(make_load(settings.load, run=-1), UNLOADED_REQUESTS)


def _run_number(policy: str, repeat: int) -> int:
    return repeat * len(POLICIES) + POLICIES.index(policy)


def _objective_flags(settings: DemoSettings) -> tuple[str, ...]:
    objectives = settings.objectives
    return ("--ttft-slo-ms", f"{objectives.ttft_s * 1e3:g}", "--tbt-slo-ms", f"{objectives.tbt_s * 1e3:g}")


def _access_records(path: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if record.get("endpoint") == "/v1/completions"]


def load_description(settings: DemoSettings) -> dict[str, Any]:
    """The load's settings and what came of them, for the summary."""
    load = make_load(settings.load, run=0)
    tokens = [len(request.prompt) for request in load]
    return asdict(settings.load) | {
        "requests": len(load),
        "prompt_tokens": sum(tokens),
        "output_tokens": sum(request.output_tokens for request in load),
        "lengths": "Azure LLM inference trace 2023, code, scaled",
    }
