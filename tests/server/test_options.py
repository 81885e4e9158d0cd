"""Wrong options are errors where the hub is built (field case F5)."""

from typing import Any

import pytest

from harken.core.events import Kind
from harken.core.wire import CANCELLED, LISTEN
from harken.server.hub import Hub
from harken.server.options import (
    check_choice,
    check_flag,
    check_handlers,
    check_kinds,
    check_seconds,
    check_text,
)

pytestmark = pytest.mark.field("F5")


async def handler(request: object) -> dict[str, object]:
    """A handler."""
    return {}


@pytest.mark.parametrize("value", [0.001, 1, 30.0, 10**9])
def test_durations(value: float) -> None:
    check_seconds("keep_alive", value)


@pytest.mark.parametrize("value", [0, 0.0, -1, float("inf"), float("-inf"), float("nan")])
def test_what_lasts_for_nothing_or_for_ever_is_no_duration(value: float) -> None:
    with pytest.raises(ValueError, match="keep_alive must be above 0"):
        check_seconds("keep_alive", value)


@pytest.mark.parametrize("value", [None, "15", True, [], 1j])
def test_what_is_no_number_is_no_duration(value: object) -> None:
    with pytest.raises(TypeError, match="keep_alive must be a number"):
        check_seconds("keep_alive", value)


def test_zero_and_none_where_they_are_allowed() -> None:
    check_seconds("min_interval", 0, zero=True)
    check_seconds("max_age", None, none=True)
    with pytest.raises(ValueError, match="at least 0"):
        check_seconds("min_interval", -0.1, zero=True)
    with pytest.raises(ValueError, match="above 0"):
        check_seconds("max_age", 0, none=True)


def test_flags_texts_and_choices() -> None:
    check_flag("hold_empty", False)
    check_text("name", "")
    check_choice("report", "child", ("subscribed", "child"))
    with pytest.raises(TypeError, match="hold_empty"):
        check_flag("hold_empty", "false")
    with pytest.raises(TypeError, match="name"):
        check_text("name", b"harken")
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        check_text("name", "half \ud800")
    with pytest.raises(ValueError, match="subscribed, child"):
        check_choice("report", "parent", ("subscribed", "child"))


def test_kinds() -> None:
    assert check_kinds("supports", None) is None
    assert check_kinds("supports", []) == frozenset()
    assert check_kinds("supports", ["toolsListChanged"]) == frozenset({Kind.TOOLS_LIST_CHANGED})
    with pytest.raises(ValueError, match=r"each of supports must be one of toolsListChanged, .* not 'tools'"):
        check_kinds("supports", ["tools"])
    for wrong in ("toolsListChanged", 4):
        with pytest.raises(TypeError, match="supports must be a list of toolsListChanged, "):
            check_kinds("supports", wrong)  # type: ignore[arg-type]  # that is what is tested


def test_handlers() -> None:
    check_handlers({"tools/list": handler})
    with pytest.raises(TypeError):
        check_handlers({"tools/list": "handler"})
    with pytest.raises(TypeError):
        check_handlers({b"tools/list": handler})
    for method in (LISTEN, CANCELLED):
        with pytest.raises(ValueError, match="the hub's own"):
            check_handlers({method: handler})


WRONG: list[dict[str, Any]] = [
    {"keepalive": 15},
    {"keep_alive": "15"},
    {"keep_alive": None},
    {"keep_alive": float("nan")},
    {"write_timeout": 0},
    {"max_age": -1},
    {"min_interval": -1},
    {"min_interval": None},
    {"drain_window": "1"},
    {"subresources": 1},
    {"hold_empty": "false"},
    {"subscriptions": None},
    {"report": "parent"},
    {"end_signal": None},
    {"limits": {"max_streams": 3}},
    {"limits": 3},
    {"name": None},
    {"version": 1},
    {"supports": ["tools"]},
    {"supports": "toolsListChanged"},
    {"methods": {"tools/list": None}},
    {"methods": {LISTEN: handler}},
]


@pytest.mark.parametrize("options", WRONG, ids=range(len(WRONG)))
def test_a_hub_with_a_wrong_option_is_not_built(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Hub(**options)


def test_every_option_of_the_hub_is_taken_when_it_is_right() -> None:
    Hub(
        name="a", version="1", supports=["toolsListChanged"], methods={"tools/list": handler},
        capabilities={}, instructions="", keep_alive=1, max_age=1, min_interval=0, write_timeout=1,
        drain_window=0,
        subresources=True, report="child", hold_empty=True, subscriptions=False, end_signal="both",
    )  # fmt: skip
