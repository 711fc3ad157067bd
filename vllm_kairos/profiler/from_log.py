"""A profile from what engines took in production: the files of the step recorder, without an engine of our own."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from statistics import fmean, median
from typing import Any

from vllm_kairos.core.regime import Regime
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import ProfileError
from vllm_kairos.fitting.artifact import Accuracy, Profile, load_profile
from vllm_kairos.fitting.features import Sample, regime_of
from vllm_kairos.profiler.log_shapes import ShapeTable, require_span
from vllm_kairos.profiler.options import DEFAULT_CHUNK_CANDIDATES, LogOptions
from vllm_kairos.profiles import resolve_profile
from vllm_kairos.steps.step_file import FileHeader, StepLine, read_steps

SOURCE = "steps recorded in production, fitted by kairos profile --from-log; what passes between two steps is part of each"


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """How far another profile is off what was recorded."""

    name: str
    accuracy: Mapping[str, Accuracy]
    ratios: Mapping[str, float]
    """By model: the median of actual by predicted time; above 1 it predicts too little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLog:
    """A profile and what it was fitted to."""

    profile: Profile
    nodes: tuple[str, ...]
    steps: Mapping[Regime, int]
    shapes: Mapping[Regime, int]
    dropped: tuple[Sample, ...]  # shapes that the fit left out as outliers
    previous: Previous | None
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Log:
    """All files together."""

    headers: list[FileHeader]
    table: ShapeTable
    first_s: float = float("inf")  # Unix time, of steps
    last_s: float = 0.0

    def add(self, header: FileHeader, line: StepLine) -> None:
        if not self.headers or self.headers[-1] is not header:
            self.headers.append(header)
        at_s = header.started_at_s + line.at
        self.first_s, self.last_s = min(self.first_s, at_s), max(self.last_s, at_s)
        batch = BatchShape(running_decodes=line.B, kv_tokens=line.K, prefill_tokens=line.n, done_tokens=line.p)
        self.table.add(batch, line.took, line.work)


def fit_log(options: LogOptions) -> FittedLog:
    """Fit the models to the steps in `options.files`.

    Raises ConfigError for a file that is not one of steps, ProfileError where the steps do not give a profile: they are of
    several models, do not span what the models need, or nothing says what they ran on.
    """
    from vllm_kairos.fitting.fit import fit  # numpy and scikit-learn

    log = _read(options.files)
    like, notes = _like(options, log.headers)
    facts = _facts(log.headers, like, options)
    samples = log.table.samples()
    require_span(samples, log.table.steps)
    report = fit(samples)
    dropped = {sample.configuration for sample in report.dropped}
    kept = [sample for sample in samples if sample.configuration not in dropped]
    nodes = tuple(sorted({_node_name(header) for header in log.headers}))
    return FittedLog(
        profile=Profile(
            **facts,
            period_overhead_s=0.0,
            fitted=report.fitted,
            accuracy=report.accuracy,
            note=f"{sum(log.table.steps.values())} steps of {', '.join(nodes)}, {_utc(log.first_s)} to {_utc(log.last_s)}",
            source=SOURCE,
            kv_capacity_tokens=like.kv_capacity_tokens if like else 0,
        ),
        nodes=nodes,
        steps=log.table.steps,
        shapes={regime: len(rows) for regime, rows in _by_regime(samples).items()},
        dropped=report.dropped,
        previous=_compared(options.like or log.headers[-1].profile, like, kept) if like else None,
        notes=notes,
    )


def _read(files: Sequence[Path]) -> _Log:
    log = _Log([], ShapeTable())
    for path in files:
        for header, line in read_steps(path):
            log.add(header, line)
    if not log.headers:
        raise ProfileError(f"--from-log must name files with steps, got none in {', '.join(map(str, files))}")
    for name in ("model", "hardware"):
        found = sorted({getattr(header, name) for header in log.headers} - {""})
        if len(found) > 1:
            raise ProfileError(f"recorded steps: {name} must be the same in all files, got {', '.join(map(repr, found))}")
    return log


def _like(options: LogOptions, headers: Sequence[FileHeader]) -> tuple[Profile | None, tuple[str, ...]]:
    """The profile that was asked for, else the one that predicted the steps, where it can be read here."""
    if options.like is not None:
        return load_profile(resolve_profile(options.like)), ()
    recorded = headers[-1].profile
    if not recorded:
        return None, ()
    try:
        return load_profile(resolve_profile(recorded)), ()
    except ProfileError as error:
        return None, (f"the profile that predicted these steps is not at hand: {error}",)


def _facts(headers: Sequence[FileHeader], like: Profile | None, options: LogOptions) -> dict[str, Any]:
    """What the steps ran on: as recorded, else as in `like`."""
    last = headers[-1]
    recorded: dict[str, Any] = {
        "hardware": last.hardware,
        "vllm_version": last.vllm_version,
        "block_size_tokens": last.block_size_tokens,
        "token_budget_tokens": max(header.token_budget_tokens for header in headers),
        "kv_bytes_per_token": last.kv_bytes_per_token,
    }
    facts = {name: value or (getattr(like, name) if like else None) for name, value in recorded.items()}
    unknown = [name for name, value in facts.items() if value is None]
    if unknown:
        raise ProfileError(f"--like must name a profile that says what these files do not: {', '.join(unknown)}, got none")
    candidates = options.chunk_candidates or (like.chunk_candidates_tokens if like else DEFAULT_CHUNK_CANDIDATES)
    return facts | {
        "model": options.model or _model_name(last.model),
        "engine_flags": like.engine_flags if like else (),
        "chunk_candidates_tokens": tuple(sorted(set(candidates), reverse=True)),
    }


def _model_name(model: str) -> str:
    """A hub name as it is, a folder by its last part: paths differ between machines."""
    return PurePath(model).name if model.startswith(("/", ".")) else model


def _compared(name: str, profile: Profile, samples: Sequence[Sample]) -> Previous:
    model, accuracy, ratios = profile.step_model, {}, {}
    for regime, rows in _by_regime(samples).items():
        found = [row.step_s / max(row.predicted_s(model), 1e-12) for row in rows]
        errors = [abs(1 / ratio - 1) for ratio in found]
        accuracy[str(regime)] = Accuracy(mape=fmean(errors), worst_error=max(errors), configurations=len(rows))
        ratios[str(regime)] = median(found)
    return Previous(name=name, accuracy=accuracy, ratios=ratios)


def _by_regime(samples: Sequence[Sample]) -> dict[Regime, list[Sample]]:
    return {regime: [sample for sample in samples if regime_of(sample.batch) is regime] for regime in Regime}


def _node_name(header: FileHeader) -> str:
    return f"{header.node_id}/dp{header.dp_rank}" if header.dp_rank else header.node_id


def _utc(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))
