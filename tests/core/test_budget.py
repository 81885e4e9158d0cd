"""The budget of attempts: never more than it allows, and never exhausted for good."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.core.budget import Budget


def waits(budget: Budget, *times: float) -> list[float]:
    found = []
    for now in times:
        budget, wait = budget.take(now)
        found.append(wait)
    return found


def test_what_is_there_is_had_at_once_and_the_rest_is_waited_for() -> None:
    assert waits(Budget.full(2, 10, now=0), 0, 0, 0, 10, 10) == [0, 0, 10, 10, 20]


def test_time_refills_it_to_its_capacity_and_no_further() -> None:
    assert waits(Budget.full(2, 10, now=0), 0, 0, 15, 20) == [0, 0, 0, 0]
    assert waits(Budget.full(2, 10, now=0), 0, 0, 10_000, 10_000, 10_000) == [0, 0, 0, 0, 10]


def test_a_clock_that_goes_backwards_gives_nothing() -> None:
    assert waits(Budget.full(1, 10, now=100), 100, 50, 100) == [0, 10, 20]


@given(
    capacity=st.integers(1, 10),
    interval=st.floats(0.01, 100),
    pauses=st.lists(st.floats(0, 50), min_size=1, max_size=60),
)
def test_no_span_of_time_has_more_attempts_than_it_allows(
    capacity: int, interval: float, pauses: list[float]
) -> None:
    budget, now = Budget.full(capacity, interval, now=0), 0.0
    made = []
    for pause in pauses:
        now += pause
        budget, wait = budget.take(now)
        now += wait
        made.append(now)
    for first, begin in enumerate(made):
        for last in range(first, len(made)):
            allowed = capacity + (made[last] - begin) / interval
            assert last - first + 1 <= allowed + 1e-6


@pytest.mark.parametrize(
    ("capacity", "interval", "named"),
    [(0, 1.0, "attempt"), (1, 0.0, "refill"), (1, -1.0, "refill"), (1, inf, "refill"), (1, nan, "refill")],
)
def test_senseless_budgets_are_refused_at_once(capacity: int, interval: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Budget.full(capacity, interval, now=0)
