"""What is done after each end, by a clock that the test holds."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.core.demux import Ending
from harken.core.retry import MAX_RETRY_AFTER, End, Retry, RetryPolicy
from harken.errors import ConnectionLost, ProtocolError, Refused

ALMOST_ONE = 1 - 2**-53
LOST = End(Ending.LOST, ConnectionLost("gone"))


def retry(*, luck: Callable[[], float] = lambda: ALMOST_ONE, renewable: bool = False) -> Retry:
    return Retry(RetryPolicy(), random=luck, now=0.0, renewable=renewable)


def known(*, renewable: bool = False) -> Retry:
    """At a server that has acknowledged before."""
    found = retry(renewable=renewable)
    assert found.after(End(Ending.COMPLETED, lived=1.0), 1.0) is not None
    return found


def refused(code: int, data: object = None, **more: float) -> End:
    return End(Ending.REFUSED, Refused(code, "no", data, **more))  # type: ignore[arg-type]  # status, retry_after


@pytest.mark.clause("D10")
@pytest.mark.parametrize("ending", list(Ending))
@pytest.mark.parametrize("lived", [None, 0.0, 100.0])
def test_which_endings_are_final(ending: Ending, lived: float | None) -> None:
    final = {
        Ending.REFUSED,
        Ending.NEVER_ACKNOWLEDGED,
        Ending.NOTHING_HONORED,
        Ending.PROTOCOL_ERROR,
        Ending.CLOSED,
    }
    assert (retry().after(End(ending, lived=lived), 100.0) is None) == (ending in final)


@pytest.mark.clause("D11")
def test_a_result_without_an_ack_is_final_also_at_a_server_that_has_acknowledged() -> None:
    assert known().after(End(Ending.NEVER_ACKNOWLEDGED), 9.0) is None


@pytest.mark.clause("D10")
@pytest.mark.parametrize(
    ("end", "at_first", "once_known"),
    [
        # what passes by itself
        (refused(-32603, {"reason": "server_full"}), True, True),
        (refused(-32603, {"reason": "quota"}), True, True),
        (refused(-32603, {"reason": "broker_away"}), True, True),
        (refused(-32603, {"reason": "shutting_down"}), True, True),
        (refused(-32603, retry_after=0.0), True, True),
        (refused(-32601, status=503), True, True),
        (refused(503, status=503), True, True),
        (refused(429, status=429), True, True),
        (refused(502, status=502), True, True),
        (refused(504, status=504), True, True),
        (refused(408, status=408), True, True),
        (refused(425, status=425), True, True),
        # what may be said by something else while a server is being deployed
        (refused(404, status=404), False, True),
        (refused(500, status=500), False, True),
        (refused(-32603), False, True),
        (refused(-32603, {"reason": ["server_full"]}), False, True),
        (refused(-32603, {"reason": "mood"}), False, True),
        (refused(-32603, "server_full"), False, True),
        (End(Ending.PROTOCOL_ERROR, ProtocolError("a page")), False, True),
        # what is a no
        (refused(-32601, status=404), False, False),
        (refused(-32601), False, False),
        (refused(-32602, status=400), False, False),
        (refused(-32600, status=400), False, False),
        (refused(-32020, status=400), False, False),
        (refused(-32022, status=400), False, False),
        (refused(-32099), False, False),
        (refused(401, status=401), False, False),
        (refused(403, status=403), False, False),
        (End(Ending.REFUSED, None), False, False),
        (End(Ending.PROTOCOL_ERROR, ProtocolError("nonsense"), lived=1.0), False, False),
    ],
)
def test_which_refusals_are_final(end: End, at_first: bool, once_known: bool) -> None:
    assert (retry().after(end, 1.0) is not None) == at_first
    assert (known().after(end, 2.0) is not None) == once_known


@pytest.mark.field("F33")
def test_a_401_may_pass_where_the_next_attempt_brings_another_token() -> None:
    assert retry(renewable=True).after(refused(401, status=401), 1.0) is not None
    assert retry(renewable=True).after(refused(403, status=403), 1.0) is None


@pytest.mark.field("F30")
def test_what_the_server_asks_for_is_waited_for_and_a_draw_more() -> None:
    assert retry().after(refused(503, status=503, retry_after=7.0), 0.0) == pytest.approx(8.0)
    assert retry(luck=lambda: 0.0).after(refused(503, status=503, retry_after=7.0), 0.0) == 7.0


def test_who_asks_for_days_is_looked_at_once_an_hour() -> None:
    delay = retry(luck=lambda: 0.0).after(refused(503, status=503, retry_after=1e9), 0.0)
    assert delay == MAX_RETRY_AFTER


@pytest.mark.field("F26")
def test_the_delays_grow_to_a_cap() -> None:
    one, now, delays = retry(), 0.0, []
    for _ in range(9):
        delay = one.after(LOST, now)
        assert delay is not None
        delays.append(delay)
        now += delay
    assert delays == pytest.approx([1, 2, 4, 8, 16, 30, 30, 30, 30])


@pytest.mark.field("F26")
@given(
    luck=st.lists(st.floats(0, 1, exclude_max=True), min_size=40, max_size=40),
    lives=st.lists(st.sampled_from([None, 0.01, 0.5, 11.0]), min_size=40, max_size=40),
)
def test_no_minute_has_more_than_ten_attempts(luck: list[float], lives: list[float | None]) -> None:
    """Whatever is drawn, and however long each stream lives."""
    draws = iter(luck)
    one, now, attempts = retry(luck=lambda: next(draws)), 0.0, [0.0]
    for lived in lives:
        now += lived or 0.0
        delay = one.after(End(Ending.COMPLETED, lived=lived), now)
        assert delay is not None
        now += delay
        attempts.append(now)
    for eleventh in range(10, len(attempts)):
        assert attempts[eleventh] - attempts[eleventh - 10] >= 60 - 1e-6


@pytest.mark.field("F26")
def test_a_stream_that_is_recycled_every_half_minute_is_back_within_a_second() -> None:
    one, now = retry(), 0.0
    for _ in range(200):
        now += 30
        delay = one.after(End(Ending.COMPLETED, lived=30.0), now)
        assert delay is not None
        assert delay <= 1
        now += delay


@pytest.mark.field("F27")
def test_drops_after_a_healthy_minute_never_use_the_budget_up() -> None:
    one, now, delays = retry(), 0.0, []
    for _ in range(6):
        now += 60
        delay = one.after(End(Ending.LOST, lived=60.0), now)
        assert delay is not None
        delays.append(delay)
        now += delay
    assert delays == pytest.approx([1] * 6)


@pytest.mark.field("F27")
def test_a_server_that_is_away_for_a_day_is_never_given_up() -> None:
    one, now, attempts = retry(luck=random.Random(7).random), 0.0, 0
    while now < 86_400:
        delay = one.after(LOST, now)
        assert delay is not None
        assert delay < 60
        now += delay
        attempts += 1
    assert attempts > 86_400 / 60


def test_who_lost_the_same_server_in_one_instant_comes_back_spread() -> None:
    """Also where all have used their budget up alike, and were all told the same."""
    draw = random.Random(11).random
    clients = [retry(luck=draw) for _ in range(200)]
    now = [0.0] * len(clients)
    busy = refused(503, status=503, retry_after=5.0)
    for _ in range(6):
        for number, client in enumerate(clients):
            delay = client.after(busy, now[number])
            assert delay is not None
            now[number] += delay
        returns = sorted(now)
        gaps = [later - earlier for earlier, later in pairwise(returns)]
        assert max(gaps) < (returns[-1] - returns[0]) / 3
    assert returns[-1] - returns[0] > 30


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"first_delay": 0.0}, "base"),
        ({"first_delay": 2.0, "max_delay": 1.0}, "cap"),
        ({"factor": 0.5}, "factor"),
        ({"attempts": 0}, "attempt"),
        ({"refill": 0.0}, "refill"),
    ],
)
def test_a_senseless_policy_is_refused_at_once(options: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RetryPolicy(**options)  # type: ignore[arg-type]  # attempts is the one integer
