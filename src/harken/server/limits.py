"""How much a hub takes before it refuses, and the refusals themselves (decision D9)."""

from __future__ import annotations

from dataclasses import dataclass

from harken.core.filters import Filter
from harken.core.wire import INTERNAL_ERROR
from harken.errors import RPCError

__all__ = ["Limits", "busy", "check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The caps of a hub. Each is a whole number above 0."""

    max_streams: int = 100_000
    """Streams that may be open at once."""
    max_streams_per_channel: int = 1_000
    """Streams that may be open at once on one stdio channel."""
    max_uris: int = 20_000
    """URIs in one filter."""
    max_body: int = 1_048_576
    """Bytes of one request."""
    max_requests_per_channel: int = 100
    """Requests other than listens that one stdio channel may have in flight."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number above 0, not {value!r}")


def check(limits: Limits, requested: Filter, open_streams: int, on_channel: int = 0) -> None:
    """Raises RPCError where one more stream with this filter is too much."""
    if open_streams >= limits.max_streams:
        raise busy("server_full", "the server holds as many streams as it may; try again later")
    if on_channel >= limits.max_streams_per_channel:
        raise busy("quota", "this channel holds as many streams as it may; end one first")
    if len(requested.spellings) > limits.max_uris:
        raise busy(
            "quota", f"one stream may name {limits.max_uris} URIs, this one names {len(requested.spellings)}"
        )


def busy(reason: str, message: str, retry_after: int = 5) -> RPCError:
    """A refusal that may pass; `retry_after` is in seconds."""
    return RPCError(INTERNAL_ERROR, message, {"reason": reason, "retryAfter": retry_after})
