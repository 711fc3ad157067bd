"""The load: evenly spaced requests of like size, so that what a failure does to them stands out."""

import random

from vllm_kairos.workload.request import TraceRequest, Workload

PROMPT_TOKENS = (2048, 8192)
OUTPUT_TOKENS = (64, 128)


def steady(*, rate_rps: float, duration_s: float, seed: int) -> Workload:
    """`rate_rps * duration_s` requests, their sizes drawn evenly from PROMPT_TOKENS and OUTPUT_TOKENS."""
    draw = random.Random(seed)
    count = max(2, round(rate_rps * duration_s))
    requests = tuple(
        TraceRequest(
            request_id=f"steady-{index}",
            arrival_s=index / rate_rps,
            prompt_tokens=draw.randint(*PROMPT_TOKENS),
            output_tokens=draw.randint(*OUTPUT_TOKENS),
        )
        for index in range(count)
    )
    return Workload(name="steady", requests=requests)
