"""A worker's health from its checks: a pure counter of results in a row."""

from dataclasses import dataclass

from kairos_router.config import HealthSettings


@dataclass(slots=True)
class HealthRecord:
    """Healthy after enough passed checks in a row, unhealthy after enough failed ones.

    A worker that was never seen healthy needs one passed check only: it is starting, not flapping.
    """

    settings: HealthSettings
    healthy: bool = False
    seen_healthy: bool = False
    passed: int = 0
    failed: int = 0

    def record(self, ok: bool) -> bool:
        """Take one result; return whether `healthy` changed."""
        self.passed, self.failed = (self.passed + 1, 0) if ok else (0, self.failed + 1)
        before = self.healthy
        if ok and self.passed >= (self.settings.success_threshold if self.seen_healthy else 1):
            self.healthy = self.seen_healthy = True
        elif self.failed >= self.settings.failure_threshold:
            self.healthy = False
        return self.healthy != before

    @property
    def next_check_s(self) -> float:
        """Seconds until the next check: soon while unhealthy or doubtful, so that recovery is not a minute away."""
        if self.healthy and not self.failed:
            return self.settings.interval_s
        return min(self.settings.interval_s, self.settings.startup_check_interval_s)
