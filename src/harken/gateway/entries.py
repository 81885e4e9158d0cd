"""Events as JSON, the way `POST /publish` takes them and `harken listen --json` prints them.

::

    {"event": "tools_list_changed"}
    {"event": "prompts_list_changed"}
    {"event": "resources_list_changed"}
    {"event": "resource_updated", "uri": "file:///notes/today.md"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.uris import normalize
from harken.errors import InvalidURI

__all__ = ["EVENT_NAMES", "InvalidEntry", "entry_of", "make_event", "parse"]

_LISTS: dict[str, Event] = {
    "tools_list_changed": ToolsListChanged(),
    "prompts_list_changed": PromptsListChanged(),
    "resources_list_changed": ResourcesListChanged(),
}
_UPDATED = "resource_updated"
_NAMES: dict[type[Event], str] = {type(event): name for name, event in _LISTS.items()} | {
    ResourceUpdated: _UPDATED
}

EVENT_NAMES = (*_LISTS, _UPDATED)
"""The name of every event."""


class InvalidEntry(ValueError):
    """What was posted is no event; `index` is the bad entry's place in the list, None without a list."""

    def __init__(self, reason: str, index: int | None = None) -> None:
        super().__init__(reason if index is None else f"the entry at index {index}: {reason}")
        self.index = index
        self.reason = reason


def entry_of(event: Event) -> dict[str, str]:
    """The event as an entry."""
    name = {"event": _NAMES[type(event)]}
    return name | {"uri": event.uri} if isinstance(event, ResourceUpdated) else name


def make_event(name: object, uri: object = None) -> Event:
    """The event of this name; `uri` belongs to `resource_updated` and to no other.

    Raises InvalidEntry.
    """
    if name == _UPDATED:
        return ResourceUpdated(_checked(uri))
    if not isinstance(name, str) or name not in _LISTS:
        raise InvalidEntry(f"event must be one of {', '.join(EVENT_NAMES)}")
    if uri is not None:
        raise InvalidEntry(f"{name} takes no uri")
    return _LISTS[name]


def parse(body: bytes) -> list[Event]:
    """The events in a body that holds one entry or a list of them.

    Raises InvalidEntry for the first bad one: all are taken or none.
    """
    value = _decode(body)
    if not isinstance(value, list):
        return [_event(value)]
    events = []
    for index, entry in enumerate(value):
        try:
            events.append(_event(entry))
        except InvalidEntry as error:
            raise InvalidEntry(error.reason, index) from error
    return events


def _decode(body: bytes) -> object:
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise InvalidEntry(f"the body is not UTF-8 (at byte {error.start})") from error
    except ValueError as error:
        raise InvalidEntry(f"the body is not JSON ({error})") from error
    except RecursionError as error:
        raise InvalidEntry("the body is nested too deeply") from error


def _event(entry: object) -> Event:
    if not isinstance(entry, Mapping):
        raise InvalidEntry('an event must be an object such as {"event": "tools_list_changed"}')
    if unknown := sorted(entry.keys() - {"event", "uri"}):
        # A key that is passed over in silence is a promise broken in silence.
        raise InvalidEntry(f"unknown key {unknown[0][:64]!r}; an event has event and uri")
    if "uri" in entry and entry["uri"] is None:
        raise InvalidEntry("uri must be a string")
    return make_event(entry.get("event"), entry.get("uri"))


def _checked(uri: object) -> str:
    if not isinstance(uri, str):
        raise InvalidEntry(f"{_UPDATED} needs a uri, as a string")
    try:
        normalize(uri)
    except InvalidURI as error:
        raise InvalidEntry(str(error)) from error
    return uri
