"""One frozen RouterConfig: what the flags, the environment and the settings file said, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kairos_router import flag_values
from vllm_kairos.errors import ConfigError

UNBOUNDED = 2**32 - 1
"""A breaker threshold that no count reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTarget:
    """One `--prefill`; the bootstrap port belongs to connectors other than NIXL and is kept for display."""

    url: str
    bootstrap_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """Bounded exponential backoff of one leg; `max_retries` counts the attempts after the first."""

    max_retries: int = 5
    initial_backoff_s: float = 0.05
    max_backoff_s: float = 30.0
    backoff_multiplier: float = 1.5
    jitter_factor: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """Circuit breaker of one worker."""

    failure_threshold: int = 10  # failures within the window that open it
    success_threshold: int = 3  # successes in a row that close it again
    open_s: float = 60.0  # how long it refuses before it lets a trial through
    window_s: float = 120.0  # failures older than this no longer count


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Health checks: at start-up, then every `interval_s`."""

    endpoint: str = "/health"
    interval_s: float = 60.0
    timeout_s: float = 5.0
    failure_threshold: int = 3
    success_threshold: int = 2
    startup_timeout_s: float = 600.0
    startup_check_interval_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Admission, body size and timeouts of a client's request."""

    max_concurrent_requests: int = 32768
    queue_size: int = 100
    queue_timeout_s: float = 60.0
    rate_limit_requests_per_s: float | None = None  # None: no rate limit
    max_payload_bytes: int = 512 * 1024 * 1024
    request_timeout_s: float = 1800.0
    drain_timeout_s: float = 30.0  # on SIGTERM: how long running streams may still take
    kv_lease_s: float = 30.0  # how long a prefill server keeps KV for the decode server
    kv_lease_margin_s: float = 2.0  # a handle older than lease minus margin is not used


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflectSettings:
    """How the decision is made; `alpha`, `beta` as in paper section 4."""

    policy: str = "kairos"
    alpha: float = 1.3
    beta: float = 0.9
    chunk_candidates_tokens: tuple[int, ...] = (2048, 1024, 512, 256, 128, 64)
    slot_share: float = 0.9
    per_node: int = 1
    static_chunk_tokens: int = 128
    unplanned_chunk_tokens: int = 512
    ttft_slo_s: float = 4.0
    tbt_slo_s: float = 0.070
    prefill_profile: Path | None = None
    decode_profile: Path | None = None
    prefill_unavailable: str = "deflect-bounded"
    default_bandwidth_bytes_per_s: float = 10e9
    prefill_policy: str = "kairos"  # choice among prefill nodes
    decode_policy: str = "kairos"  # choice among decode nodes
    force_local: bool = False  # honour x-bypass-remote-prefill and do_local_prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """Node-state feed; `endpoints` maps a worker's name or URL to its ZMQ addresses, one per rank."""

    endpoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    key_file: Path | None = None
    stale_after_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCheckSettings:
    """Who says whether a client's bearer key is good, and for how long that holds."""

    urls: tuple[str, ...] = ()  # none: the router checks no client's key
    accepted_ttl_s: float = 60.0
    refused_ttl_s: float = 10.0
    timeout_s: float = 5.0
    most_keys: int = 4096  # remembered of each kind


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Where log lines go; `directory` None means standard output."""

    level: str = "info"
    directory: Path | None = None
    access_log: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """How prompt tokens are counted where the client sent text."""

    tokenizer_dir: Path | None = None
    bytes_per_token: float = 4.0  # first guess; corrected from `usage`
    inline_characters: int = 4096  # longer prompts are counted in a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Everything `kairos router` was told."""

    prefill: tuple[PrefillTarget, ...]
    decode: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 30000
    prometheus_host: str = "127.0.0.1"
    prometheus_port: int = 29000
    request_id_headers: tuple[str, ...] = ("x-request-id", "x-correlation-id", "x-trace-id", "request-id")
    api_key: str | None = None  # sent to workers where the client sent no Authorization; guards the worker routes
    cors_allowed_origins: tuple[str, ...] = ()
    decision_headers: bool = False
    compat_metrics: bool = False
    traces_endpoint: str | None = None  # None: no request is traced
    retry: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()
    health: HealthSettings = HealthSettings()
    limits: LimitSettings = LimitSettings()
    deflect: DeflectSettings = DeflectSettings()
    feed: FeedSettings = FeedSettings()
    keys: KeyCheckSettings = KeyCheckSettings()
    log: LogSettings = LogSettings()
    tokens: TokenSettings = TokenSettings()


