"""How long to wait before the next attempt: exponential, with full jitter.

Full jitter means that a delay is drawn from the whole range between nothing and its bound, so that clients
which lost their server in the same instant come back spread over that range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

__all__ = ["backoff"]


def backoff(
    *, base: float = 1.0, cap: float = 30.0, factor: float = 2.0, random: Callable[[], float]
) -> Iterator[float]:
    """The delays before the first, second, … attempt, in seconds, without end.

    The n-th (from 0) is `random()`, which gives floats in [0, 1), times the smaller of `cap` and
    `base` × `factor` to the power of n. For attempts that went well, begin anew with a fresh iterator.

    Raises ValueError unless 0 < `base` ≤ `cap` < infinity and 1 ≤ `factor` < infinity.
    """
    if not 0 < base <= cap < inf:
        raise ValueError(f"base must be above 0 and no more than cap, in seconds, not {base!r} and {cap!r}")
    if not 1 <= factor < inf:
        raise ValueError(f"factor must be at least 1, not {factor!r}")
    return _delays(base, cap, factor, random)


def _delays(bound: float, cap: float, factor: float, random: Callable[[], float]) -> Iterator[float]:
    while True:
        yield bound * random()
        bound = min(cap, bound * factor)
