"""The life of one subscription, as a table, and the set of things it has still to be told.

::

    opening ──flush──▶ acknowledged ──end──▶ ending ──flush──▶ ended
       │  └──end──▶ ending unacknowledged ──flush──▶ ended       ▲
       └────────────────── cancel (from any state) ──────────────┘

Rules of this file:

- TABLE is the truth: what each input does in each state, and what a flush then writes and in which order.
- Pending is a set, not a queue (at most one entry for each honoured item), in the order in which each item
  first became pending. A slow reader's set is bounded by its own filter.
- Bytes leave through `take()` alone, so nothing can overtake the acknowledgment (clause R2) or follow the
  end (clauses R14 and R15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Literal

from harken.core.events import Event, ResourceUpdated
from harken.core.filters import KIND_OF, Filter
from harken.core.uris import normalize
from harken.core.wire import (
    LIST_CHANGED_HEADS,
    RequestId,
    acknowledged_head,
    cancelled_head,
    encode_id,
    resource_updated_head,
    result_head,
)

__all__ = ["LINES", "SSE", "TABLE", "Ending", "Framing", "Input", "Output", "State", "Subscription"]

EndSignal = Literal["result", "cancelled", "both"]
"""How the server's end is told (decision D1)."""


class Ending(StrEnum):
    """Why the server's side of a stream ended: the word in logs, metrics, API and docs."""

    SHUTDOWN = "shutdown"
    MAX_AGE = "max_age"
    TOKEN_EXPIRED = "token_expired"
    REVOKED = "revoked"
    STUCK_READER = "stuck_reader"
    NOTHING_HONORED = "nothing_honored"
    BROKER_AWAY = "broker_away"
    CLIENT_GONE = "client_gone"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


class State(Enum):
    """Where a subscription is in its life."""

    OPENING = auto()
    ACKNOWLEDGED = auto()
    ENDING_UNACKNOWLEDGED = auto()
    ENDING = auto()
    ENDED = auto()


class Input(Enum):
    """What can happen to a subscription."""

    MARK = auto()
    """An honoured item may have changed."""
    FLUSH = auto()
    """The transport takes bytes."""
    END = auto()
    """The server ends the stream gracefully."""
    CANCEL = auto()
    """The client has left, or the transport is gone."""


class Output(Enum):
    """What a transition does, in order."""

    KEEP = auto()
    """The item becomes pending."""
    FORGET = auto()
    """The pending set is emptied unsent."""
    ACKNOWLEDGMENT = auto()
    """Written: the acknowledgment."""
    PENDING = auto()
    """Written: all that is pending."""
    END = auto()
    """Written: the end."""


TABLE: dict[tuple[State, Input], tuple[State, tuple[Output, ...]]] = {
    (State.OPENING, Input.MARK): (State.OPENING, (Output.KEEP,)),
    (State.OPENING, Input.FLUSH): (State.ACKNOWLEDGED, (Output.ACKNOWLEDGMENT, Output.PENDING)),  # R2
    (State.OPENING, Input.END): (State.ENDING_UNACKNOWLEDGED, ()),
    (State.OPENING, Input.CANCEL): (State.ENDED, (Output.FORGET,)),  # R15: also before the ack
    (State.ACKNOWLEDGED, Input.MARK): (State.ACKNOWLEDGED, (Output.KEEP,)),
    (State.ACKNOWLEDGED, Input.FLUSH): (State.ACKNOWLEDGED, (Output.PENDING,)),
    (State.ACKNOWLEDGED, Input.END): (State.ENDING, ()),
    (State.ACKNOWLEDGED, Input.CANCEL): (State.ENDED, (Output.FORGET,)),
    # What was accepted before the end still goes out, then the result; what comes later does not.
    (State.ENDING_UNACKNOWLEDGED, Input.MARK): (State.ENDING_UNACKNOWLEDGED, ()),
    (State.ENDING_UNACKNOWLEDGED, Input.FLUSH): (
        State.ENDED,
        (Output.ACKNOWLEDGMENT, Output.PENDING, Output.END),
    ),
    (State.ENDING_UNACKNOWLEDGED, Input.END): (State.ENDING_UNACKNOWLEDGED, ()),
    (State.ENDING_UNACKNOWLEDGED, Input.CANCEL): (State.ENDED, (Output.FORGET,)),
    (State.ENDING, Input.MARK): (State.ENDING, ()),
    (State.ENDING, Input.FLUSH): (State.ENDED, (Output.PENDING, Output.END)),  # R14
    (State.ENDING, Input.END): (State.ENDING, ()),
    (State.ENDING, Input.CANCEL): (State.ENDED, (Output.FORGET,)),
    (State.ENDED, Input.MARK): (State.ENDED, ()),
    (State.ENDED, Input.FLUSH): (State.ENDED, ()),  # R14, R15: nothing follows
    (State.ENDED, Input.END): (State.ENDED, ()),
    (State.ENDED, Input.CANCEL): (State.ENDED, ()),
}


