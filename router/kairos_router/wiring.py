"""Checks that servers fit together, pure: role, model, block size, profile. Each answer is one line or ""."""

from collections.abc import Iterable

from kairos_router.discovery import NodeFacts
from kairos_router.registry import Worker, default_name


def role_fault(worker: Worker, facts: NodeFacts) -> str:
    """A server started for one phase must not be given as the other."""
    if facts.role is None:
        return ""
    fits = facts.role.prefills if worker.role.prefills else facts.role.decodes
    return "" if fits else f"--{worker.role} {worker.url} must be a {worker.role} server, got role {str(facts.role)!r}"


def model_fault(worker: Worker, facts: NodeFacts, expected: Iterable[str]) -> str:
    """All servers must serve the same model."""
    wanted = frozenset(expected)
    if not wanted or not facts.models or same_model(wanted, facts.models):
        return ""
    return f"{worker.url} must serve model {_shown(wanted)}, got {_shown(facts.models)}"


def block_size_fault(worker: Worker, facts: NodeFacts, other: Worker, other_facts: NodeFacts) -> str:
    """A decode server can only pull KV laid out in blocks of its own size."""
    mine, theirs = facts.block_size_tokens, other_facts.block_size_tokens
    if worker.role is other.role or mine is None or theirs is None or mine == theirs:
        return ""
    return f"{worker.url} must have block size {theirs} like {other.url}, got {mine}"


def endpoint_fault(given: Iterable[str], workers: Iterable[Worker]) -> str:
    """A state address for a server that is not there would leave another one without its state, unseen."""
    workers = tuple(workers)
    known = {name for worker in workers for name in endpoint_names(worker)}
    unknown = sorted(set(given) - known)
    names = ", ".join(sorted(worker.name for worker in workers))
    return f"--state-endpoint must name a server by its name or URL ({names}), got {unknown[0]!r}" if unknown else ""


def endpoint_names(worker: Worker) -> tuple[str, ...]:
    """What a --state-endpoint may call a server: its own name, its URL, or host:port."""
    return worker.name, worker.url, default_name(worker.url)


def profile_fault(flag: str, profile_model: str, facts: NodeFacts) -> str:
    """A profile prices the model that it was measured on, no other."""
    if not facts.models or not profile_model or same_model((profile_model,), facts.models):
        return ""
    return f"{flag} must be a profile of model {_shown(facts.models)}, got a profile of {profile_model!r}"


def same_model(some: Iterable[str], others: Iterable[str]) -> bool:
    """Two sets of names share a model; a path and a hub name are the same when their last parts are."""
    return not {_last_part(name) for name in some}.isdisjoint(_last_part(name) for name in others)


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _shown(names: Iterable[str]) -> str:
    return " or ".join(repr(name) for name in sorted(names))
