"""Silence that says nothing, and silence that says enough."""

from math import inf

import pytest

from harken.core.liveness import Liveness


@pytest.mark.clause("D13")
def test_without_a_keep_alive_silence_says_nothing() -> None:
    liveness = Liveness(None, now=100)
    liveness.heard(5000, kept_alive=False)
    assert liveness.limit == inf
    assert liveness.left(10_000) == inf


@pytest.mark.clause("D13")
def test_the_first_keep_alive_arms_it() -> None:
    liveness = Liveness(None, now=100)
    liveness.heard(115, kept_alive=True)
    assert liveness.left(115) == 60
    assert liveness.left(175) == 0
    liveness.heard(170, kept_alive=True)
    assert liveness.left(175) > 0


@pytest.mark.clause("D13")
def test_rare_keep_alives_are_given_three_times_their_distance() -> None:
    liveness = Liveness(None, now=0)
    for at in (50, 100, 110):
        liveness.heard(at, kept_alive=True)
    assert liveness.limit == 150
    assert liveness.left(110) == 150


def test_what_was_quiet_before_the_first_keep_alive_counts_too() -> None:
    liveness = Liveness(None, now=0)
    liveness.heard(30, kept_alive=False)
    liveness.heard(40, kept_alive=True)
    assert liveness.limit == 90


@pytest.mark.clause("D13")
def test_told_to_it_is_armed_from_the_beginning() -> None:
    liveness = Liveness(5, now=100)
    assert liveness.left(100) == 5
    liveness.heard(104, kept_alive=True)
    assert (liveness.limit, liveness.left(109)) == (5, 0)


def test_an_older_time_changes_nothing() -> None:
    liveness = Liveness(5, now=100)
    liveness.heard(99, kept_alive=False)
    assert liveness.left(100) == 5
