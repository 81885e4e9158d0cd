"""When a quiet stream counts as dead (decision D13).

Silence proves nothing about a server that sends no keep-alives. Once it has sent one, more are due: silence
is then compared with the longest that was seen on the stream. Whoever knows better says how long is too long.
"""

from __future__ import annotations

from math import inf

__all__ = ["Liveness"]

# How long a stream may be silent at least, in seconds: three of the usual 15 s, and then some.
SHORTEST = 60.0
# How many times the longest silence so far is too long.
PATIENCE = 3


class Liveness:
    """One stream's.

    `limit` is the silence in seconds that is too long, from the beginning on; where it is None, the stream's
    own keep-alives tell.
    """

    def __init__(self, limit: float | None, now: float) -> None:
        self._told = limit
        self._heard = now
        self._longest = 0.0
        self._armed = limit is not None

    @property
    def limit(self) -> float:
        """The silence in seconds that is too long by now; infinity while nothing can be said."""
        if self._told is not None:
            return self._told
        return max(SHORTEST, PATIENCE * self._longest) if self._armed else inf

    def heard(self, at: float, *, kept_alive: bool) -> None:
        """The server was last heard `at` this time; `kept_alive` is whether it ever sent a keep-alive."""
        self._armed = self._armed or kept_alive
        self._longest = max(self._longest, at - self._heard)
        self._heard = max(self._heard, at)

    def left(self, now: float) -> float:
        """For how many seconds more it may be silent; 0 or less when it is dead."""
        return self._heard + self.limit - now
