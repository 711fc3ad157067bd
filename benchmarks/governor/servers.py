"""How a contender's servers are started."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.governor.contenders import Contender
from benchmarks.governor.setting import Case
from vllm_kairos.cluster.spec import ClusterSpec, make_spec
from vllm_kairos.errors import ConfigError
from vllm_kairos.fitting.artifact import load_profile, save_profile
from vllm_kairos.profiles import resolve_profile

_MOST_SEQUENCES = 256  # of emulated servers; a budget must hold a token of each


def server_spec(case: Case, contender: Contender, folder: Path) -> ClusterSpec:
    """The servers, which log and record their steps below `folder`. Raises ConfigError or ProfileError.

    Steps are recorded in all of them; that alone leaves scheduling as stock vLLM's. With prefill nodes it is the decode
    node that is compared, so a fixed chunk is that of the router's deflections.
    """
    cluster = dict(case.load.cluster)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in cluster.items()}
    settings: dict[str, Any] = given | {"engine": _engine(case, contender, folder), "log_dir": str(folder)}
    if given.get("router", True):
        settings["profile"] = str(resolve_profile(case.profile).absolute())
        settings["router_args"] = (*case.load.router_args, *_router_args(case, contender))
    else:
        settings["vllm_args"] = (*given.get("vllm_args", ()), *_budget_args(contender, is_emulated="emulate" in cluster))
    try:
        return make_spec(settings)
    except TypeError as error:
        raise ConfigError(f"{case.name}: cluster: {error}") from None


def step_files(spec: ClusterSpec) -> list[Path]:
    """Where the servers that decode record their steps."""
    return [Path(f"{spec.engine['step_record']['file']}.d{index}") for index in range(spec.decode)]


def _engine(case: Case, contender: Contender, folder: Path) -> dict[str, Any]:
    profile = str(resolve_profile(case.profile).absolute())
    record = {"tbt_slo_s": case.slo_s, "profile": profile, "file": str(folder.absolute() / "steps.jsonl")}
    if contender.profile_factor is None:
        return {"step_record": record}
    if contender.is_scaled:
        profile = str(scaled_profile(Path(profile), contender.profile_factor, folder).absolute())
    return {"step_record": record, "governor": {**case.engine_objective, **case.governor, "profile": profile}}


def scaled_profile(path: Path, factor: float, folder: Path) -> Path:
    """Write a profile by which every step takes `factor` times what `path` says."""
    profile = load_profile(path)
    scaled = replace(profile, fitted=profile.fitted.scaled(factor), period_overhead_s=profile.period_overhead_s * factor)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"profile-x{factor:g}.json"
    save_profile(scaled, target)
    return target


def _budget_args(contender: Contender, *, is_emulated: bool) -> tuple[str, ...]:
    budget = contender.budget_tokens
    if budget is None:
        return ()
    fewer = ("--max-num-seqs", str(budget)) if is_emulated and budget < _MOST_SEQUENCES else ()
    return ("--max-num-batched-tokens", str(budget), *fewer)


def _router_args(case: Case, contender: Contender) -> tuple[str, ...]:
    chunk = contender.budget_tokens or load_profile(resolve_profile(case.profile)).token_budget_tokens
    slo = ("--ttft-slo-ms", f"{case.load.ttft_slo_ms:g}", "--tbt-slo-ms", f"{case.load.tbt_slo_ms:g}")
    return ("--deflect-static-chunk", str(chunk), *slo)
