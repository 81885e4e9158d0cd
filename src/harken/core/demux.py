"""The client's side of subscriptions: which message is whose, and each subscription's life.

::

    waiting ──ack──▶ acknowledged ──result, error, cancelled, loss, leaving──▶ ended
       └──────────result, error, cancelled, loss, leaving, timeout──────────▶ ended

Rules of this file:

- A subscription is known before its request leaves, so the acknowledgment cannot come too early (field case
  F47), and it is found by its id alone, type and value (clause R5).
- What has not been read is a set, not a queue. The updates of sub-resources, which no filter bounds, collapse
  into the filter's own URIs past a limit.
- Doubt is repaired by notifying again: an update whose URI cannot be read, or a message of the channel that
  could not be read at all, makes everything honoured pending.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from enum import Enum, StrEnum, auto

from harken.core.calls import Error, Malformed, Message, Notification, Result, ServerRequest, read_retry_after
from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import KIND_OF, Filter
from harken.core.uris import normalize
from harken.core.wire import (
    ACKNOWLEDGED,
    CANCELLED,
    LISTS,
    RESOURCE_UPDATED,
    SUBSCRIPTION_ID,
    RequestId,
    valid_id,
)
from harken.errors import (
    HarkenError,
    InvalidFilter,
    InvalidURI,
    NeverAcknowledged,
    ProtocolError,
    Refused,
    RPCError,
)

__all__ = ["Demux", "Ending", "Ignored", "State", "Stream"]

# What unread updates of sub-resources may hold, in characters of their URIs, before they collapse.
MAX_CHILDREN_SIZE = 256 * 1024
_CHILD_OVERHEAD = 256  # what an entry costs besides its URI

# How many ended subscriptions are remembered, to tell what still comes for them from what is simply wrong.
_MAX_ENDED = 1024


class Ending(StrEnum):
    """Why the client's side of a stream ended: the word in logs, metrics, API and docs (clause R25)."""

    COMPLETED = "completed"
    """The server ended it gracefully, with the result."""
    CANCELLED_BY_SERVER = "cancelled_by_server"
    """The server sent `notifications/cancelled` for it."""
    ERROR_AFTER_ACK = "error_after_ack"
    """The server sent an error after the acknowledgment."""
    LOST = "lost"
    """The transport closed, or broke, without a result (clause R18)."""
    REFUSED = "refused"
    """The server answered with an error and no acknowledgment."""
    NEVER_ACKNOWLEDGED = "never_acknowledged"
    """The result came without an acknowledgment (decision D11)."""
    NOTHING_HONORED = "nothing_honored"
    """The server honoured nothing of the filter, and ended the stream (decision D2)."""
    TIMEOUT = "timeout"
    """No acknowledgment in time (clause R26)."""
    PROTOCOL_ERROR = "protocol_error"
    """The server sent what the protocol forbids."""
    CLOSED = "closed"
    """The client left."""

    @property
    def may_return(self) -> bool:
        """Whether listening again makes sense (decisions D10 and D11).

        A refusal says no by itself; `Refused.retry_after` may say otherwise.
        """
        return self in _MAY_RETURN


_MAY_RETURN = frozenset(
    {
        Ending.COMPLETED,
        Ending.CANCELLED_BY_SERVER,
        Ending.ERROR_AFTER_ACK,
        Ending.LOST,
        Ending.TIMEOUT,
    }
)


class Ignored(StrEnum):
    """Why a message changed nothing."""

    UNKNOWN = "unknown"
    """It names no subscription of this channel (field case F48)."""
    LATE = "late"
    """It came for a subscription that has ended (clause R16)."""
    UNASKED = "unasked"
    """The filter did not ask for such an event."""
    REPEATED_ACK = "repeated_ack"
    """A second acknowledgment."""
    SERVER_REQUEST = "server_request"
    """A request from the server, never answered (clause R22)."""
    OTHER = "other"
    """A notification that is not about subscriptions, such as progress."""
    MALFORMED = "malformed"
    """A change notification without an id that could be one, or no message at all."""


class State(Enum):
    """Where a subscription is in its life."""

    WAITING = auto()
    ACKNOWLEDGED = auto()
    ENDED = auto()


