"""EmulatedNixlConnector: vLLM's own NIXL scheduler side over transfers that move nothing.

The scheduler side is NixlPullConnectorScheduler itself, so requests go through the very states,
leases and `kv_transfer_params` of NIXL; only the worker side is ours. `"kv_connector":
"EmulatedNixlConnector"`, or `"KairosNixlConnector"` with `"kairos_inner": "EmulatedNixlConnector"`.
Read against vLLM 0.30-0.33.
"""

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from vllm import envs
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group, kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats
from vllm.logger import init_logger

from vllm_kairos.emulation.faults import FaultBoard
from vllm_kairos.emulation.leases import LeaseTable
from vllm_kairos.emulation.settings import EmulationSettings
from vllm_kairos.emulation.transfers import EndedPull, Peer, TransferService
from vllm_kairos.errors import ConfigError

NAME = "EmulatedNixlConnector"
_LEASE_S = 30  # as NIXL's scheduler side takes it when `kv_lease_duration` is not given

logger = init_logger("vllm.kairos.emulation")


@dataclass(frozen=True, slots=True)
class Setup:
    """What the worker side of a connector needs to know."""

    settings: EmulationSettings
    faults: FaultBoard
    bytes_per_token: int


_setups: list[Setup] = []  # that of the worker side in the making: vLLM's factory has no room for it


def make_worker_side(vllm_config: Any, kv_cache_config: Any, setup: Setup) -> None:
    """Make the connector's worker side this process's own; ConfigError for a connector that would move real KV.

    Seam: `kv_transfer_state._KV_CONNECTOR_AGENT`. vLLM's `ensure_kv_transfer_initialized` would ask the
    tensor-parallel group for the engine id, and there is no such group without a device.
    """
    transfer = vllm_config.kv_transfer_config
    names = {transfer.kv_connector, (transfer.kv_connector_extra_config or {}).get("kairos_inner")}
    if NAME not in names:
        raise ConfigError(f"kv_connector must be {NAME} on an emulated engine, or wrap it, got {transfer.kv_connector!r}")
    _setups.append(setup)
    try:
        kv_transfer_state._KV_CONNECTOR_AGENT = KVConnectorFactory.create_connector(
            config=vllm_config, role=KVConnectorRole.WORKER, kv_cache_config=kv_cache_config
        )
    finally:
        _setups.pop()


def await_news(timeout_s: float) -> None:
    """Return when a transfer ended, or after that time."""
    worker = getattr(get_kv_transfer_group(), "connector_worker", None) if has_kv_transfer_group() else None
    if isinstance(worker, EmulatedTransferWorker):
        worker.service.news.wait(timeout_s)
    else:
        time.sleep(timeout_s)


