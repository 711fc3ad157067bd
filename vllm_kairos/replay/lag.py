"""How late this client is at what it does: a chunk that waits to be read looks like a slow server."""

import asyncio
import time

_PERIOD_S = 0.05


async def measure_lag(lags_s: list[float]) -> None:
    """Append how late each of our own timers fired, until cancelled."""
    while True:
        due_s = time.perf_counter() + _PERIOD_S
        await asyncio.sleep(_PERIOD_S)
        lags_s.append(max(0.0, time.perf_counter() - due_s))
