"""Policies by the name users select them with."""

from collections.abc import Callable

from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.policies.always import Always
from vllm_kairos.core.policies.kairos import Kairos
from vllm_kairos.core.policies.locals import SafeLocals
from vllm_kairos.core.policies.never import Never
from vllm_kairos.core.policies.routing import Routing
from vllm_kairos.core.policies.static_length import StaticLength
from vllm_kairos.core.policies.static_queue import StaticQueue
from vllm_kairos.core.policy import ExplainingPolicy
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.errors import ConfigError

POLICY_SPECS = ("never", "always", "static-length:TOKENS", "static-queue:REQUESTS", "kairos")
_PLAIN: dict[str, Callable[[Routing], ExplainingPolicy]] = {"never": Never, "always": Always}
_WITH_NUMBER: dict[str, Callable[[Routing, int], ExplainingPolicy]] = {
    "static-length": StaticLength,
    "static-queue": StaticQueue,
}


def make_policy(
    spec: str,
    *,
    prefill_model: StepLatencyModel | None,
    decode_model: StepLatencyModel | None,
    settings: DecisionSettings,
) -> ExplainingPolicy:
    """Build the policy that `spec` names. Raises ConfigError for an unknown one, or for `kairos` without models.

    Without models the other policies pick nodes by load and predict nothing.
    """
    routing = Routing(settings, prefill_model, decode_model)
    name, separator, argument = spec.partition(":")
    if name in _PLAIN and not separator:
        return _PLAIN[name](routing)
    if name in _WITH_NUMBER:
        return _WITH_NUMBER[name](routing, _number(name, argument))
    if spec != "kairos":
        raise ConfigError(f"policy must be one of {', '.join(POLICY_SPECS)}, got {spec!r}")
    if prefill_model is None or decode_model is None:
        raise ConfigError("policy 'kairos' needs a latency profile, got none")
    return Kairos(routing, SafeLocals(decode_model, settings))


def _number(name: str, argument: str) -> int:
    if not argument.isdecimal() or not argument.isascii():
        raise ConfigError(f"policy {name!r} must carry a whole number >= 0, as in '{name}:4', got {argument!r}")
    return int(argument)
