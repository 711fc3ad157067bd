"""A workload in a few lines, with what the paper prints beside it where it does."""

from collections.abc import Iterator

from vllm_kairos.workload.describe import Description, Spread


def load_lines(load: Description) -> Iterator[str]:
    """Lines for a person."""
    rate = "no rate" if load.rate_rps is None else f"{load.rate_rps:.3g} requests/s, SCV {load.scv:.2f}"
    yield f"workload {load.name}: {load.requests} requests in {load.duration_s:,.0f} s, {rate}"
    yield f"prompt tokens: {_spread(load.prompt_tokens)}; output tokens: {_spread(load.output_tokens)}"
    if load.closed_loop_requests:
        yield f"{load.closed_loop_requests} requests wait for the one before them in their session"
    if load.prefix_reuse:
        yield f"{load.prefix_reuse:.1%} of the prompt tokens lie in a prefix seen before"
    for row in load.beside_paper:
        if row.quantity != "rate_rps":  # a setting; the first line has it
            yield f"{row.quantity}: {_plain(row.achieved)}, the paper {_plain(row.paper)} ({row.error:+.1%})"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _spread(spread: Spread) -> str:
    return (
        f"p25 {spread.p25:,.0f}, p50 {spread.p50:,.0f}, p90 {spread.p90:,.0f}, p99 {spread.p99:,.0f}, mean {spread.mean:,.0f}"
    )
