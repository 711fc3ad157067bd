"""Mock vLLM servers that answer at once, so that only a router's own cost is measured.

Run: python -m benchmarks.serving.mock_engines --prefill-port 18100 --decode-port 18200

The prefill mock answers a one-token completion with NIXL-like `kv_transfer_params`; the decode mock
answers a completion, as JSON or as a server-sent event stream of `--stream-tokens` tokens.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator
from typing import cast

import uvloop

HANDLE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3, 4]],
    "remote_engine_id": "mock-engine",
    "remote_request_id": "mock-request",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
BASE = {"id": "cmpl-mock", "object": "text_completion", "created": 0, "model": "mock"}
USAGE = {"prompt_tokens": 512, "completion_tokens": 1, "total_tokens": 513}
MODELS = {"object": "list", "data": [{"id": "mock", "object": "model", "max_model_len": 32768}]}


def _completion(text: str, **extra: object) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}
    return json.dumps({**BASE, "choices": [choice], "usage": USAGE, **extra}).encode()


def _events(tokens: int) -> bytes:
    choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": None}
    event = b"data: " + json.dumps({**BASE, "choices": [choice]}).encode() + b"\n\n"
    return event * tokens + b"data: [DONE]\n\n"


def _response(body: bytes, content_type: str = "application/json", status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class MockEngine(asyncio.Protocol):
    """Just enough HTTP/1.1 for keep-alive clients that send a content-length."""

    def __init__(self, completion: bytes, stream: bytes) -> None:
        self._completion, self._stream = completion, stream
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for path, body in self._requests():
            assert self._transport is not None
            self._transport.write(self._answer(path, body))

    def _requests(self) -> Iterator[tuple[bytes, bytes]]:
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line[15:])
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            yield head.split(b" ", 2)[1], body

    def _answer(self, path: bytes, body: bytes) -> bytes:
        if path.startswith(b"/v1/completions"):
            streaming = b'"stream":true' in body.replace(b" ", b"")
            return self._stream if streaming else self._completion
        if path.startswith(b"/v1/models"):
            return _response(json.dumps(MODELS).encode())
        if path.startswith(b"/health"):
            return _response(b"")
        return _response(b'{"detail":"Not Found"}', status="404 Not Found")


async def serve(prefill_port: int, decode_port: int, stream_tokens: int) -> None:
    """Serve both mocks until cancelled."""
    loop = asyncio.get_running_loop()
    events = _response(_events(stream_tokens), "text/event-stream; charset=utf-8")
    prefill = _response(_completion(" word", kv_transfer_params=HANDLE))
    decode = _response(_completion(" word"))
    servers = [
        await loop.create_server(lambda: MockEngine(prefill, events), "127.0.0.1", prefill_port),
        await loop.create_server(lambda: MockEngine(decode, events), "127.0.0.1", decode_port),
    ]
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefill-port", type=int, default=18100)
    parser.add_argument("--decode-port", type=int, default=18200)
    parser.add_argument("--stream-tokens", type=int, default=16)
    args = parser.parse_args()
    uvloop.run(serve(args.prefill_port, args.decode_port, args.stream_tokens))