class Stream:
    """One subscription's life as its client sees it.

    `honored` is None until the acknowledgment. `ending` is set once, and `error` says more about it where
    there is more to say. `answered` is whether the server has ended it, so that nothing is left to cancel.
    """

    __slots__ = ("_pending", "_size", "answered", "ending", "error", "honored", "id", "requested")

    def __init__(self, id: RequestId, requested: Filter) -> None:
        self.id: RequestId = id
        self.requested: Filter = requested
        self.honored: Filter | None = None
        self.ending: Ending | None = None
        self.error: HarkenError | None = None
        self.answered: bool = False
        self._pending: OrderedDict[Event, int] = OrderedDict()  # with what it counts towards the limit
        self._size = 0

    @property
    def state(self) -> State:
        """Where it is in its life."""
        if self.ending is not None:
            return State.ENDED
        return State.WAITING if self.honored is None else State.ACKNOWLEDGED

    def acknowledge(self, params: Mapping[str, object]) -> Ignored | None:
        """The acknowledgment: what of the filter the server honours (clause R11)."""
        if self.honored is not None:
            return Ignored.REPEATED_ACK
        try:
            self.honored = Filter.parse(params.get("notifications"))
        except InvalidFilter as error:
            self.end(Ending.PROTOCOL_ERROR, ProtocolError(f"the acknowledgment is broken: {error}"))
        return None

    def mark(self, event: Event) -> Ignored | None:
        """Make `event` pending. Before the acknowledgment it is kept for after it."""
        if KIND_OF[type(event)] not in self.requested.kinds:
            return Ignored.UNASKED
        if isinstance(event, ResourceUpdated):
            self._mark_updated(event)
        else:
            self._pending[event] = 0
        return None

    def mark_everything(self) -> None:
        """Make everything honoured pending: something may have been missed."""
        honored = self.honored or Filter()
        for event_type in (ToolsListChanged, PromptsListChanged, ResourcesListChanged):
            if KIND_OF[event_type] in honored.kinds:
                self._pending[event_type()] = 0
        self._mark_uris(honored)

    def take(self) -> Event | None:
        """The event that has been pending longest, which is then no longer pending; None if there is none."""
        if self.honored is None or not self._pending:
            return None
        event, size = self._pending.popitem(last=False)
        self._size -= size
        return event

    def answer(self, result: object) -> None:
        """The listen request's result: the end (clause R25)."""
        self.answered = True
        result_type = result.get("resultType", "complete") if isinstance(result, dict) else None
        if result_type != "complete":
            problem = f"a listen cannot end with a result of type {result_type!r:.80}"
            self.end(Ending.PROTOCOL_ERROR, ProtocolError(problem))
        elif self.honored is None:
            self.end(Ending.NEVER_ACKNOWLEDGED, NeverAcknowledged("the result came without an ack"))  # D11
        else:
            self.end(Ending.COMPLETED if self.honored else Ending.NOTHING_HONORED)

    def fail(self, error: RPCError) -> None:
        """The listen request's error: a refusal, or after the ack an end of its own (clause R25)."""
        self.answered = True
        if self.honored is not None:
            self.end(Ending.ERROR_AFTER_ACK, error)
        elif isinstance(error, Refused):
            self.end(Ending.REFUSED, error)
        else:
            retry_after = read_retry_after(error.data)
            refused = Refused(error.code, error.message, error.data, retry_after=retry_after)
            self.end(Ending.REFUSED, refused)

    def cancel(self) -> None:
        """The server's `notifications/cancelled` (decision D1)."""
        self.answered = True
        error = None if self.honored is not None else NeverAcknowledged("the server cancelled before any ack")
        self.end(Ending.CANCELLED_BY_SERVER, error)

    def end(self, ending: Ending, error: HarkenError | None = None) -> None:
        """End, for this reason; the first one counts. What is pending can still be taken."""
        if self.ending is None:
            self.ending = ending
            self.error = error

    def _mark_updated(self, event: ResourceUpdated) -> None:
        """R19: also where the URI isn't literally in the filter."""
        try:
            spelling = self.requested.spellings.get(normalize(event.uri))
        except InvalidURI:
            spelling = None
        if spelling is not None:
            self._pending[ResourceUpdated(spelling)] = 0  # D7: as the client spells it
        elif event not in self._pending:
            self._pending[event] = len(event.uri) + _CHILD_OVERHEAD
            self._size += self._pending[event]
            if self._size > MAX_CHILDREN_SIZE:
                self._collapse()

    def _collapse(self) -> None:
        """Replace the updates of sub-resources by one for each URI of the filter: nothing is missed."""
        for event in [event for event, size in self._pending.items() if size]:
            del self._pending[event]
        self._size = 0
        self._mark_uris(self.requested)

    def _mark_uris(self, wanted: Filter) -> None:
        for uri in wanted.resource_subscriptions:
            self._mark_updated(ResourceUpdated(uri))


