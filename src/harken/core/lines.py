"""Newline-delimited messages (clause T1), decoded wherever a read splits them.

A line over the cap is reported once and skipped; the next newline starts afresh (clause T9, field case F24).
Each byte is looked at a fixed number of times, however the reads split the stream.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_MAX_LINE_BYTES", "LineDecoder", "Oversized"]

DEFAULT_MAX_LINE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Oversized:
    """In place of a line: it was longer than the cap of so many bytes, and is not kept."""

    cap: int


class LineDecoder:
    """Bytes in, lines out: without their line ends, and without blank ones.

    `cap` bounds one line in bytes, its newline not counted.
    """

    def __init__(self, cap: int = DEFAULT_MAX_LINE_BYTES) -> None:
        self._cap = cap
        self._partial = bytearray()  # the line that has not ended yet
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | Oversized]:
        """What `data` completes, in order. A line that has not ended when the stream does is no message."""
        found: list[bytes | Oversized] = []
        first, *others = data.split(b"\n")
        self._extend(first, found)
        for part in others:
            if line := bytes(self._partial).removesuffix(b"\r"):
                found.append(line)
            self._partial.clear()
            self._skipping = False
            self._extend(part, found)
        return found

    def _extend(self, part: bytes, found: list[bytes | Oversized]) -> None:
        """Add `part`, which holds no newline, to the line that has not ended yet."""
        if self._skipping:
            return
        if len(self._partial) + len(part) > self._cap:
            found.append(Oversized(self._cap))
            self._partial.clear()
            self._skipping = True
        else:
            self._partial += part
