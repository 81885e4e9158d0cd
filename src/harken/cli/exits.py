"""The exit codes of every command: a contract with scripts."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Exit"]


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


EXPLAINED = """\b
Exit codes: 0 ended gracefully or all events seen, 1 internal fault, 2 usage,
3 refused, 4 lost, 5 timeout, 130 Ctrl-C."""
