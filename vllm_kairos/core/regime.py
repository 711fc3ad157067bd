"""The three kinds of engine step, each with a latency model of its own."""

from enum import StrEnum


class Regime(StrEnum):
    """Which of the three models a step belongs to."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"

    @classmethod
    def of(cls, running_decodes: int, prefill_tokens: int) -> "Regime":
        """The regime of a step with such work in it."""
        if not prefill_tokens:
            return cls.DECODE
        return cls.MIXED if running_decodes else cls.PREFILL
