"""KairosNixlConnector: a KV connector of vLLM that leaves deflected requests alone.

`--kv-transfer-config '{"kv_connector": "KairosNixlConnector", ...}'` is vLLM's NIXL connector, every
method of it. With `"kv_connector_extra_config": {"kairos_inner": "NAME"}` it is the v1 connector
registered under NAME instead.
"""

from functools import cache
from typing import Any

from vllm_kairos.engine import compat
from vllm_kairos.engine.compat_nixl import own_cpus_only
from vllm_kairos.engine.deflection import adopt_schedule, is_deflected
from vllm_kairos.engine.ledger import TransferLedger
from vllm_kairos.errors import ConfigError, WireError
from vllm_kairos.wire.params import PARAMS_KEY

CONNECTOR_NAME = "KairosNixlConnector"
INNER_KEY = "kairos_inner"

logger = compat.init_logger("vllm.kairos.connector")


class DeflectionAware:
    """Mixed in before a v1 connector: no remote tokens, pulls or kept blocks for a deflected request.

    All it adds happens on the scheduler's side; everything else is inherited, so whatever vLLM asks
    of the wrapped connector reaches it unchanged.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with own_cpus_only():
            super().__init__(*args, **kwargs)

    @property
    def kairos_ledger(self) -> TransferLedger:
        """Pulls run and skipped by this connector."""
        ledger = self.__dict__.get("_kairos_ledger")
        if ledger is None:
            ledger = self.__dict__["_kairos_ledger"] = TransferLedger()
        return ledger

    def on_new_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        _take_in(request)
        return super().on_new_request(request, *args, **kwargs)  # type: ignore[misc]

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int, *args: Any, **kwargs: Any) -> Any:
        if not is_deflected(request):
            return super().get_num_new_matched_tokens(request, num_computed_tokens, *args, **kwargs)  # type: ignore[misc]
        state = compat.state_of(request)
        if not state.skip_counted:
            state.skip_counted = True
            self.kairos_ledger.skip(max(0, request.num_prompt_tokens - num_computed_tokens))
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int, *args: Any, **kwargs: Any) -> Any:
        if num_external_tokens > 0 and not is_deflected(request):
            peer = str((request.kv_transfer_params or {}).get("remote_engine_id", ""))
            self.kairos_ledger.start(request.request_id, peer, num_external_tokens)
        return super().update_state_after_alloc(request, blocks, num_external_tokens, *args, **kwargs)  # type: ignore[misc]

    def update_connector_output(self, connector_output: Any, *args: Any, **kwargs: Any) -> Any:
        finished = connector_output.finished_recving
        if finished:
            self.kairos_ledger.finish(finished, getattr(connector_output, "kv_connector_stats", None))
        return super().update_connector_output(connector_output, *args, **kwargs)  # type: ignore[misc]

    def request_finished(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.kairos_ledger.drop(request.request_id)
        return super().request_finished(request, *args, **kwargs)  # type: ignore[misc]

    def request_finished_all_groups(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.kairos_ledger.drop(request.request_id)
        return super().request_finished_all_groups(request, *args, **kwargs)  # type: ignore[misc]


def _take_in(request: Any) -> None:
    """Give a deflected request its state, and hide remote keys from the connector if it carries any.

    A schedule beside remote keys says to compute what the keys say to pull: the schedule counts, and
    the prefill node takes its blocks back when their lease ends.
    """
    if compat.state_of(request) is None:
        try:
            adopt_schedule(request)
        except WireError as error:
            logger.warning("Request %s runs without its chunk schedule: %s", request.request_id, error)
    if is_deflected(request) and len(request.kv_transfer_params) > 1:
        logger.warning("Request %s has a chunk schedule and remote keys: the keys are ignored.", request.request_id)
        request.kv_transfer_params = {PARAMS_KEY: request.kv_transfer_params[PARAMS_KEY]}


@cache
def deflection_aware(connector_class: Any) -> Any:
    """A subclass of a v1 connector class that leaves deflected requests alone."""
    return type(f"Kairos{connector_class.__name__}", (DeflectionAware, connector_class), {})


def _inner_class(extra_config: Any) -> Any:
    """The deflection-aware class that `kairos_inner` names, or None."""
    name = (extra_config or {}).get(INNER_KEY)
    if name is None:
        return None
    try:
        if name == CONNECTOR_NAME:
            raise ValueError("it cannot wrap itself")
        return deflection_aware(compat.connector_class(name))
    except (ValueError, ImportError) as error:
        raise ConfigError(f"kv_connector_extra_config.{INNER_KEY}: cannot use {name!r}: {error}") from error


class KairosNixlConnector(DeflectionAware, compat.NixlConnector):
    """NIXL's connector, or an instance of the one that `kairos_inner` names; see the module."""

    _inner_for_stats: Any = None  # vLLM builds stats from the class alone; one engine has one connector

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        inner = _inner_class(vllm_config.kv_transfer_config.kv_connector_extra_config)
        if inner is None:
            return super().__new__(cls)
        KairosNixlConnector._inner_for_stats = inner
        connector = inner(vllm_config, *args, **kwargs)
        groups = len(connector._kv_cache_config.kv_cache_groups) if connector._kv_cache_config else 1
        if groups > 1 and not issubclass(inner, compat.SupportsHMA):
            raise ConfigError(
                f"kv_connector_extra_config.{INNER_KEY}: {inner.__name__} cannot carry {groups} KV cache groups; "
                "add --disable-hybrid-kv-cache-manager"
            )
        return connector

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        inner = _inner_class(vllm_config.kv_transfer_config.kv_connector_extra_config)
        target: Any = inner or super()
        return target.get_required_kvcache_layout(vllm_config, *args, **kwargs)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: Any, *args: Any, **kwargs: Any) -> Any:
        target: Any = _inner_class(extra_config) or super()
        return target.requires_piecewise_for_cudagraph(extra_config, *args, **kwargs)

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        inner = cls._inner_for_stats = _inner_class(vllm_config.kv_transfer_config.kv_connector_extra_config)
        target: Any = inner or super()
        return target.build_prom_metrics(vllm_config, *args, **kwargs)

    @classmethod
    def build_kv_connector_stats(cls, *args: Any, **kwargs: Any) -> Any:
        target: Any = cls._inner_for_stats or super()
        return target.build_kv_connector_stats(*args, **kwargs)
