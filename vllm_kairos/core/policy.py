"""The policy protocol; one file each in `policies/`."""

from collections.abc import Sequence
from typing import Protocol

from vllm_kairos.core.decision import Decision, Explanation
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.shapes import RequestShape


class Policy(Protocol):
    """Chooses where a request's prompt is computed; the order of `nodes` never changes the answer."""

    @property
    def name(self) -> str:
        """The name users select it by, as in `kairos`, `static-length:2048`."""

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` to nodes, or refuse it with a reason."""


class ExplainingPolicy(Policy, Protocol):
    """A policy that can also say what it made of every node."""

    def explain(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Explanation:
        """Decide as `decide` does, and give every node's verdict with it."""