@dataclass(frozen=True, slots=True)
class Framing:
    """What a transport puts around each message."""

    before: bytes
    after: bytes


SSE = Framing(b"event: message\ndata: ", b"\n\n")  # H2: one message an event, no id: field
LINES = Framing(b"", b"\n")  # T1

_ACKNOWLEDGED = State.ACKNOWLEDGED
_CLOSE = b"}}}"  # what every head of core/wire leaves open behind the id


class Subscription:
    """One listen request's life.

    `id` is the request's id, `honored` the filter that the server agreed to. `pending` maps each item that is
    still to be told (a URI in normal form, or a list's event type) to the head of its notification; the
    publishing side writes to it directly (core/index.py), everyone else calls `mark()`.
    """

    __slots__ = (
        "_before",
        "_close",
        "_end_signal",
        "_separator",
        "_server_info",
        "ending",
        "honored",
        "id",
        "pending",
        "state",
    )

    def __init__(
        self,
        id: RequestId,
        honored: Filter,
        framing: Framing,
        server_info: Mapping[str, str],
        end_signal: EndSignal = "result",
    ) -> None:
        self.id: RequestId = id
        self.honored: Filter = honored
        self.state: State = State.OPENING
        self.ending: Ending | None = None
        self.pending: dict[object, bytes] = {}
        self._server_info = server_info
        self._end_signal = end_signal
        self._before = framing.before
        self._close = encode_id(id) + _CLOSE + framing.after  # R4: encoded once, spliced in everywhere
        self._separator = self._close + framing.before

    @property
    def alive(self) -> bool:
        """Whether events still reach this subscription."""
        return self.state is State.OPENING or self.state is State.ACKNOWLEDGED

    @property
    def has_output(self) -> bool:
        """Whether a flush would write anything."""
        return bool(self.pending) or (self.state is not State.ACKNOWLEDGED and self.state is not State.ENDED)

    def mark(self, event: Event) -> None:
        """Make `event`, which must be one of the honoured items, pending."""
        if Output.KEEP in self._step(Input.MARK):
            if isinstance(event, ResourceUpdated):
                item = normalize(event.uri)
                self.pending[item] = resource_updated_head(self.honored.spellings.get(item, event.uri))  # D7
            else:
                self.pending[type(event)] = LIST_CHANGED_HEADS[type(event)]

    def mark_everything(self) -> None:
        """Make every honoured item pending: something may have been missed."""
        if Output.KEEP in self._step(Input.MARK):
            for event_type, head in LIST_CHANGED_HEADS.items():
                if KIND_OF[event_type] in self.honored.kinds:
                    self.pending[event_type] = head
            for item, spelled in self.honored.spellings.items():
                self.pending[item] = resource_updated_head(spelled)

    def end(self, ending: Ending) -> None:
        """End gracefully, once what is pending is out (clause R14). The first ending counts."""
        if self.alive:
            self.ending = ending
        self._step(Input.END)

    def cancel(self, ending: Ending) -> None:
        """End at once: nothing more is written, the result included (clause R15)."""
        if self.state is not State.ENDED and self.ending is None:
            self.ending = ending
        if Output.FORGET in self._step(Input.CANCEL):
            self.pending.clear()

    def take(self) -> bytes:
        """Everything that is to be written now, in its order; empty where there is nothing."""
        if self.state is _ACKNOWLEDGED:
            return self._take_pending()  # what TABLE says for this state, for the many
        heads: list[bytes] = []
        for output in self._step(Input.FLUSH):
            if output is Output.PENDING:
                heads.extend(self.pending.values())
                self.pending.clear()
            elif output is Output.ACKNOWLEDGMENT:
                heads.append(acknowledged_head(self.honored))
            else:
                heads.extend(self._end_heads())
        return b"".join((self._before, self._separator.join(heads), self._close)) if heads else b""

    def _take_pending(self) -> bytes:
        pending = self.pending
        if not pending:
            return b""
        frames = self._before + self._separator.join(pending.values()) + self._close
        pending.clear()
        return frames

    def _end_heads(self) -> list[bytes]:
        id = encode_id(self.id)
        heads = []
        if self._end_signal != "result":  # D1
            heads.append(cancelled_head(id))
        if self._end_signal != "cancelled":
            heads.append(result_head(id, self._server_info))
        return heads

    def _step(self, input: Input) -> tuple[Output, ...]:
        self.state, outputs = TABLE[self.state, input]
        return outputs
