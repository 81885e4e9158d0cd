"""How many attempts may be made: a bucket of tokens that time refills.

Delays with full jitter alone don't bound attempts, since an unlucky row of draws is a row of short ones. The
bucket does: within any span of time no more attempts than its capacity, and one more for each interval in it
(field case F26). As time refills it, it never gives a server up for good (field case F27).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

__all__ = ["Budget"]


@dataclass(frozen=True, slots=True)
class Budget:
    """`level` tokens at the time `at`, one more each `interval` seconds, `capacity` at most.

    The level is below 0 while tokens are owed. Raises ValueError unless 1 ≤ `capacity` and
    0 < `interval` < infinity.
    """

    capacity: int
    interval: float
    level: float
    at: float

    def __post_init__(self) -> None:
        if not 1 <= self.capacity < inf:
            raise ValueError(f"a budget must allow at least 1 attempt, not {self.capacity!r}")
        if not 0 < self.interval < inf:
            raise ValueError(f"a budget must refill within a time above 0, in seconds, not {self.interval!r}")

    @classmethod
    def full(cls, capacity: int, interval: float, now: float) -> Budget:
        """A budget from which nothing has been taken."""
        return cls(capacity, interval, capacity, now)

    def take(self, now: float) -> tuple[Budget, float]:
        """What is left once the next token is taken, and in how many seconds that token is there."""
        level = min(float(self.capacity), self.level + max(0.0, now - self.at) / self.interval)
        wait = max(0.0, (1 - level) * self.interval)
        return Budget(self.capacity, self.interval, level - 1, max(now, self.at)), wait
