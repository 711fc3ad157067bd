"""What became of leases, counted since boot, and the file in which the engine core tells the API server."""

from pathlib import Path
from typing import Any

import msgspec

from vllm_kairos.core.lease import LeaseGone, Turned
from vllm_kairos.engine.lease_settings import EngineLeaseSettings
from vllm_kairos.engine.shared_file import read_json, shared_path

NO_CAPACITY = "no-capacity"
"""Why a lease is taken back where a fresh look at the node finds nothing to grant."""


class LeaseCounts(msgspec.Struct, kw_only=True):
    """`refused` and `revoked` are by reason."""

    granted: int = 0  # epochs
    admitted: int = 0  # requests
    admitted_tokens: int = 0  # of their prompts
    refused: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(map(str, LeaseGone), 0))
    revoked: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys((*map(str, Turned), NO_CAPACITY), 0))


_DECODER = msgspec.json.Decoder(LeaseCounts)


def counts_path(vllm_config: Any, settings: EngineLeaseSettings, dp_rank: int) -> Path:
    """Where the counts of one data-parallel rank are."""
    return shared_path(vllm_config, "leases", settings.totals_file, dp_rank)


def read_counts(path: Path) -> LeaseCounts | None:
    """What the engine last wrote; None before it did, or where the file is not ours to trust."""
    return read_json(path, _DECODER)
