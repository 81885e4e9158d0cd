"""What a client that stays does after each end of a stream: come back, and when, or give up and say so.

==========================  ======================================================================
`completed`                 comes back (decision D10): a rolling deploy ends streams gracefully
`cancelled_by_server`       comes back
`error_after_ack`           comes back
`lost`, `timeout`           comes back
`refused`                   by its error, see `_may_pass`: an overload or a restart passes, a no stays
`protocol_error`            before the ack, of a server that has acknowledged before: comes back, for it
                            was something in between that answered; else final
`nothing_honored`           final (decision D10): asking the same again changes nothing
`never_acknowledged`        final (decision D11)
`closed`                    final: the client left
==========================  ======================================================================

The delay before an attempt is what the server asked for, plus what the budget of attempts demands, plus a
draw with full jitter from a range that doubles with each attempt until a stream has lived for a while. The
draw is added, never the larger of them taken, so that clients whom the same server told the same thing don't
come back in the same instant (field case F28).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harken.core.backoff import backoff
from harken.core.budget import Budget
from harken.core.demux import Ending
from harken.core.wire import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from harken.errors import Refused

__all__ = ["End", "Retry", "RetryPolicy"]

MAX_RETRY_AFTER = 3600.0  # seconds; a server that asks for more is looked at once an hour


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a watch comes back; times in seconds.

    - `first_delay`, `max_delay`, `factor`: the range of the delay's draw begins at 0 to `first_delay`, and
      grows by `factor` with each attempt to 0 to `max_delay`.
    - `attempts`, `refill`: the budget: so many attempts at once, and one more each `refill` seconds. The
      defaults allow 10 within a minute (field case F26).
    - `healthy_after`: a stream that lived for so long makes the range begin anew.

    Raises ValueError where one of them makes no sense.
    """

    first_delay: float = 1.0
    max_delay: float = 30.0
    factor: float = 2.0
    attempts: int = 5
    refill: float = 12.0
    healthy_after: float = 10.0

    def __post_init__(self) -> None:
        Budget.full(self.attempts, self.refill, 0.0)
        self.delays(float)

    def delays(self, random: Callable[[], float]) -> Iterator[float]:
        """The draws, from the beginning."""
        return backoff(base=self.first_delay, cap=self.max_delay, factor=self.factor, random=random)


@dataclass(frozen=True, slots=True)
class End:
    """How one attempt ended. `lived` is how long its stream did, in seconds; None where none was opened."""

    ending: Ending
    error: Exception | None = None
    lived: float | None = None


class Retry:
    """One watch's decisions. Times are in seconds, on any clock that only grows.

    `random` gives floats in [0, 1). `renewable` is whether each attempt brings a token of its own, so that a
    401 may pass.
    """

    def __init__(
        self, policy: RetryPolicy, *, random: Callable[[], float], now: float, renewable: bool = False
    ) -> None:
        self._policy = policy
        self._random = random
        self._renewable = renewable
        self._known = False  # whether the server has ever acknowledged
        self._delays = policy.delays(random)
        # The first attempt is made at once, and counts.
        self._budget, _ = Budget.full(policy.attempts, policy.refill, now).take(now)

    def after(self, end: End, now: float) -> float | None:
        """The delay in seconds before the next attempt, None where there is to be none."""
        if end.lived is not None:
            self._known = True
            if end.lived >= self._policy.healthy_after:
                self._delays = self._policy.delays(self._random)
        if not self._comes_back(end):
            return None
        self._budget, owed = self._budget.take(now)
        return max(owed, _asked_for(end.error)) + next(self._delays)

    def _comes_back(self, end: End) -> bool:
        if end.ending is Ending.PROTOCOL_ERROR:
            return self._known and end.lived is None
        if end.ending is Ending.REFUSED:
            return isinstance(end.error, Refused) and self._may_pass(end.error)
        return end.ending.may_return

    def _may_pass(self, error: Refused) -> bool:
        """Whether what was refused may be granted later."""
        if error.retry_after is not None or error.status in _OVERLOADED or _reason(error) in _REASONS:
            return True
        if error.status == 401:
            return self._renewable  # F33: the next attempt asks for another token
        # What nobody knows stays a no at a server that never said yes. One that did is being deployed, and
        # for a moment something else answers in its place.
        return self._known and error.status != 403 and error.code not in _DEFINITE


_OVERLOADED = frozenset({408, 425, 429, 502, 503, 504})
"""HTTP statuses that speak of now, not of the request."""

_REASONS = frozenset({"server_full", "quota", "broker_away", "shutting_down"})
"""`data.reason` of a refusal for now (decision D9)."""

_DEFINITE = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST, *range(-32099, -32019)})
"""Codes of an answer that the same request would get again (decision D10)."""


def _reason(error: Refused) -> object:
    reason = error.data.get("reason") if isinstance(error.data, dict) else None
    return reason if isinstance(reason, str) else None


def _asked_for(error: Exception | None) -> float:
    """`Retry-After`, in seconds."""
    asked = error.retry_after if isinstance(error, Refused) else None
    return min(asked or 0.0, MAX_RETRY_AFTER)
