"""Request and answer bodies, pure: parse once, build each leg's body, read what comes back.

The decode leg is the client's own bytes with `kv_transfer_params` appended, so nothing is lost to
re-encoding; the prefill leg is a changed copy of the parsed body.
"""

import json
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from vllm_kairos.core.chunking import ChunkSchedule
from vllm_kairos.errors import RequestError
from vllm_kairos.wire import params
from vllm_kairos.wire.body import read_as_servers_do
from vllm_kairos.wire.objectives import XARGS_KEY

KV_KEY = "kv_transfer_params"
_FORBIDDEN_KEYS = frozenset({KV_KEY, params.PARAMS_KEY, "do_local_prefill"})
# vLLM merges these objects into the sampling parameters' extra_args, where kv_transfer_params is read.
_NESTED_KEYS = frozenset({XARGS_KEY, "extra_args", "sampling_params"})

_PREFILL_PARAMS: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_CONSTRAINT_KEYS = frozenset(
    {"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)
_ANSWER_ONLY_KEYS = frozenset(
    {
        "stream_options",
        "min_completion_tokens",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "return_token_offsets",
        "return_prompt_text",
        "echo",
    }
)
_NOT_TO_PREFILL = _FORBIDDEN_KEYS | _CONSTRAINT_KEYS | _ANSWER_ONLY_KEYS
# Kimi K3's chat template renders tool_choice and response_format into the prompt.
_CONSTRAINT_SHAPES_PROMPT = re.compile(r"kimi[-_]?k3", re.IGNORECASE)
_DEFAULT_OUTPUT_TOKENS = 16


class Endpoint(StrEnum):
    """The endpoints that may take two legs."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


class ParsedRequest(msgspec.Struct, frozen=True):
    """One client request; `body` is for reading only."""

    endpoint: Endpoint
    raw: bytes
    body: Mapping[str, Any]
    clean: bool  # the raw bytes carry no key that a client may not set
    two_leg_obstacle: str  # what keeps it off the two-leg path, "" when nothing does
    constrained: bool  # it asks for an output constraint, which the prefill leg lacks

    @property
    def model(self) -> str:
        model = self.body.get("model")
        return model if isinstance(model, str) else ""

    @property
    def wants_local(self) -> bool:
        """The client asked for a local prefill (honoured only when the operator allows it)."""
        return self.body.get("do_local_prefill") is True

    @property
    def max_output_tokens(self) -> int:
        for key in ("max_completion_tokens", "max_tokens"):
            limit = self.body.get(key)
            if isinstance(limit, int) and limit >= 1:
                return limit
        return _DEFAULT_OUTPUT_TOKENS


def parse(endpoint: Endpoint, raw: bytes) -> ParsedRequest:
    """Parse the client's bytes. Raises RequestError unless they hold one JSON object."""
    body = parse_object(raw)
    return ParsedRequest(
        endpoint=endpoint,
        raw=raw,
        body=body,
        clean=not _forbidden_paths(body),
        two_leg_obstacle=_obstacle(body),
        constrained=_constrained(body),
    )


def parse_object(raw: bytes) -> dict[str, Any]:
    """Decode one JSON object. Raises RequestError that says where the bytes are not one."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"request body must be JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError(f"request body must be a JSON object, got {type(body).__name__}")
    return body


def with_xargs(request: ParsedRequest, xargs: Mapping[str, float]) -> ParsedRequest:
    """The request with `xargs` among its `vllm_xargs`, of which the client's own stay as they are."""
    raw, body = _with_xargs(request.raw, request.body, xargs)
    return msgspec.structs.replace(request, raw=raw, body=body)


def body_with_xargs(raw: bytes, xargs: Mapping[str, float]) -> bytes:
    """The same for a body that is passed through; bytes that are not one JSON object stay as they are."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return raw
    return _with_xargs(raw, body, xargs)[0] if isinstance(body, dict) else raw


def _with_xargs(raw: bytes, body: Mapping[str, Any], xargs: Mapping[str, float]) -> tuple[bytes, Mapping[str, Any]]:
    given = body.get(XARGS_KEY)
    if given is None and XARGS_KEY not in body:
        return _appended(raw, body, XARGS_KEY, xargs), {**body, XARGS_KEY: xargs}
    if not isinstance(given, dict | None) or (given and xargs.keys() <= given.keys()):
        return raw, body  # nothing to add, or nothing that vLLM would take
    merged = {**body, XARGS_KEY: {**xargs, **(given or {})}}
    return msgspec.json.encode(merged), merged


def prefill_leg(request: ParsedRequest) -> bytes:
    """One token, not streamed, no output constraint; what shapes the prompt stays as the client sent it."""
    sent = request.body if request.clean else _without_forbidden(request.body)
    body = {key: value for key, value in sent.items() if key not in _NOT_TO_PREFILL}
    body["stream"] = False
    body["max_tokens"] = 1
    if "max_completion_tokens" in body:
        body["max_completion_tokens"] = 1
    if body.get("min_tokens"):
        body["min_tokens"] = 1
    if _forces_tool(request.body):
        body["tool_choice"] = "auto"  # "none" would drop the tools from the prompt on some servers
    body[KV_KEY] = _PREFILL_PARAMS
    return msgspec.json.encode(body)


def decode_leg(request: ParsedRequest, handle: Mapping[str, Any]) -> bytes:
    """What the client sent plus the handle that P returned, field for field."""
    return _with_kv_params(request, handle)


def deflected_leg(request: ParsedRequest, schedule: ChunkSchedule | None, claim: params.LeaseClaim | None = None) -> bytes:
    """What the client sent plus the chunk schedule and the lease it is spent from, and no remote-prefill parameter."""
    if schedule is None:
        return request.raw if request.clean else msgspec.json.encode(_without_forbidden(request.body))
    return _with_kv_params(request, {params.PARAMS_KEY: params.encode(schedule.batch_tokens(), claim)})


def release_leg(handle: Mapping[str, Any]) -> bytes:
    """A completion that D refuses before admission, whereupon D tells P to free the handle's blocks.

    vLLM's serving layer notifies the connector for every request with `do_remote_prefill` that it
    refuses; a model that nobody serves makes the refusal certain, so no token is ever computed.
    """
    return msgspec.json.encode({"model": RELEASE_MODEL, "prompt": [0], "max_tokens": 1, KV_KEY: handle})


RELEASE_MODEL = "kairos-release-kv"


def without_client_params(raw: bytes) -> bytes:
    """Drop what a client may not set from a pass-through body; the same bytes when there is nothing to drop."""
    body = read_as_servers_do(raw)
    if not isinstance(body, dict) or not _forbidden_paths(body):
        return raw
    return json.dumps(_without_forbidden(body)).encode()


def _with_kv_params(request: ParsedRequest, value: Mapping[str, Any]) -> bytes:
    if not request.clean:
        return msgspec.json.encode({**_without_forbidden(request.body), KV_KEY: value})
    return _appended(request.raw, request.body, KV_KEY, value)


def _appended(raw: bytes, body: Mapping[str, Any], key: str, value: Mapping[str, Any]) -> bytes:
    """The bytes of `body` with one key more."""
    head = raw[: raw.rindex(b"}")]
    comma = b"," if body else b""
    return b"".join((head, comma, b'"', key.encode(), b'":', msgspec.json.encode(value), b"}"))


def _forbidden_paths(body: Mapping[str, Any]) -> bool:
    if not _FORBIDDEN_KEYS.isdisjoint(body):
        return True
    if _NESTED_KEYS.isdisjoint(body):
        return False
    nested = (body.get(key) for key in _NESTED_KEYS)
    return any(_forbidden_paths(value) for value in nested if isinstance(value, dict))


def _without_forbidden(body: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in body.items() if key not in _FORBIDDEN_KEYS}
    for key in _NESTED_KEYS:
        if isinstance(kept.get(key), dict):
            kept[key] = _without_forbidden(kept[key])
    return kept


def _constrained(body: Mapping[str, Any]) -> bool:
    if _CONSTRAINT_KEYS.isdisjoint(body):
        return _forces_tool(body)
    given = _CONSTRAINT_KEYS.intersection(body)
    return any(body[key] is not None for key in given) or _forces_tool(body)


def _forces_tool(body: Mapping[str, Any]) -> bool:
    choice = body.get("tool_choice")
    return choice == "required" or isinstance(choice, dict)


def _obstacle(body: Mapping[str, Any]) -> str:
    for key, name, applies in _OBSTACLES:
        if key in body and applies(body):
            return name
    return ""


def _several(key: str) -> Callable[[Mapping[str, Any]], bool]:
    # vLLM also reads numbers sent as strings; whatever is not plainly one counts as several.
    return lambda body: body.get(key) not in (None, 1)


def _present(key: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda body: body.get(key) is not None


def _several_prompts(body: Mapping[str, Any]) -> bool:
    prompt = body.get("prompt")
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


def _echo_with_logprobs(body: Mapping[str, Any]) -> bool:
    return body.get("echo") not in (None, False) and body.get("logprobs") not in (None, False)


def _no_output(body: Mapping[str, Any]) -> bool:
    tokens, completion_tokens = body.get("max_tokens"), body.get("max_completion_tokens")
    return (isinstance(tokens, int) and tokens < 1) or (isinstance(completion_tokens, int) and completion_tokens < 1)


def _truncated_to_context(body: Mapping[str, Any]) -> bool:
    # A negative value means "what the context leaves beside max_tokens", which differs between the legs.
    limit = body.get("truncate_prompt_tokens")
    return limit is not None and not (isinstance(limit, int) and limit >= 0)


def _constraint_shapes_prompt(body: Mapping[str, Any]) -> bool:
    return _constrained(body) and _CONSTRAINT_SHAPES_PROMPT.search(str(body.get("model"))) is not None


# The key without which an obstacle cannot be there, its name, and whether it is there.
_OBSTACLES: tuple[tuple[str, str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("n", "n", _several("n")),
    ("best_of", "best_of", _several("best_of")),
    ("use_beam_search", "beam-search", lambda body: body.get("use_beam_search") not in (None, False)),
    ("prompt_logprobs", "prompt-logprobs", _present("prompt_logprobs")),
    ("echo", "echo-with-logprobs", _echo_with_logprobs),
    ("prompt", "several-prompts", _several_prompts),
    ("prompt_embeds", "prompt-embeds", _present("prompt_embeds")),
    ("max_tokens", "no-output", _no_output),
    ("max_completion_tokens", "no-output", _no_output),
    ("truncate_prompt_tokens", "truncated-to-context", _truncated_to_context),
    ("model", "constraint-shapes-prompt", _constraint_shapes_prompt),
)
