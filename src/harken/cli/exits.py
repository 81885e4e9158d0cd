"""The exit codes of every command: a contract with scripts."""

from __future__ import annotations

from enum import IntEnum

from harken.core.demux import Ending

__all__ = ["EXIT_OF", "Exit"]


class Exit(IntEnum):
    """Why a command ended."""

    ENDED = 0
    """The stream ended gracefully, or what was asked for is done."""
    INTERNAL = 1
    """A fault in harken itself."""
    USAGE = 2
    """The command can't be run as it was given."""
    REFUSED = 3
    """The server or hub said no; the same again would be refused again."""
    LOST = 4
    """The connection could not be made, or it broke; trying again may help."""
    TIMEOUT = 5
    """What was waited for did not come in time."""
    INTERRUPTED = 130
    """Ctrl-C."""
    TERMINATED = 143
    """SIGTERM, to a command that has nothing to end gracefully."""


EXIT_OF: dict[Ending, Exit] = {
    Ending.COMPLETED: Exit.ENDED,
    Ending.CANCELLED_BY_SERVER: Exit.ENDED,  # the other way that servers end a stream on purpose
    Ending.NOTHING_HONORED: Exit.ENDED,
    Ending.CLOSED: Exit.ENDED,
    Ending.REFUSED: Exit.REFUSED,
    Ending.NEVER_ACKNOWLEDGED: Exit.REFUSED,  # D11: final
    Ending.ERROR_AFTER_ACK: Exit.LOST,
    Ending.LOST: Exit.LOST,
    Ending.PROTOCOL_ERROR: Exit.LOST,
    Ending.TIMEOUT: Exit.TIMEOUT,
}
"""The exit code for each way a stream ends."""
