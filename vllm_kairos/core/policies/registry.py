"""Policies by the name users select them with."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.policies.always import Always
from vllm_kairos.core.policies.crossflow import Crossflow
from vllm_kairos.core.policies.dynamo_isl import DynamoIsl
from vllm_kairos.core.policies.dynamo_load import DynamoLoad
from vllm_kairos.core.policies.kairos import Kairos
from vllm_kairos.core.policies.llmd_noncached import LlmdNoncached
from vllm_kairos.core.policies.locals import SafeLocals
from vllm_kairos.core.policies.never import Never
from vllm_kairos.core.policies.oracle import Oracle
from vllm_kairos.core.policies.routing import Routing
from vllm_kairos.core.policies.static_length import StaticLength
from vllm_kairos.core.policies.static_queue import StaticQueue
from vllm_kairos.core.policy import ExplainingPolicy, Policy
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.errors import ConfigError

POLICIES_NEEDING_TRUTH = frozenset({"oracle"})
"""Those that decide on the cluster's true state: a simulator has it, a router does not."""

POLICIES_SPENDING_LEASES = frozenset({"crossflow"})
"""Those that deflect under leases of decode nodes."""

_ALIASES = {"predictive": "kairos", "threshold": "static-length"}

_Number = Callable[[str, str], float]


@dataclass(frozen=True, slots=True)
class _Entry:
    """How a spec is written and built: `usage` after the name, the numbers it may carry, how many it must."""

    build: Callable[..., ExplainingPolicy]
    usage: str = ""
    numbers: tuple[_Number, ...] = ()
    required: int = 0
    named: bool = False  # takes its spec as a name, since its numbers have defaults
    needs_models: bool = False


def make_policy(
    spec: str,
    *,
    prefill_model: StepLatencyModel | None,
    decode_model: StepLatencyModel | None,
    settings: DecisionSettings,
) -> ExplainingPolicy:
    """Build the policy that `spec` names. Raises ConfigError for an unknown one, or for `kairos` without models.

    Without models the policies that need none pick nodes by load and predict nothing. A policy of
    `POLICIES_NEEDING_TRUTH` must be given true states.
    """
    entry, numbers = _parse(spec)
    routing = Routing(settings, prefill_model, decode_model)
    if not entry.needs_models:
        return entry.build(routing, *([spec] if entry.named else []), *numbers)
    if prefill_model is None or decode_model is None:
        raise ConfigError(f"policy {spec!r} needs a latency profile, got none")
    return entry.build(routing, SafeLocals(decode_model, settings))


def spends_leases(policy: Policy) -> bool:
    """Whether decode nodes are to know a router with `policy`, and set a share of their leases aside for it."""
    return policy.name in POLICIES_SPENDING_LEASES


def check_spec(spec: str) -> None:
    """Raise the ConfigError that `make_policy` would raise for a spec that names no policy."""
    _parse(spec)


def router_spec(raw: str) -> str:
    """The spec of a policy for a router; `predictive` and `threshold:N` are other names for ours. ValueError with the rule."""
    name, colon, numbers = raw.partition(":")
    spec = f"{_ALIASES.get(name, name)}{colon}{numbers}"
    if spec in POLICIES_NEEDING_TRUTH:
        raise ValueError("must be a policy that works without the cluster's true state, which only the simulator has")
    try:
        check_spec(spec)
    except ConfigError:
        usable = [known for known in POLICY_SPECS if known not in POLICIES_NEEDING_TRUTH]
        raise ValueError(f"must be one of {', '.join(usable)}") from None
    return spec


def _parse(spec: str) -> tuple[_Entry, list[float]]:
    name, *arguments = spec.split(":")
    entry = _ENTRIES.get(name)
    if entry is None or len(arguments) > len(entry.numbers):
        raise ConfigError(f"policy must be one of {', '.join(POLICY_SPECS)}, got {spec!r}")
    if len(arguments) < entry.required:
        raise ConfigError(f"policy {name!r} must carry a number, as in '{name}{entry.usage}', got {spec!r}")
    return entry, [read(name, argument) for read, argument in zip(entry.numbers, arguments, strict=False)]


def _whole(name: str, argument: str) -> int:
    if not argument.isdecimal() or not argument.isascii():
        raise ConfigError(f"policy {name!r} must carry a whole number >= 0, as in '{name}:4', got {argument!r}")
    return int(argument)


def _fraction(name: str, argument: str) -> float:
    try:
        value = float(argument)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and value >= 0):
        raise ConfigError(f"policy {name!r} must carry a finite number >= 0, as in '0.7', got {argument!r}")
    return value


_ENTRIES = {
    "never": _Entry(Never),
    "always": _Entry(Always),
    "static-length": _Entry(StaticLength, ":TOKENS", (_whole,), required=1),
    "static-queue": _Entry(StaticQueue, ":REQUESTS", (_whole,), required=1),
    "dynamo-isl": _Entry(DynamoIsl, "[:TOKENS[:RATIO]]", (_whole, _fraction), named=True),
    "dynamo-load": _Entry(DynamoLoad, "[:FRACTION]", (_fraction,), named=True),
    "llmd-noncached": _Entry(LlmdNoncached, "[:TOKENS]", (_whole,), named=True),
    "kairos": _Entry(Kairos, needs_models=True),
    "crossflow": _Entry(Crossflow.of, needs_models=True),
    "oracle": _Entry(Oracle, needs_models=True),
}
POLICY_SPECS = tuple(f"{name}{entry.usage}" for name, entry in _ENTRIES.items())
