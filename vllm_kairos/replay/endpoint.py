"""What is sent for one request: body and headers, pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from vllm_kairos.workload.request import TraceRequest

Kind = Literal["completions", "chat"]
Dialect = Literal["vllm", "openai"]
_UNSAFE = re.compile(r"[^\x21-\x7e]")  # what a header's value may not hold
DECISION_PREFIX = "x-kairos-"


class PromptMaker(Protocol):
    """Makes a request's prompt: token ids, or text."""

    def __call__(self, request: TraceRequest) -> list[int] | str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go and in which words."""

    url: str
    """Scheme, host and port, and a path where the API does not begin at /v1."""
    kind: Kind = "completions"
    model: str
    dialect: Dialect = "vllm"
    """`openai`: only what OpenAI's own API knows, so no output length can be enforced."""
    api_key: str = field(default="", repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    slo_headers: bool = True

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.kind == "chat" else "/v1/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request ready to be sent."""

    request: TraceRequest
    sent_id: str
    body: bytes
    headers: Mapping[str, str]


def prepared(request: TraceRequest, sent_id: str, endpoint: Endpoint, prompt: list[int] | str) -> Prepared:
    """The request in bytes, so that nothing is left to do when it is due."""
    body = msgspec.json.encode(_body(request, endpoint, prompt))
    return Prepared(request=request, sent_id=sent_id, body=body, headers=_headers(request, sent_id, endpoint))


def _body(request: TraceRequest, endpoint: Endpoint, prompt: list[int] | str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": endpoint.model}
    if endpoint.kind == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    limit = "max_completion_tokens" if endpoint.kind == "chat" and endpoint.dialect == "openai" else "max_tokens"
    body |= {limit: request.output_tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    if endpoint.dialect == "vllm":
        body["stream_options"]["continuous_usage_stats"] = True
        body |= {"ignore_eos": True, "min_tokens": request.output_tokens}
    return body | dict(endpoint.extra_body)


def _headers(request: TraceRequest, sent_id: str, endpoint: Endpoint) -> dict[str, str]:
    headers = {"content-type": "application/json", "accept-encoding": "identity", "x-request-id": sent_id}
    if endpoint.api_key:
        headers["authorization"] = f"Bearer {endpoint.api_key}"
    if request.session_id:
        headers["x-session-id"] = _UNSAFE.sub("-", request.session_id)
    if endpoint.slo_headers:
        headers |= _slo_headers(request)
    return headers


def _slo_headers(request: TraceRequest) -> dict[str, str]:
    tbt_slo_s = request.tbt_slo_s  # most routers know it by the name of the mean
    objectives = {"x-slo-ttft-ms": request.ttft_slo_s, "x-slo-tbt-ms": tbt_slo_s, "x-slo-tpot-ms": tbt_slo_s}
    return {name: f"{value_s * 1e3:.9g}" for name, value_s in objectives.items() if value_s is not None}


def decision_of(headers: Mapping[str, str]) -> dict[str, str]:
    """What a router that was asked to says about where the request went, by name without prefix, sorted."""
    lowered = ((name.lower(), value) for name, value in headers.items())
    return {name.removeprefix(DECISION_PREFIX): value for name, value in sorted(lowered) if name.startswith(DECISION_PREFIX)}
