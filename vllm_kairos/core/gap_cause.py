"""Why a gap between two tokens of one request is as long as it is."""

from enum import IntEnum


class Cause(IntEnum):
    """What a gap is put down to: most often what its step carried besides the decodes whose gap it made.

    Engines and the simulator count by these names in lower case. The simulator's steps never stall, and
    an engine knows nothing of migrations.
    """

    DECODE = 0  # nothing
    DEFLECTED = 1  # a deflected prefill
    UNPLANNED = 2  # prefill that the router did not plan
    PREEMPTED = 3  # the gap spans a preemption
    MIGRATED = 4  # the gap spans a migration from another engine
    STALL = 5  # no step ran, or one took far longer than predicted

    @property
    def label(self) -> str:
        """Its name in metrics, files and reports."""
        return self.name.lower()
