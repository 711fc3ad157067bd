"""How one flag's text becomes a value; every parser raises ValueError saying the rule."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Parse = Callable[[str], Any]

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def text(raw: str) -> str:
    """Any non-empty text."""
    if not raw.strip():
        raise ValueError("must not be empty")
    return raw


def path(raw: str) -> Path:
    """A file system path, `~` expanded."""
    return Path(text(raw)).expanduser()


def switch(raw: str) -> bool:
    """true or false, as settings files and environment variables spell it."""
    if raw.lower() in _TRUE:
        return True
    if raw.lower() in _FALSE:
        return False
    raise ValueError("must be true or false")


def integer(minimum: int, maximum: int | None = None) -> Parse:
    """Parse a whole number within bounds."""
    rule = f"an integer >= {minimum}" if maximum is None else f"an integer from {minimum} to {maximum}"

    def parse(raw: str) -> int:
        try:
            value = int(raw)
        except ValueError:
            raise ValueError(f"must be {rule}") from None
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError(f"must be {rule}")
        return value

    return parse


def number(minimum: float, maximum: float = math.inf, *, above: bool = False) -> Parse:
    """Parse a finite number >= minimum (or > it, with `above`) and <= maximum."""
    rule = f"a finite number {'>' if above else '>='} {minimum:g}" + (f" and <= {maximum:g}" if maximum < math.inf else "")

    def parse(raw: str) -> float:
        try:
            value = float(raw)
        except ValueError:
            raise ValueError(f"must be {rule}") from None
        low = value > minimum if above else value >= minimum
        if not (low and value <= maximum and math.isfinite(value)):
            raise ValueError(f"must be {rule}")
        return value

    return parse


def choice(*allowed: str, refused: dict[str, str] | None = None) -> Parse:
    """Parse one of a few words; `refused` words are known elsewhere and get the reason."""

    def parse(raw: str) -> str:
        if raw in allowed:
            return raw
        reason = f" ({refused[raw]})" if refused and raw in refused else ""
        raise ValueError(f"must be one of {', '.join(allowed)}{reason}")

    return parse


def header_name(raw: str) -> str:
    """An HTTP header name, in lower case."""
    name = raw.lower()
    if not name or not name.replace("-", "").replace("_", "").isalnum():
        raise ValueError("must be a header name")
    return name


def route(raw: str) -> str:
    """An absolute URL path such as /health."""
    if not raw.startswith("/") or any(mark in raw for mark in "?#"):
        raise ValueError("must be a path that begins with /")
    return raw


def worker_url(raw: str) -> str:
    """Return `http(s)://host:port` with the port filled in and no trailing slash."""
    rule = "must be http://HOST:PORT or https://HOST:PORT without user, path or query"
    try:
        parts = urlsplit(raw)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # a name that cannot be looked up
    except ValueError:
        raise ValueError(rule) from None
    extra = parts.username or parts.password or parts.query or parts.fragment or parts.path not in ("", "/")
    if parts.scheme not in ("http", "https") or not host or extra or any(char.isspace() for char in raw):
        raise ValueError(rule)
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}:{port or (443 if parts.scheme == 'https' else 80)}"


def web_url(raw: str) -> str:
    """An http or https URL, path and query included."""
    rule = "must be an http:// or https:// URL without user or fragment"
    try:
        parts = urlsplit(raw)
        host = parts.hostname or ""
        host.encode("idna")
        parts.port  # noqa: B018 (raises for one that is no number)
    except ValueError:
        raise ValueError(rule) from None
    extra = parts.username or parts.password or parts.fragment
    if parts.scheme not in ("http", "https") or not host or extra or not raw.isprintable() or " " in raw:
        raise ValueError(rule)
    return raw


def traces_endpoint(raw: str) -> str:
    """An OTLP/HTTP collector as `HOST:PORT` or URL; the path that collectors serve is filled in."""
    url = web_url(raw if "://" in raw else f"http://{raw}")
    parts = urlsplit(url)
    if parts.port == _OTLP_GRPC_PORT:
        raise ValueError("must be the collector's OTLP/HTTP port (4318 where it was not changed), not its gRPC port")
    return url if parts.path not in ("", "/") else f"{url.rstrip('/')}/v1/traces"


_OTLP_GRPC_PORT = 4317


def prefill(raw: str) -> tuple[str, int | None]:
    """`URL [BOOTSTRAP|none]`, blank separated."""
    url, *rest = raw.split() or [""]
    if len(rest) > 1:
        raise ValueError("must be URL [BOOTSTRAP|none]")
    bootstrap = rest[0].lower() if rest else "none"
    return worker_url(url), None if bootstrap == "none" else integer(1, 65535)(bootstrap)


def is_endpoint(address: str) -> bool:
    """Say whether ZMQ can connect to `address`: tcp://HOST:PORT or ipc://PATH."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme == "tcp":
        return bool(host) and port.isdecimal() and port.isascii() and len(port) <= 5 and 1 <= int(port) <= 65535
    return scheme == "ipc" and bool(rest)


def state_endpoint(raw: str) -> tuple[str, str]:
    """`NODE=ADDR`, NODE being a server's name or URL, ADDR a ZMQ address."""
    node, _, address = raw.partition("=")
    if not node or not is_endpoint(address):
        raise ValueError("must be NODE=tcp://HOST:PORT or NODE=ipc://PATH")
    return worker_url(node) if "://" in node else node, address
