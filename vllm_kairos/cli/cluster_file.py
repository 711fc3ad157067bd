"""The cluster file that `kairos decide` reads: every node's state as a person would write it down.

Its schema is documented in docs/cluster-file.md.
"""

import re
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from vllm_kairos.core.lease.terms import NodeLease, Share
from vllm_kairos.core.node import LinkState, NodeState, Role
from vllm_kairos.errors import ConfigError, StateError
from vllm_kairos.fitting.artifact import Profile
from vllm_kairos.input_file import read_input

_MOST = 2**63 - 1  # as node states carry them; far larger ones are no float
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Bandwidth = Annotated[float, msgspec.Meta(gt=0, le=1e18)]


class _Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefill_node: str
    bandwidth_bytes_per_s: _Bandwidth | None = None
    latency_s: _Seconds = 0.0
    queued_bytes: _Count = 0


class _Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefill_tokens: _Count
    kv_blocks: _Count
    output_tokens: _Count


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node_id: Annotated[str, msgspec.Meta(min_length=1)]
    role: Literal["prefill", "decode", "both"]
    running_decodes: _Count = 0
    kv_tokens: _Count = 0
    queued_prompt_tokens: list[_Positive] = []
    token_budget_tokens: _Positive | None = None
    max_running_requests: _Positive = 256
    total_kv_blocks: _Count | None = None
    free_kv_blocks: _Count | None = None
    block_size_tokens: _Positive | None = None
    kv_bytes_per_token: _Count | None = None
    remote_kv_requests: _Count = 0
    remote_kv_tokens: _Count = 0
    deflected_prefills: _Count = 0
    speaks_leases: bool = False
    lease: _Lease | None = None
    links: list[_Link] = []
    accepting: bool = True
    stale: bool = False
    age_s: _Seconds = 0.0


class _ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal[1]
    nodes: Annotated[list[_Node], msgspec.Meta(min_length=1)]


def load_cluster(path: str | Path, profile: Profile) -> tuple[NodeState, ...]:
    """Read the nodes of a cluster file (YAML or JSON) as they stand at time 0; `profile` fills what they leave out.

    Raises ConfigError naming the file, the field, the rule and the value.
    """
    try:
        raw = yaml.safe_load(read_input(path))
    except OSError as error:
        raise ConfigError(f"cluster file {path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or number that cannot be
        raise ConfigError(f"cluster file {path}: must be YAML or JSON: {error}") from error
    try:
        # Not strict: YAML 1.1 reads 2e10 as text.
        document = msgspec.convert(raw, _ClusterFile, strict=False)
        states = tuple(_state(node, profile) for node in document.nodes)
    except msgspec.ValidationError as error:
        raise ConfigError(f"cluster file {path}: {error}{_value_at(str(error), raw)}") from error
    except StateError as error:
        raise ConfigError(f"cluster file {path}: {error}") from error
    _check_names(path, [state.node_id for state in states])
    return states


def _value_at(complaint: str, raw: Any) -> str:
    """The value that a complaint of msgspec is about: it names the place alone, as in `$.nodes[0].role`."""
    _, _, place = complaint.partition("`$")
    try:
        for key, index in _STEP.findall(place):
            raw = raw[int(index)] if index else raw[key]
    except (LookupError, TypeError):
        return ""
    return "" if isinstance(raw, dict | list) else f", got {raw!r}"


_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def _check_names(path: str | Path, names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"cluster file {path}: node_id must be unique, got {repeated[0]!r} more than once")


def _state(node: _Node, profile: Profile) -> NodeState:
    role = Role(node.role)
    total = node.total_kv_blocks
    if role.decodes and total is None:
        raise StateError(f"node {node.node_id!r}: total_kv_blocks is required of a node that decodes, got nothing")
    total = total or 0
    return NodeState(
        node_id=node.node_id,
        role=role,
        running_decodes=node.running_decodes,
        kv_tokens=node.kv_tokens,
        queued_prompt_tokens=tuple(node.queued_prompt_tokens),
        queued_prefill_tokens=sum(node.queued_prompt_tokens),
        token_budget_tokens=node.token_budget_tokens or profile.token_budget_tokens,
        max_running_requests=node.max_running_requests,
        block_size_tokens=node.block_size_tokens or profile.block_size_tokens,
        total_kv_blocks=total,
        free_kv_blocks=total if node.free_kv_blocks is None else node.free_kv_blocks,
        kv_bytes_per_token=profile.kv_bytes_per_token if node.kv_bytes_per_token is None else node.kv_bytes_per_token,
        remote_kv_requests=node.remote_kv_requests,
        remote_kv_tokens=node.remote_kv_tokens,
        deflected_prefills=node.deflected_prefills,
        lease=None if node.lease is None else _lease(node.lease),
        speaks_leases=node.speaks_leases or node.lease is not None,
        links=tuple(
            LinkState(
                prefill_node=link.prefill_node,
                bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                latency_s=link.latency_s,
                queued_bytes=link.queued_bytes,
            )
            for link in node.links
        ),
        accepting=node.accepting,
        stale=node.stale,
        observed_at_s=-node.age_s,
    )


def _lease(lease: _Lease) -> NodeLease:
    return NodeLease("offline", Share(lease.prefill_tokens, lease.kv_blocks, lease.output_tokens), until_s=inf)
