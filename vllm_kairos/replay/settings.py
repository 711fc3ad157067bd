"""What `kairos replay` was asked for, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from vllm_kairos.errors import ConfigError
from vllm_kairos.replay.endpoint import Dialect, Kind
from vllm_kairos.replay.figures import Objectives
from vllm_kairos.replay.prompts import Vocabulary
from vllm_kairos.replay.words import Aim


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Which requests, and when. Raises ConfigError naming the flag, the rule and the value."""

    trace: Path | None = None
    format: str = "auto"
    workload: str | None = None
    requests: int = 100
    scv: float | None = None
    slice_s: tuple[float, float] | None = None
    limit: int | None = None
    max_prompt_tokens: int | None = None
    drop_longer: bool = False
    spread_s: float = 0.0
    max_gap_s: float | None = None
    speed: float = 1.0
    rate: float | None = None
    ramp_s: float = 0.0
    closed_loop: bool = True
    ttft_slo_ms: float | None = None
    tbt_slo_ms: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.trace is None) == (self.workload is None):
            got = "neither" if self.trace is None else "both"
            raise ConfigError(f"the load must be given as --trace FILE or as --workload NAME, got {got}")
        for name in ("requests", "limit", "max_prompt_tokens"):
            _require(name, getattr(self, name), least=1)
        for name in ("speed", "rate", "ttft_slo_ms", "tbt_slo_ms"):
            _require(name, getattr(self, name), above=0.0)
        for name in ("ramp_s", "spread_s", "max_gap_s"):
            _require(name, getattr(self, name), least=0.0)
        if self.rate is not None and self.speed != 1:
            raise ConfigError(f"--speed must be left out where --rate sets the pace, got {self.speed:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """One replay. Raises ConfigError naming the flag, the rule and the value."""

    load: LoadSettings
    url: str
    kind: Kind = "completions"
    model: str | None = None
    dialect: Dialect = "vllm"
    api_key: str = field(default="", repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    slo_headers: bool = True
    prompts: Literal["tokens", "text"] = "tokens"
    """How completions get their prompts; chat takes text alone."""
    aim: Aim = "total"
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    timeout_s: float | None = 600.0
    objectives: Objectives = field(default_factory=lambda: Objectives(ttft_s=4.0, tbt_s=0.07))
    warn_lag_s: float = 0.01

    @property
    def as_text(self) -> bool:
        """Prompts are sent as text."""
        return self.kind == "chat" or self.prompts == "text"

    def __post_init__(self) -> None:
        _check_url(self.url)
        if not self.api_key.isascii() or not self.api_key.isprintable():
            raise ConfigError("--api-key must be printable ASCII, as a header's value is, got another one")
        if self.model is not None and not _is_unicode(self.model):
            raise ConfigError(f"--model must be UTF-8, got {self.model!r}")
        _require("timeout_s", self.timeout_s, above=0.0)
        _require("warn_lag_ms", self.warn_lag_s * 1e3, least=0.0)


def _check_url(url: str) -> None:
    """Refuse what no request can be sent to. Raises ConfigError; one that may hold a password is not shown."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url must begin with http:// or https://, got {url!r}")
    if "@" in url.partition("://")[2].partition("/")[0]:  # results.json names the URL
        raise ConfigError("--url must hold no user and password; --api-key takes a bearer key")
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")  # a name that cannot be looked up
        usable = parts.port != 0 and not parts.query and not parts.fragment and url.isprintable() and " " not in url
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"--url must be http(s)://HOST[:PORT][/PATH] without query or fragment, got {url!r}")
    if not parts.hostname:
        raise ConfigError(f"--url must name a host, got {url!r}")


def _is_unicode(text: str) -> bool:
    """Say whether JSON can hold it: arguments of a process may be any bytes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def read_slice(text: str) -> tuple[float, float]:
    """Read `START:END` in seconds of the trace; either may be left out. Raises ConfigError."""
    start, colon, end = text.partition(":")
    try:
        span = (float(start or 0), float(end or inf))
    except ValueError:
        span = (-1.0, -1.0)
    if not colon or not 0 <= span[0] < span[1]:
        raise ConfigError(f"--slice must be START:END in seconds, 0 <= START < END, got {text!r}")
    return span


def _require(name: str, value: float | None, *, least: float = -inf, above: float = -inf) -> None:
    if value is None or (value >= least and above < value < inf):
        return
    whole = isinstance(value, int)
    bound = f">= {least:g}" if least > -inf else f"> {above:g}"
    rule = bound if whole else f"a finite number {bound}"
    raise ConfigError(f"--{name.replace('_', '-')} must be {rule}, got {value if whole else f'{value:g}'}")
