"""Reads the counters that say how much KV moved: vLLM's on the decode server, ours on the router."""

from collections.abc import Iterable

import aiohttp

from vllm_kairos.demo.figures import Transfers


async def read_transfers(decode_urls: Iterable[str], router_url: str) -> Transfers:
    """Totals since the servers and the router started; a run's figures are the difference of two readings."""
    async with aiohttp.ClientSession() as session:
        decode = [await _scrape(session, url) for url in decode_urls]
        router = await _scrape(session, router_url)
    return Transfers(
        pulls=round(sum(_total(text, "vllm:nixl_bytes_transferred_count") for text in decode)),
        pulled_bytes=round(sum(_total(text, "vllm:nixl_bytes_transferred_sum") for text in decode)),
        skipped=round(_total(router, "kairos_router_transfers_skipped_total")),
        skipped_bytes=round(_total(router, "kairos_router_transfer_bytes_skipped_total")),
    )


def between(before: Transfers, after: Transfers) -> Transfers:
    """What happened from one reading to the next; a counter that restarted counts from zero."""
    return Transfers(
        pulls=_grown(before.pulls, after.pulls),
        pulled_bytes=_grown(before.pulled_bytes, after.pulled_bytes),
        skipped=_grown(before.skipped, after.skipped),
        skipped_bytes=_grown(before.skipped_bytes, after.skipped_bytes),
    )


def _grown(before: int, after: int) -> int:
    return after - before if after >= before else after


def _total(text: str, name: str) -> float:
    lines = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def _scrape(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/metrics") as answer:
        return await answer.text()
