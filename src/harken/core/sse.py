"""Server-sent events, decoded as the WHATWG standard says (section 9.2.6), wherever a read splits them.

Rules of this file:

- Data stays bytes: whether it is UTF-8 is the message's affair, where bad bytes must not be smoothed over.
- A comment is reported, since it is a keep-alive (clause H11); `id` and `retry` are not, since streams of
  this protocol cannot be resumed.
- An event over the cap ends the decoding: it may have been the one notification (field case F24).
- Each byte is looked at a fixed number of times, however the reads split the stream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DEFAULT_MAX_EVENT_BYTES", "Comment", "Oversized", "SSEDecoder", "ServerSentEvent"]

DEFAULT_MAX_EVENT_BYTES = 1024 * 1024

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its type (`message` where the stream names none) and its data."""

    type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that starts with a colon: a keep-alive (clause H11)."""


@dataclass(frozen=True, slots=True)
class Oversized:
    """An event, or a line, over the cap of so many bytes. Nothing follows it."""

    cap: int


class SSEDecoder:
    """Bytes in, events and comments out.

    `cap` bounds one event in bytes, field names included.
    """

    def __init__(self, cap: int = DEFAULT_MAX_EVENT_BYTES) -> None:
        self._cap = cap
        self._partial = bytearray()  # the line that has not ended yet
        self._data: list[bytes] = []
        self._type = b""
        self._size = 0  # of the event so far
        self._at_start = True
        self._after_cr = False
        self._dead = False

    def feed(self, data: bytes) -> list[ServerSentEvent | Comment | Oversized]:
        """What `data` completes, in order. An event that has not ended when the stream does is no event."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")  # a CR LF that was split
        if self._dead or not data:
            return []
        self._after_cr = data.endswith(b"\r")
        *lines, rest = _LINE_END.split(data)
        found: list[ServerSentEvent | Comment | Oversized] = []
        for line in lines:
            item = self._line(self._complete(line))
            if item is not None:
                found.append(item)
            if isinstance(item, Oversized):
                return found
        self._partial += rest
        if self._size + len(self._partial) > self._cap:
            found.append(self._die())
        return found

    def _complete(self, line: bytes) -> bytes:
        """The whole line that `line` ends; without the byte order mark that may open a stream."""
        if self._partial:
            line = bytes(self._partial + line)
            self._partial.clear()
        if self._at_start:
            self._at_start = False
            return line.removeprefix(_BOM)
        return line

    def _line(self, line: bytes) -> ServerSentEvent | Comment | Oversized | None:
        if not line:
            return self._dispatch()
        if self._size + len(line) > self._cap:
            return self._die()
        name, _, value = line.partition(b":")
        if not name:
            return Comment()
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(line)
        elif name == b"event":
            self._type = value
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, name, self._data, self._type, self._size = self._data, self._type, [], b"", 0
        if not data:
            return None  # an event without data is none
        return ServerSentEvent(name.decode(errors="replace") or "message", b"\n".join(data))

    def _die(self) -> Oversized:
        self._dead = True
        self._partial.clear()
        self._data.clear()
        return Oversized(self._cap)
