"""Event → the subscriptions that want it: O(matches), never O(subscriptions).

`mark()` is the hot path of publishing. It writes into the pending sets itself instead of calling
`Subscription.mark()`, which says the same for one; only subscriptions that are alive stand in an index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, Literal, TypeVar

from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import KIND_OF
from harken.core.subscription import Subscription
from harken.core.uris import ancestors, normalize
from harken.core.wire import LIST_CHANGED_HEADS, resource_updated_head

__all__ = ["Index", "Report"]

S = TypeVar("S", bound=Subscription)

Report = Literal["subscribed", "child"]
"""Which URI a notification about a sub-resource names (decision D8)."""

# How many entries one subscription may have pending before its further children collapse into what it
# subscribed to: so never more than this many children are pending, whatever else is.
MAX_CHILDREN = 64


class Index(Generic[S]):
    """The subscriptions that are alive, by what they want.

    With `subresources`, a subscription to `x://a` also hears of `x://a/b`, named as `report` says
    (decision D8).
    """

    def __init__(self, *, subresources: bool = False, report: Report = "subscribed") -> None:
        self._subresources = subresources
        self._report = report
        self._lists: dict[type[Event], dict[S, None]] = {
            ToolsListChanged: {},
            PromptsListChanged: {},
            ResourcesListChanged: {},
        }
        # Most URIs have one subscriber: then it stands here itself, since a dict of one takes 200 bytes.
        self._uris: dict[str, S | dict[S, None]] = {}
        self._longest = 0  # of the URIs ever named here, so that a longer one isn't taken apart in vain

    def add(self, subscription: S) -> None:
        """Let events reach `subscription` from now on."""
        kinds = subscription.honored.kinds
        for event_type, subscribers in self._lists.items():
            if KIND_OF[event_type] in kinds:
                subscribers[subscription] = None
        uris = self._uris
        for uri in subscription.honored.spellings:
            if len(uri) > self._longest:
                self._longest = len(uri)
            present = uris.get(uri)
            if present is None:
                uris[uri] = subscription
            elif isinstance(present, dict):
                present[subscription] = None
            else:
                uris[uri] = {present: None, subscription: None}

    def remove(self, subscription: S) -> None:
        """Let no more events reach `subscription`; unknown ones are ignored."""
        for subscribers in self._lists.values():
            subscribers.pop(subscription, None)
        uris = self._uris
        for uri in subscription.honored.spellings:
            present = uris.get(uri)
            if present is subscription:
                del uris[uri]
            elif isinstance(present, dict):
                present.pop(subscription, None)
                if not present:
                    del uris[uri]

    def mark(self, event: Event, dirty: list[S] | deque[S]) -> None:
        """Make `event` pending wherever it is wanted; whoever had nothing pending before is added to `dirty`.

        Raises InvalidURI.
        """
        if type(event) is not ResourceUpdated:
            _mark(self._lists[type(event)], type(event), LIST_CHANGED_HEADS[type(event)], dirty)
            return
        uri = normalize(event.uri)
        if (present := self._uris.get(uri)) is not None:
            self._mark_uri(present, uri, dirty)
        if self._subresources:
            for ancestor in ancestors(uri, self._longest):
                if (present := self._uris.get(ancestor)) is not None:
                    if self._report == "subscribed":
                        self._mark_uri(present, ancestor, dirty)
                    else:
                        self._mark_child(present, ancestor, uri, dirty)

    def _mark_uri(self, present: S | dict[S, None], uri: str, dirty: list[S] | deque[S]) -> None:
        head = resource_updated_head(uri)
        for subscription in _each(present):
            pending = subscription.pending
            if not pending:
                dirty.append(subscription)
            spelled = subscription.honored.spellings[uri]
            pending[uri] = head if spelled is uri or spelled == uri else resource_updated_head(spelled)  # D7

    def _mark_child(
        self, present: S | dict[S, None], ancestor: str, child: str, dirty: list[S] | deque[S]
    ) -> None:
        """Name the child, until so many are pending that naming the ancestor says it all."""
        head = resource_updated_head(child)
        for subscription in _each(present):
            pending = subscription.pending
            if not pending:
                dirty.append(subscription)
            if child in pending or ancestor in pending:
                continue
            if len(pending) < MAX_CHILDREN:
                pending[child] = head
            else:
                pending[ancestor] = resource_updated_head(subscription.honored.spellings[ancestor])


def _each(present: S | dict[S, None]) -> Iterable[S]:
    return present if isinstance(present, dict) else (present,)


def _mark(subscribers: dict[S, None], item: object, head: bytes, dirty: list[S] | deque[S]) -> None:
    for subscription in subscribers:
        pending = subscription.pending
        if not pending:
            dirty.append(subscription)
        pending[item] = head