def build_config(values: Mapping[str, Any]) -> RouterConfig:
    """Build the config from parsed flag values (field name -> value, defaults filled in).

    Raises ConfigError where flags contradict each other; single values were checked when parsed.
    """
    prefill = (*values["prefill"], *(PrefillTarget(url=url) for url in _toy_urls(values, "prefiller", default_port=8100)))
    decode = (*values["decode"], *_toy_urls(values, "decoder", default_port=8200))
    _check_workers(prefill, decode)
    return RouterConfig(
        prefill=prefill,
        decode=decode,
        retry=_retry(values),
        breaker=_breaker(values),
        health=_health(values),
        limits=_limits(values),
        deflect=_deflect(values),
        feed=FeedSettings(
            endpoints=_endpoints(values["state_endpoint"]),
            key_file=values["state_key_file"],
            stale_after_s=values["state_stale_after_ms"] / 1e3,
        ),
        keys=KeyCheckSettings(urls=values["api_key_validation_urls"]),
        log=LogSettings(level=values["log_level"], directory=values["log_dir"], access_log=not values["disable_access_log"]),
        tokens=TokenSettings(tokenizer_dir=values["tokenizer"], bytes_per_token=values["bytes_per_token"]),
        traces_endpoint=values["otlp_traces_endpoint"] if values["enable_trace"] else None,
        **{name: values[name] for name in _PLAIN},
    )


_PLAIN = (
    "host",
    "port",
    "prometheus_host",
    "prometheus_port",
    "request_id_headers",
    "api_key",
    "cors_allowed_origins",
    "decision_headers",
    "compat_metrics",
)


def _toy_urls(values: Mapping[str, Any], who: str, *, default_port: int) -> tuple[str, ...]:
    hosts, ports = values[f"{who}_hosts"], values[f"{who}_ports"]
    if not hosts and not ports:
        return ()
    hosts = hosts or ("localhost",) * len(ports)
    ports = ports or (default_port,) * len(hosts)
    if len(hosts) != len(ports):
        raise ConfigError(f"--{who}-hosts and --{who}-ports must be equally many, got {len(hosts)} and {len(ports)}")
    return tuple(_toy_url(who, host, port) for host, port in zip(hosts, ports, strict=True))


