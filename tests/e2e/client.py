"""A small OpenAI client that shows what the tests look at: status, headers, text, events."""

import json
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

TIMEOUT = aiohttp.ClientTimeout(total=120)


@dataclass(frozen=True)
class Reply:
    """One answer that was not streamed."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def texts(self) -> list[str]:
        return [choice.get("text", choice.get("message", {}).get("content")) for choice in self.body["choices"]]


class Client:
    """Greedy requests to one base URL."""

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self.model = model

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(force_close=True)  # vLLM's servers and proxies drop one that idles for 5 s
        self.session = aiohttp.ClientSession(self.url, timeout=TIMEOUT, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.close()

    async def complete(self, prompt: Any, *, max_tokens: int = 24, **fields: Any) -> Reply:
        return await self._post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, **fields})

    async def chat(self, text: str, *, max_tokens: int = 24, **fields: Any) -> Reply:
        messages = [{"role": "user", "content": text}]
        return await self._post("/v1/chat/completions", {"messages": messages, "max_tokens": max_tokens, **fields})

    async def stream(self, prompt: str, *, max_tokens: int = 24, **fields: Any) -> list[str]:
        """The `data:` payloads of a streamed completion, `[DONE]` included."""
        body = self._body({"prompt": prompt, "max_tokens": max_tokens, "stream": True, **fields})
        async with self.session.post("/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            lines = (await answer.text()).splitlines()
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of a Prometheus series over every label set that holds `labels`."""
        async with self.session.get("/metrics") as answer:
            lines = (await answer.text()).splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == name and all(each in line for each in wanted)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    async def _post(self, path: str, fields: dict[str, Any]) -> Reply:
        async with self.session.post(path, json=self._body(fields)) as answer:
            text = await answer.text()
            return Reply(answer.status, dict(answer.headers), json.loads(text) if text else {})

    def _body(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "temperature": 0, **fields}


def streamed_text(events: list[str]) -> str:
    """The text that streamed events add up to."""
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def deflected(*chunk_schedule: int) -> dict[str, Any]:
    """The extra field that makes a decode server prefill by itself, in these chunks."""
    return {"kv_transfer_params": {"kairos": {"schema": 1, "chunk_schedule": list(chunk_schedule)}}}
