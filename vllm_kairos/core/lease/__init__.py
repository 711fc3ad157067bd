"""Leases: how much local prefill a decode node takes on for a short time, and who may spend it (Crossflow)."""

from vllm_kairos.core.lease.capacity import Load, capacity
from vllm_kairos.core.lease.ledger import LeaseLedger
from vllm_kairos.core.lease.lengths import OutputLengths
from vllm_kairos.core.lease.revocation import Turned, turned
from vllm_kairos.core.lease.settings import LONGEST_S, LeaseSettings
from vllm_kairos.core.lease.terms import NOTHING, Lease, LeaseGone, NodeLease, Share

__all__ = [
    "LONGEST_S",
    "NOTHING",
    "Lease",
    "LeaseGone",
    "LeaseLedger",
    "LeaseSettings",
    "Load",
    "NodeLease",
    "OutputLengths",
    "Share",
    "Turned",
    "capacity",
    "turned",
]