def _toy_url(who: str, host: str, port: int) -> str:
    try:
        return flag_values.worker_url(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    except ValueError:
        raise ConfigError(f"--{who}-hosts must be host names or addresses, got {host!r}") from None


def _check_workers(prefill: tuple[PrefillTarget, ...], decode: tuple[str, ...]) -> None:
    if not prefill:
        raise ConfigError("--prefill must be given at least once, got none")
    if not decode:
        raise ConfigError("--decode must be given at least once, got none")
    urls = [*(target.url for target in prefill), *decode]
    for url in urls:
        if urls.count(url) > 1:
            raise ConfigError(f"--prefill and --decode must name each server once, got {url!r} {urls.count(url)} times")


def _retry(values: Mapping[str, Any]) -> RetrySettings:
    settings = RetrySettings(
        max_retries=0 if values["disable_retries"] else values["retry_max_retries"],
        initial_backoff_s=values["retry_initial_backoff_ms"] / 1e3,
        max_backoff_s=values["retry_max_backoff_ms"] / 1e3,
        backoff_multiplier=values["retry_backoff_multiplier"],
        jitter_factor=values["retry_jitter_factor"],
    )
    if settings.max_backoff_s < settings.initial_backoff_s:
        given = values["retry_max_backoff_ms"]
        raise ConfigError(f"--retry-max-backoff-ms must be >= --retry-initial-backoff-ms, got {given}")
    return settings


def _breaker(values: Mapping[str, Any]) -> BreakerSettings:
    return BreakerSettings(
        failure_threshold=UNBOUNDED if values["disable_circuit_breaker"] else values["cb_failure_threshold"],
        success_threshold=values["cb_success_threshold"],
        open_s=values["cb_timeout_duration_secs"],
        window_s=values["cb_window_duration_secs"],
    )


def _health(values: Mapping[str, Any]) -> HealthSettings:
    return HealthSettings(
        endpoint=values["health_check_endpoint"],
        interval_s=values["health_check_interval_secs"],
        timeout_s=values["health_check_timeout_secs"],
        failure_threshold=values["health_failure_threshold"],
        success_threshold=values["health_success_threshold"],
        startup_timeout_s=values["worker_startup_timeout_secs"],
        startup_check_interval_s=values["worker_startup_check_interval"],
    )


def _limits(values: Mapping[str, Any]) -> LimitSettings:
    if values["kv_lease_margin_secs"] >= values["kv_lease_secs"]:
        raise ConfigError(f"--kv-lease-margin-secs must be < --kv-lease-secs, got {values['kv_lease_margin_secs']:g}")
    return LimitSettings(
        max_concurrent_requests=values["max_concurrent_requests"],
        queue_size=values["queue_size"],
        queue_timeout_s=values["queue_timeout_secs"],
        rate_limit_requests_per_s=values["rate_limit_tokens_per_second"],
        max_payload_bytes=values["max_payload_size"],
        request_timeout_s=values["request_timeout_secs"],
        drain_timeout_s=values["drain_timeout_secs"],
        kv_lease_s=values["kv_lease_secs"],
        kv_lease_margin_s=values["kv_lease_margin_secs"],
    )


def _deflect(values: Mapping[str, Any]) -> DeflectSettings:
    prefill_profile = values["prefill_profile"] or values["profile"]
    decode_profile = values["decode_profile"] or values["profile"]
    policy = values["deflect_policy"] or ("kairos" if prefill_profile and decode_profile else "never")
    if policy in ("kairos", "crossflow") and not (prefill_profile and decode_profile):
        raise ConfigError(f"--profile must be given for --deflect-policy {policy}, got none")
    candidates: tuple[int, ...] = values["deflect_chunk_candidates"]
    return DeflectSettings(
        policy=policy,
        alpha=values["deflect_alpha"],
        beta=values["deflect_beta"],
        chunk_candidates_tokens=tuple(sorted(set(candidates), reverse=True)),
        slot_share=values["deflect_slot_share"],
        per_node=values["deflect_per_node"],
        static_chunk_tokens=values["deflect_static_chunk"],
        unplanned_chunk_tokens=values["deflect_unplanned_chunk"],
        ttft_slo_s=values["ttft_slo_ms"] / 1e3,
        tbt_slo_s=values["tbt_slo_ms"] / 1e3,
        prefill_profile=prefill_profile,
        decode_profile=decode_profile,
        prefill_unavailable=values["prefill_unavailable"],
        default_bandwidth_bytes_per_s=values["link_bandwidth_mb_per_sec"] * 1e6,
        prefill_policy=values["prefill_policy"] or values["policy"],
        decode_policy=values["decode_policy"] or values["policy"],
        force_local=values["allow_force_local"],
    )


def _endpoints(pairs: tuple[tuple[str, str], ...]) -> Mapping[str, tuple[str, ...]]:
    endpoints: dict[str, tuple[str, ...]] = {}
    for node, address in pairs:
        endpoints[node] = (*endpoints.get(node, ()), address)
    return endpoints
