"""Events as JSON entries."""

import json

import pytest

from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.gateway.entries import EVENT_NAMES, InvalidEntry, entry_of, make_event, parse

ENTRIES: list[tuple[dict[str, str], Event]] = [
    ({"event": "tools_list_changed"}, ToolsListChanged()),
    ({"event": "prompts_list_changed"}, PromptsListChanged()),
    ({"event": "resources_list_changed"}, ResourcesListChanged()),
    ({"event": "resource_updated", "uri": "file:///a"}, ResourceUpdated("file:///a")),
]


@pytest.mark.parametrize(("entry", "event"), ENTRIES)
def test_an_entry_is_an_event_both_ways(entry: dict[str, str], event: Event) -> None:
    assert parse(json.dumps(entry).encode()) == [event]
    assert entry_of(event) == entry
    assert entry["event"] in EVENT_NAMES


def test_a_list_keeps_its_order() -> None:
    body = json.dumps([entry for entry, _ in ENTRIES]).encode()
    assert parse(body) == [event for _, event in ENTRIES]
    assert parse(b"[]") == []


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"event": "tool_list_changed"}, "event must be one of tools_list_changed"),
        ({"event": ["tools_list_changed"]}, "event must be one of"),
        ({}, "event must be one of"),
        ({"event": "resource_updated"}, "needs a uri"),
        ({"event": "resource_updated", "uri": 1}, "needs a uri"),
        ({"event": "resource_updated", "uri": "no uri"}, "not a URI"),
        ({"event": "resource_updated", "uri": "x:\ud800"}, "not a URI"),
        ({"event": "tools_list_changed", "uri": "file:///a"}, "takes no uri"),
        ({"event": "tools_list_changed", "uri": None}, "uri must be a string"),
        ({"event": "tools_list_changed", "audience": "x"}, "unknown key 'audience'"),
        ("tools_list_changed", "must be an object"),
        (None, "must be an object"),
        ([], "must be an object"),
    ],
)
def test_a_bad_entry_is_named(entry: object, reason: str) -> None:
    with pytest.raises(InvalidEntry, match=reason) as caught:
        parse(json.dumps([{"event": "tools_list_changed"}, entry]).encode())
    assert caught.value.index == 1
    assert str(caught.value).startswith("the entry at index 1: ")


def test_a_lone_bad_entry_has_no_index() -> None:
    with pytest.raises(InvalidEntry) as caught:
        parse(b'{"event": 1}')
    assert caught.value.index is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"event": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5_000, "not JSON"),
    ],
)
def test_what_is_no_json_is_told_apart(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidEntry, match=reason):
        parse(body)


def test_only_updates_take_a_uri() -> None:
    assert make_event("resource_updated", "file:///a") == ResourceUpdated("file:///a")
    with pytest.raises(InvalidEntry, match="takes no uri"):
        make_event("prompts_list_changed", "file:///a")
