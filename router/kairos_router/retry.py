"""How long to wait before each retry of a leg; a pure function of the settings and one random number."""

from kairos_router.config import RetrySettings


def backoff_s(settings: RetrySettings, attempt: int, uniform: float) -> float:
    """Seconds before retry `attempt` (1 is the first), `uniform` being drawn from [0, 1).

    Grows by the multiplier up to the maximum, then varies by up to the jitter factor either way.
    """
    try:
        grown = settings.initial_backoff_s * settings.backoff_multiplier ** (attempt - 1)
    except OverflowError:
        grown = settings.max_backoff_s
    wait_s = min(grown, settings.max_backoff_s)
    return max(0.0, wait_s * (1 + settings.jitter_factor * (2 * uniform - 1)))
