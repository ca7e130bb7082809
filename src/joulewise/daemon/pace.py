"""Pace: how fast one user may write to one GPU. A bucket of tokens for each pair, refilled as time passes.

A clock switch costs the driver milliseconds and the GPU tens of them; a user who writes in a loop would take the
driver away from everybody else. No limit is meant for honest use: a tuner writes every few seconds.
"""

from __future__ import annotations

from joulewise.core.errors import NotNow

_MANY = 4096
"""Buckets kept before full ones are dropped (a full bucket is as good as none): 64 GPUs with 64 users each."""


_ROUNDING = 1e-6
"""So that whoever waits exactly as long as told finds the token there (a year in seconds is known to 4e-9)."""


class Pace:
    """Token buckets by (GPU, uid). Not thread-safe: the service is single-threaded."""

    def __init__(self, writes_per_s: float = 20.0, burst: float = 40.0) -> None:
        self.writes_per_s = writes_per_s
        self.burst = burst
        self._buckets: dict[tuple[str, int], tuple[float, float]] = {}

    def spend(self, gpu: str, uid: int, now_s: float) -> None:
        """Take one token, or raise NotNow that says when there will be one. Nothing is taken when it raises."""
        level = self._level(gpu, uid, now_s)
        if level < 1.0 - _ROUNDING:
            wait_s = (1.0 - level) / self.writes_per_s
            raise NotNow(
                f"uid {uid} has written to {gpu} too often: at most {self.writes_per_s:g} a second "
                f"and {self.burst:g} at once; try again in {wait_s:.3f} s",
                retry_s=wait_s,
            )
        if len(self._buckets) >= _MANY:
            self._drop_full(now_s)
        self._buckets[gpu, uid] = (level - 1.0, now_s)

    def _level(self, gpu: str, uid: int, now_s: float) -> float:
        """Tokens there now. Time that runs backwards refills nothing."""
        level, then_s = self._buckets.get((gpu, uid), (self.burst, now_s))
        return min(self.burst, level + max(0.0, now_s - then_s) * self.writes_per_s)

    def _drop_full(self, now_s: float) -> None:
        self._buckets = {pair: kept for pair, kept in self._buckets.items() if self._level(*pair, now_s) < self.burst}
