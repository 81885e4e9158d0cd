"""When a hub refuses, and with what words (decision D9)."""

from typing import Any

import pytest

from harken.core.filters import Filter
from harken.errors import RPCError
from harken.server.limits import Limits, busy, check

LIMITS = Limits(max_streams=2, max_streams_per_channel=1, max_uris=2)
ONE = Filter(resource_subscriptions=("x://a",))


@pytest.mark.clause("D9")
@pytest.mark.parametrize(
    ("uris", "open_streams", "on_channel", "reason"),
    [
        (2, 1, 0, None),
        (2, 2, 0, "server_full"),
        (3, 3, 1, "server_full"),
        (1, 1, 1, "quota"),
        (3, 0, 0, "quota"),
    ],
)
def test_refusals_name_their_reason(
    uris: int, open_streams: int, on_channel: int, reason: str | None
) -> None:
    requested = Filter(resource_subscriptions=tuple(f"x://{number}" for number in range(uris)))
    if reason is None:
        check(LIMITS, requested, open_streams, on_channel)
        return
    with pytest.raises(RPCError) as raised:
        check(LIMITS, requested, open_streams, on_channel)
    assert raised.value.code == -32603
    assert raised.value.data == {"reason": reason, "retryAfter": 5}


@pytest.mark.clause("D5", "D9")
def test_a_uri_named_twice_counts_once() -> None:
    check(LIMITS, Filter(resource_subscriptions=("x://a", "X://a", "x://b", "x://%62")), 0)


def test_a_refusal_says_when_to_come_back() -> None:
    error = busy("shutting_down", "later", 1)
    assert (error.code, error.message, error.data) == (
        -32603,
        "later",
        {"reason": "shutting_down", "retryAfter": 1},
    )


@pytest.mark.field("F5")
@pytest.mark.parametrize("name", Limits.__slots__)
@pytest.mark.parametrize("value", [0, -1, 1.5, "10", None, True])
def test_a_cap_is_a_whole_number_above_zero(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: value})
    assert getattr(Limits(**{name: 1}), name) == 1


@pytest.mark.field("F5")
def test_an_unknown_cap_is_an_error() -> None:
    with pytest.raises(TypeError):
        Limits(max_stream=3)  # type: ignore[call-arg]  # the point
