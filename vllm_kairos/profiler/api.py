"""One profiling run as a function: start the engine, sweep, fit, and return the profile with its report.

`measure` changes this process for good: it sets environment variables, may pin it to CPUs and
imports vLLM. A program that does other work runs `kairos profile` as a subprocess instead.
"""

import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from vllm_kairos.engine.compat_inprocess import EngineFacts, InprocessEngine
from vllm_kairos.errors import ProfileError
from vllm_kairos.fitting.artifact import Profile
from vllm_kairos.fitting.features import Sample
from vllm_kairos.profiler.hardware import cpu_name, model_fingerprint, usable_cpus
from vllm_kairos.profiler.options import ProfileOptions, engine_environment
from vllm_kairos.profiler.progress import progress_display
from vllm_kairos.profiler.recorder import Condensed, condense, configurations
from vllm_kairos.profiler.runner import SteppedEngine, SweepOutcome, run_sweep
from vllm_kairos.profiler.sweep import FULL, MINIMUM_CONFIGURATIONS, QUICK, limits_of, plan_sweep

QUICK_PASSES = 5
FULL_PASSES = 7
_WHOSE = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
_CLOSING_S = 6.0  # stopping the engine and fitting, taken off the time budget


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProfile:
    """A profile and how it came about."""

    profile: Profile
    outcome: SweepOutcome
    condensed: Condensed
    dropped: tuple[Sample, ...]  # configurations the fit left out as outliers
    elapsed_s: float
    cpu_share: float | None  # part of the run in which a CPU engine had its CPU; None: no CPU engine


def measure(
    options: ProfileOptions, *, progress_stream: TextIO, clock: Callable[[], float] = time.perf_counter
) -> MeasuredProfile:
    """Profile a real engine as `options` say.

    Raises ConfigError for options the engine refuses, ProfileError when it does not start, when time
    ran out before every model had enough configurations, or when the fit is refused.
    """
    started_s, used_s = clock(), cpu_time_s()
    os.environ.update(engine_environment(options, os.environ))
    if options.cpus is not None:
        os.sched_setaffinity(0, options.pinned_cpus())  # worker processes inherit it
    engine = InprocessEngine.build(options.engine_argv(), one_cpu=len(options.pinned_cpus()) == 1)
    try:
        outcome = sweep(engine, options, progress_stream, lambda: clock() - started_s)
    finally:
        engine.close()
    elapsed_s = clock() - started_s
    used_s = cpu_time_s() - used_s
    return conclude(outcome, engine.facts, options, elapsed_s, used_s / elapsed_s if engine.facts.device == "cpu" else None)


def sweep(
    engine: SteppedEngine, options: ProfileOptions, progress_stream: TextIO, elapsed_s: Callable[[], float]
) -> SweepOutcome:
    """Run the planned sweep on a started engine until its passes or the time budget end."""
    plan = plan_sweep(limits_of(engine.facts), QUICK if options.quick else FULL, options.chunk_candidates)
    with progress_display(progress_stream, options.budget_s, elapsed_s) as show:
        return run_sweep(
            engine,
            plan,
            passes=QUICK_PASSES if options.quick else FULL_PASSES,
            time_is_up=lambda: elapsed_s() > options.budget_s - _CLOSING_S,
            on_progress=show,
        )


def conclude(
    outcome: SweepOutcome, facts: EngineFacts, options: ProfileOptions, elapsed_s: float, cpu_share: float | None = None
) -> MeasuredProfile:
    """Fit the models to the configurations' medians and put the profile together."""
    from vllm_kairos.fitting.fit import fit  # numpy and scikit-learn

    condensed = condense(outcome.recorder.samples)
    require_enough(condensed.samples, options.budget_s)
    report = fit(condensed.samples)
    profile = Profile(
        hardware=hardware_of(facts),
        model=model_name(options.model),
        vllm_version=facts.vllm_version,
        engine_flags=engine_flags(options),
        kv_bytes_per_token=facts.kv_bytes_per_token,
        block_size_tokens=facts.block_size_tokens,
        token_budget_tokens=facts.token_budget_tokens,
        chunk_candidates_tokens=tuple(sorted(set(options.chunk_candidates), reverse=True)),
        period_overhead_s=report.period_overhead_s,
        fitted=report.fitted,
        accuracy=report.accuracy,
        note=f"dtype {facts.dtype}; model files {model_fingerprint(options.model) or 'not local'}",
    )
    return MeasuredProfile(
        profile=profile,
        outcome=outcome,
        condensed=condensed,
        dropped=report.dropped,
        elapsed_s=elapsed_s,
        cpu_share=cpu_share,
    )


def cpu_time_s() -> float:
    """CPU seconds this process and its ended children have used."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, _WHOSE))


def require_enough(samples: Sequence[Sample], budget_s: float) -> None:
    """Raise ProfileError naming every model that the sweep had no time to cover."""
    counts = configurations(samples)
    short = [
        f"{regime} ({counts[regime]} of {needed} configurations)"
        for regime, needed in MINIMUM_CONFIGURATIONS.items()
        if counts[regime] < needed
    ]
    if short:
        raise ProfileError(f"--time-budget-s must allow to measure every model, {budget_s:g} left out: {', '.join(short)}")


def hardware_of(facts: EngineFacts) -> str:
    """The device in words; for a CPU engine also how many CPUs it had."""
    if facts.device != "cpu":
        return facts.device_name
    return f"{cpu_name()}, {usable_cpus()} of {os.cpu_count()} CPUs"


def model_name(model: str) -> str:
    """A hub name as it is, a local folder by its last part: paths differ between machines."""
    return Path(model).resolve().name if Path(model).is_dir() else model


def engine_flags(options: ProfileOptions) -> tuple[str, ...]:
    """The engine's flags without the model, whose path says nothing elsewhere."""
    argv = options.engine_argv()
    return argv[argv.index("--model") + 2 :]
