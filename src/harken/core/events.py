"""The four events of `subscriptions/listen`, and the kinds that a filter names.

An event is a level trigger: "this may have changed, fetch it again". Two equal events are therefore one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "ALL_KINDS",
    "Event",
    "Kind",
    "PromptsListChanged",
    "ResourceUpdated",
    "ResourcesListChanged",
    "ToolsListChanged",
]


class Kind(StrEnum):
    """What a subscription can ask for: the keys of the schema's `SubscriptionFilter`."""

    TOOLS_LIST_CHANGED = "toolsListChanged"
    PROMPTS_LIST_CHANGED = "promptsListChanged"
    RESOURCES_LIST_CHANGED = "resourcesListChanged"
    RESOURCE_SUBSCRIPTIONS = "resourceSubscriptions"


ALL_KINDS = frozenset(Kind)


@dataclass(frozen=True, slots=True)
class ToolsListChanged:
    """The list of tools may have changed: `notifications/tools/list_changed` (clause R7)."""


@dataclass(frozen=True, slots=True)
class PromptsListChanged:
    """The list of prompts may have changed: `notifications/prompts/list_changed` (clause R8)."""


@dataclass(frozen=True, slots=True)
class ResourcesListChanged:
    """The list of resources may have changed: `notifications/resources/list_changed` (clause R9)."""


@dataclass(frozen=True, slots=True)
class ResourceUpdated:
    """The resource at `uri` may have changed: `notifications/resources/updated` (clause R10)."""

    uri: str


Event = ToolsListChanged | PromptsListChanged | ResourcesListChanged | ResourceUpdated
"""Any event."""
