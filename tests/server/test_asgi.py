"""A request's body, read once for two readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harken.server.asgi import Receive, read_body, replay

pytestmark = pytest.mark.anyio


def giving(*messages: Any) -> Receive:
    """A `receive` that gives these, and fails when asked for more."""
    left: Iterator[Any] = iter(messages)

    async def receive() -> Any:
        return next(left)

    return receive


def part(body: bytes, more: bool = True) -> dict[str, Any]:
    """One message of a request."""
    return {"type": "http.request", "body": body, "more_body": more}


GONE = {"type": "http.disconnect"}


async def test_a_body_is_read_to_its_end() -> None:
    assert await read_body(giving(part(b"a"), part(b""), part(b"b", False)), 10) == ([b"a", b"b"], True)
    assert await read_body(giving({"type": "http.request"}), 10) == ([], True)


@pytest.mark.parametrize("before", [[], [part(b"abc")], [part(b"")]])
async def test_of_a_client_that_left_nothing_is_read(before: list[Any]) -> None:
    assert await read_body(giving(*before, GONE), 10) == (None, False)


async def test_reading_stops_past_the_cap() -> None:
    assert await read_body(giving(part(b"ab"), part(b"cd")), 3) == ([b"ab", b"cd"], False)
    assert await read_body(giving(part(b"abc"), part(b"", False)), 3) == ([b"abc"], True)


async def test_a_body_whose_last_chunk_passes_the_cap_is_whole() -> None:
    """Else its second reader would wait for an end that has come already."""
    chunks, complete = await read_body(giving(part(b"ab"), part(b"cd", False)), 3)
    assert (chunks, complete) == ([b"ab", b"cd"], True)


async def test_the_second_reader_gets_everything_once() -> None:
    whole = replay([b"ab", b"cd"], True, giving(GONE))
    assert [await whole(), await whole()] == [part(b"abcd", False), GONE]
    begun = replay([b"ab"], False, giving(part(b"cd"), part(b"", False), GONE))
    assert [await begun() for _ in range(4)] == [part(b"ab"), part(b"cd"), part(b"", False), GONE]
