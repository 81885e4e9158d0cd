"""Delays: within their bounds, spread over all of the range, growing to the cap and no further."""

from itertools import islice
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.core.backoff import backoff

ALMOST_ONE = 1 - 2**-53


def test_without_luck_the_delays_double_up_to_the_cap() -> None:
    delays = backoff(base=0.5, cap=3, factor=2, random=lambda: ALMOST_ONE)
    assert list(islice(delays, 6)) == pytest.approx([0.5, 1, 2, 3, 3, 3])


def test_the_jitter_is_full() -> None:
    luck = iter([0.0, 0.25, 0.5])
    assert list(islice(backoff(base=1, cap=60, random=lambda: next(luck)), 3)) == [0.0, 0.5, 2.0]


@given(
    base=st.floats(0.001, 100),
    above=st.floats(0, 1000),
    factor=st.floats(1, 1e300),
    luck=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=50),
)
def test_no_delay_leaves_its_range(base: float, above: float, factor: float, luck: list[float]) -> None:
    draws = iter(luck)
    bound, cap = base, base + above
    for delay in islice(backoff(base=base, cap=cap, factor=factor, random=lambda: next(draws)), len(luck)):
        assert 0 <= delay <= bound
        bound = min(cap, bound * factor)


def test_it_never_ends_nor_overflows() -> None:
    delays = backoff(base=1, cap=10, random=lambda: 0.5)
    assert next(islice(delays, 5000, None)) == 5.0


def test_each_iterator_begins_anew() -> None:
    first = backoff(random=lambda: 0.5)
    assert [next(first), next(first)] == [0.5, 1.0]
    assert next(backoff(random=lambda: 0.5)) == 0.5


@pytest.mark.parametrize(
    ("base", "cap", "factor", "named"),
    [
        (0, 1, 2, "base"),
        (-1, 1, 2, "base"),
        (nan, 1, 2, "base"),
        (2, 1, 2, "cap"),
        (1, inf, 2, "cap"),
        (1, nan, 2, "cap"),
        (1, 2, 0.5, "factor"),
        (1, 2, nan, "factor"),
        (1, 2, inf, "factor"),
    ],
)
def test_senseless_settings_are_refused_at_once(base: float, cap: float, factor: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        backoff(base=base, cap=cap, factor=factor, random=lambda: 0.5)
