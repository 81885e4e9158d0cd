"""Events are values: equal ones are one, and their kinds are the schema's."""

from dataclasses import FrozenInstanceError

import mcp_types
import pytest

from harken.core.events import (
    ALL_KINDS,
    Event,
    Kind,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)

EVERY: list[Event] = [
    ToolsListChanged(),
    PromptsListChanged(),
    ResourcesListChanged(),
    ResourceUpdated("x://a"),
    ResourceUpdated("x://b"),
]


def test_the_kinds_are_the_keys_of_the_schema_and_in_this_order() -> None:
    keys = {field.alias for field in mcp_types.SubscriptionFilter.model_fields.values()}
    assert {kind.value for kind in Kind} == keys
    assert frozenset(Kind) == ALL_KINDS
    assert [str(kind) for kind in Kind] == [
        "toolsListChanged",
        "promptsListChanged",
        "resourcesListChanged",
        "resourceSubscriptions",
    ]


def test_equal_events_are_one_and_different_ones_are_not() -> None:
    assert len(set(EVERY)) == len(EVERY)
    again = [type(event)() if not isinstance(event, ResourceUpdated) else event for event in EVERY]
    assert set(EVERY) == set(again)
    assert ResourceUpdated("x://a") == ResourceUpdated("x://a")


def test_an_event_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ResourceUpdated("x://a").uri = "x://b"  # type: ignore[misc]  # the very thing that must fail