class EmulatedNixlConnector(NixlBaseConnector):
    """Seam: NixlBaseConnector forwards to `connector_scheduler` and `connector_worker`."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = NixlPullConnectorScheduler(vllm_config, self.engine_id, kv_cache_config)
        elif not _setups:
            raise ConfigError(f"{NAME} needs --distributed-executor-backend vllm_kairos.emulation.EmulatedExecutor")
        else:
            self.connector_worker = EmulatedTransferWorker(vllm_config, self.engine_id, _setups[-1])

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.connector_worker.start(self._connector_metadata)


class EmulatedTransferWorker:
    """The worker side: starts pulls, keeps leases, reports what ended. Driven once a step, as NIXL's."""

    use_host_buffer = False  # these two are read by NixlBaseConnector
    pcp_rank = 0

    def __init__(self, vllm_config: Any, engine_id: str, setup: Setup) -> None:
        transfer = vllm_config.kv_transfer_config
        lease_s = transfer.get_from_extra_config("kv_lease_duration", _LEASE_S)
        self._faults = setup.faults
        self._block_bytes = setup.bytes_per_token * vllm_config.cache_config.block_size
        self._leases = LeaseTable()
        self._pulls: dict[str, list[int]] = {}
        self._failed_blocks: set[int] = set()
        self._stats = NixlKVConnectorStats()
        self.service = TransferService(
            engine_id,
            self._leases,
            bandwidth_bytes_per_s=setup.settings.bandwidth_bytes_per_s,
            latency_s=setup.settings.latency_s,
            lease_extension_s=lease_s * 2 / 3,  # what a heartbeat adds in NIXL
        )
        if transfer.kv_role != "kv_consumer":
            rank = vllm_config.parallel_config.data_parallel_index
            self.service.listen(envs.VLLM_NIXL_SIDE_CHANNEL_HOST, envs.VLLM_NIXL_SIDE_CHANNEL_PORT + rank)

    def start(self, metadata: Any) -> None:
        """Begin what the scheduler side asks for. Seam: NixlConnectorMetadata's fields."""
        for request_id, meta in metadata.reqs_to_recv.items():
            self._start_pull(request_id, meta)
        self._leases.track(metadata.reqs_in_batch)
        self._leases.forget(metadata.reqs_not_processed)
        for request_id, until_s in metadata.reqs_to_send.items():  # same process, same clock
            self._leases.lease(request_id, 0.0 if self._faults.take_expiry() else until_s)
        for engine_id, beat in metadata.heartbeat_by_engine.items():
            self.service.heartbeat(Peer(str(beat.host), _port(beat.port), engine_id), sorted(map(str, beat.req_ids)))

    def get_transfer_results(self) -> Any:
        """What ended since the last step. Failed pulls are among the received ones, as vLLM wants it."""
        ended = [pull for pull in self.service.take_ended() if pull.request_id in self._pulls]
        failed = {pull.request_id for pull in ended if not self._settle(pull)}
        pulled, expired = self._leases.take_ended(time.perf_counter())
        for request_id in expired:
            logger.warning("The KV lease of request %s ended before its blocks were pulled", request_id)
            self._stats.record_kv_expired_req()
        received = {pull.request_id for pull in ended}
        return KVConnectorTransferResults(finished_sending=pulled | expired, finished_recving=received, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks of the pulls that failed since the last call."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def get_kv_connector_stats(self) -> Any:
        """Transfers and failures since the last call, under NIXL's own names; None when there were none."""
        return None if self._stats.is_empty() else self._stats.clone_and_reset()

    def shutdown(self) -> None:
        """Stop serving and pulling."""
        self.service.close()

    def _start_pull(self, request_id: str, meta: Any) -> None:
        """Seam: ReqMeta. Without blocks to fill there is nothing to pull, and the sender may free its own at once."""
        peer = Peer(str(meta.remote.host), _port(meta.remote.port), str(meta.remote.engine_id))
        blocks = [block for group in meta.local_block_ids for block in group]
        if not blocks:
            self.service.let_go(peer, meta.remote.request_id)
            return
        self._pulls[request_id] = blocks
        size_bytes = len(blocks) * self._block_bytes
        must_fail = self._faults.take_transfer_failure()
        self.service.pull(request_id, peer, meta.remote.request_id, size_bytes, must_fail=must_fail)

    def _settle(self, pull: EndedPull) -> bool:
        """Book the end of a pull; False when it failed."""
        blocks = self._pulls.pop(pull.request_id)
        if pull.failure is not None:
            logger.warning("The KV transfer of request %s failed: %s", pull.request_id, pull.failure)
            self._failed_blocks.update(blocks)
            self._stats.record_failed_transfer()
            return False
        transfer_us = pull.transfer_s * 1e6
        self._stats.record_transfer(
            SimpleNamespace(xferDuration=transfer_us, postDuration=0.0, totalBytes=pull.size_bytes, descCount=len(blocks))
        )
        return True


def _port(given: Any) -> int:
    """As a number; what is none comes from a request and fails its pull, not the engine: nobody listens at 0."""
    try:
        return int(given)
    except (OverflowError, TypeError, ValueError):
        return 0