class Demux:
    """One channel's subscriptions, by id. `ignored` counts what changed nothing, by reason."""

    def __init__(self, ignored: Counter[Ignored] | None = None) -> None:
        self.ignored: Counter[Ignored] = Counter() if ignored is None else ignored
        self._streams: dict[RequestId, Stream] = {}
        self._ended: OrderedDict[RequestId, None] = OrderedDict()

    @property
    def streams(self) -> list[Stream]:
        """The subscriptions that have not ended."""
        return list(self._streams.values())

    def open(self, id: RequestId, requested: Filter) -> Stream:
        """A new subscription, known from now on: call this before its request leaves (field case F47)."""
        stream = self._streams[id] = Stream(id, requested)
        return stream

    def end(self, stream: Stream, ending: Ending, error: HarkenError | None = None) -> None:
        """End `stream` from this side; what still comes for it is ignored (clause R16)."""
        stream.end(ending, error)
        self._forget(stream)

    def give_up(self, id: RequestId) -> None:
        """Nobody waits for this request's answer any more; what still comes for it is late (clause R16)."""
        self._ended[id] = None
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)

    def receive(self, message: Message) -> Stream | Ignored:
        """The subscription that `message` changed, or why it changed none."""
        stream = self._find(message)
        outcome = stream if isinstance(stream, Ignored) else self._apply(stream, message)
        if isinstance(outcome, Ignored):
            self.ignored[outcome] += 1
            return outcome
        if outcome.ending is not None:
            self._forget(outcome)
        return outcome

    def resync(self) -> list[Stream]:
        """A message could not be read: everything honoured becomes pending (field case F24).

        Returns the subscriptions.
        """
        for stream in self._streams.values():
            stream.mark_everything()
        return self.streams

    def _find(self, message: Message) -> Stream | Ignored:
        if isinstance(message, ServerRequest):
            return Ignored.SERVER_REQUEST  # R22
        if isinstance(message, Malformed):
            return Ignored.MALFORMED
        id = _subject(message) if isinstance(message, Notification) else message.id
        if isinstance(id, Ignored):
            return id
        if id is None:
            return Ignored.UNKNOWN
        stream = self._streams.get(id)
        if stream is None:
            return Ignored.LATE if id in self._ended else Ignored.UNKNOWN  # F48
        return stream

    def _apply(self, stream: Stream, message: Message) -> Stream | Ignored:
        if isinstance(message, Notification):
            return _notify(stream, message) or stream
        if isinstance(message, Result):
            stream.answer(message.result)
        else:
            assert isinstance(message, Error)  # _find() has found an id in it
            stream.fail(message.error)
        return stream

    def _forget(self, stream: Stream) -> None:
        if self._streams.pop(stream.id, None) is not None:
            self.give_up(stream.id)


def _subject(notification: Notification) -> RequestId | Ignored:
    """The subscription that a notification is about: by `requestId`, or by the tag alone (clause R5)."""
    method, params = notification.method, notification.params
    if method not in _OURS:
        return Ignored.OTHER
    if not isinstance(params, dict):
        return Ignored.MALFORMED  # R23
    if method == CANCELLED:
        id: object = params.get("requestId")
    else:
        meta = params.get("_meta")
        id = meta.get(SUBSCRIPTION_ID) if isinstance(meta, dict) else None
    return id if valid_id(id) else Ignored.MALFORMED  # type: ignore[return-value]  # it has just been checked


def _notify(stream: Stream, notification: Notification) -> Ignored | None:
    method, params = notification.method, notification.params
    assert isinstance(params, dict)  # _subject() has found the id in it
    if method == CANCELLED:
        stream.cancel()
        return None
    if method == ACKNOWLEDGED:
        return stream.acknowledge(params)
    if method in LISTS:
        return stream.mark(LISTS[method])
    uri = params.get("uri")
    if isinstance(uri, str):
        return stream.mark(ResourceUpdated(uri))
    stream.mark_everything()  # something was updated, and nobody can say what
    return None


_OURS = frozenset({CANCELLED, ACKNOWLEDGED, RESOURCE_UPDATED, *LISTS})
