"""Filters: what a client asks for, and what of it a server honours.

`Filter.parse` is the only way in from the wire; it validates (clause R13) and drops duplicates (decision D5).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import product

from harken.core.events import (
    Event,
    Kind,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.uris import normalize
from harken.errors import InvalidFilter, InvalidURI

__all__ = ["KIND_OF", "Filter"]

KIND_OF: dict[type[Event], Kind] = {
    ToolsListChanged: Kind.TOOLS_LIST_CHANGED,
    PromptsListChanged: Kind.PROMPTS_LIST_CHANGED,
    ResourcesListChanged: Kind.RESOURCES_LIST_CHANGED,
    ResourceUpdated: Kind.RESOURCE_SUBSCRIPTIONS,
}
"""The kind of each event."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The set of things to be told of: the schema's `SubscriptionFilter`.

    `resource_subscriptions` holds URIs as the client spells them, each resource once, in first-seen order.
    Raises InvalidURI where one of them is no URI.
    """

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: tuple[str, ...] = ()
    spellings: dict[str, str] = field(init=False, repr=False, compare=False)
    """Normal form → the spelling in this filter."""

    def __post_init__(self) -> None:
        spellings: dict[str, str] = {}
        for uri in self.resource_subscriptions:
            spellings.setdefault(normalize(uri), uri)  # D5, D7
        object.__setattr__(self, "spellings", spellings)
        object.__setattr__(self, "resource_subscriptions", tuple(spellings.values()))

    def __bool__(self) -> bool:
        return bool(self.kinds)

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of which this filter asks for anything."""
        return _KINDS[
            self.tools_list_changed,
            self.prompts_list_changed,
            self.resources_list_changed,
            bool(self.resource_subscriptions),
        ]

    @classmethod
    def parse(cls, value: object) -> Filter:
        """The filter in a decoded JSON value. Unknown keys are ignored (decision D6).

        Raises InvalidFilter, which names the bad field (clause R13: no coercion).
        """
        if not isinstance(value, dict):
            raise InvalidFilter("params.notifications must be an object")
        tools, prompts, resources = (_boolean(value, kind) for kind in _LISTS)
        uris = value.get(Kind.RESOURCE_SUBSCRIPTIONS, ())
        if not isinstance(uris, list | tuple) or not all(isinstance(uri, str) for uri in uris):
            raise InvalidFilter("params.notifications.resourceSubscriptions must be a list of strings")
        try:
            return cls(tools, prompts, resources, tuple(uris))
        except InvalidURI as error:
            raise InvalidFilter(f"params.notifications.resourceSubscriptions: {error}") from error

    def to_wire(self) -> dict[str, bool | list[str]]:
        """The JSON object of this filter; what is not asked for is left out (clause R3)."""
        wire: dict[str, bool | list[str]] = {kind: True for kind in _LISTS if kind in self.kinds}
        if self.resource_subscriptions:
            wire[Kind.RESOURCE_SUBSCRIPTIONS] = list(self.resource_subscriptions)
        return wire

    def narrow(self, kinds: Collection[Kind]) -> Filter:
        """The part of this filter that lies within `kinds`: what a server honours (clause R3)."""
        if self.kinds <= frozenset(kinds):
            return self
        return Filter(
            self.tools_list_changed and Kind.TOOLS_LIST_CHANGED in kinds,
            self.prompts_list_changed and Kind.PROMPTS_LIST_CHANGED in kinds,
            self.resources_list_changed and Kind.RESOURCES_LIST_CHANGED in kinds,
            self.resource_subscriptions if Kind.RESOURCE_SUBSCRIPTIONS in kinds else (),
        )

    def without(self, honored: Filter) -> Filter:
        """The part of this filter that `honored` lacks; its URIs one by one (clause R11)."""
        return Filter(
            self.tools_list_changed and not honored.tools_list_changed,
            self.prompts_list_changed and not honored.prompts_list_changed,
            self.resources_list_changed and not honored.resources_list_changed,
            tuple(uri for normal, uri in self.spellings.items() if normal not in honored.spellings),
        )

    def matches(self, event: Event) -> bool:
        """Whether this filter asks for `event` by name (sub-resources are the index's affair)."""
        if isinstance(event, ResourceUpdated):
            return normalize(event.uri) in self.spellings
        return KIND_OF[type(event)] in self.kinds


_KINDS = {
    wanted: frozenset(kind for kind, asked in zip(Kind, wanted, strict=True) if asked)
    for wanted in product((False, True), repeat=len(Kind))
}
_LISTS: Iterable[Kind] = tuple(kind for kind in Kind if kind is not Kind.RESOURCE_SUBSCRIPTIONS)


def _boolean(value: dict[str, object], kind: Kind) -> bool:
    wanted = value.get(kind, False)
    if not isinstance(wanted, bool):
        raise InvalidFilter(f"params.notifications.{kind} must be true or false")
    return wanted
