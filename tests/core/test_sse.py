"""Server-sent events are read as the standard says, wherever a read splits them."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harken.core.sse import Comment, Oversized, ServerSentEvent, SSEDecoder

Item = ServerSentEvent | Comment | Oversized

PIECES = [
    b"data",
    b"event",
    b"id",
    b"retry",
    b":",
    b" ",
    b"\r",
    b"\n",
    b"\r\n",
    b"x",
    b"\xef\xbb\xbf",
    b"\xff",
]
STREAMS = st.lists(st.sampled_from([*PIECES, b"data: x\n\n", b":\r\n", b"data\n"]), max_size=40).map(b"".join)


def message(data: bytes) -> ServerSentEvent:
    return ServerSentEvent("message", data)


def decode(stream: bytes, cap: int = 1024) -> list[Item]:
    return SSEDecoder(cap).feed(stream)


def decode_in(pieces: list[bytes], cap: int = 1024) -> list[Item]:
    decoder = SSEDecoder(cap)
    return [item for piece in pieces for item in decoder.feed(piece)]


def by_the_standard(stream: bytes) -> list[Item]:
    """The standard's algorithm, line by line over the whole stream, as plainly as it can be written."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found: list[Item] = []
    data, event = b"", b""
    for line in text.split(b"\n")[:-1]:
        if line == b"":
            if data:
                found.append(ServerSentEvent(event.decode(errors="replace") or "message", data[:-1]))
            data, event = b"", b""
        elif line.startswith(b":"):
            found.append(Comment())
        else:
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                data += value + b"\n"
            elif field == b"event":
                event = value
    return found


@pytest.mark.field("F24")
@given(STREAMS)
@example(b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n")
def test_it_reads_as_the_standard_says(stream: bytes) -> None:
    assert decode(stream) == by_the_standard(stream)


@pytest.mark.clause("H11")
@pytest.mark.field("F24")
@given(STREAMS, st.lists(st.integers(0, 400)), st.sampled_from([1024, 12, 3]))
def test_any_split_reads_the_same(stream: bytes, cuts: list[int], cap: int) -> None:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    whole = decode(stream, cap)
    assert decode_in(pieces, cap) == whole
    assert decode_in([bytes([byte]) for byte in stream], cap) == whole


@pytest.mark.clause("H11")
@pytest.mark.field("F24")
@pytest.mark.parametrize("comment", [b":\n", b":\r\n", b":\r", b": ping\n", b":data: x\n"])
def test_a_comment_is_a_keep_alive_and_disturbs_no_event(comment: bytes) -> None:
    assert decode(comment) == [Comment()]
    assert decode(b"data: a\n" + comment + b"data: b\n\n") == [Comment(), message(b"a\nb")]


@pytest.mark.field("F24")
@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"\xef\xbb\xbfdata: x\n\n", [message(b"x")]),
        (b"data: x\r\rdata: y\r\r", [message(b"x"), message(b"y")]),
        (b"event: message\n\n", []),
        (b"event: other\ndata: x\n\n", [ServerSentEvent("other", b"x")]),
        (b"event: other\n\ndata: x\n\n", [message(b"x")]),
        (b"id: 1\nretry: 2\nunknown: 3\ndata: x\n\n", [message(b"x")]),
        (b"data\n\n", [message(b"")]),
        (b"data:  x\n\n", [message(b" x")]),
        (b"data: x\n", []),
        (b"data: x", []),
        (b"event: \xff\ndata: x\n\n", [ServerSentEvent("\ufffd", b"x")]),
    ],
)
def test_what_servers_send(stream: bytes, events: list[Item]) -> None:
    assert decode(stream) == events


@pytest.mark.field("F24")
@pytest.mark.parametrize(
    "stream",
    [
        b"data: " + b"x" * 95,
        b"data: " + b"x" * 95 + b"\n\n",
        b"data: " + b"x" * 44 + b"\ndata: " + b"x" * 45 + b"\n\n",
        b":" + b"x" * 100,
        b":" + b"x" * 100 + b"\n",
    ],
    ids=["unfinished", "one line", "several lines", "unfinished comment", "comment"],
)
def test_over_the_cap_nothing_more_is_read(stream: bytes) -> None:
    decoder = SSEDecoder(100)
    assert decoder.feed(b"data: ok\n\n" + stream) == [message(b"ok"), Oversized(100)]
    assert decoder.feed(b"\n\ndata: later\n\n") == []


@pytest.mark.field("F24")
def test_at_the_cap_all_is_read_for_ever() -> None:
    line = b"data: " + b"x" * 94
    decoder = SSEDecoder(100)
    for _ in range(3):
        assert decoder.feed(line + b"\n\n:\n") == [message(b"x" * 94), Comment()]


@pytest.mark.field("F24")
def test_many_small_reads_of_a_long_event_cost_no_more_than_their_bytes() -> None:
    """Byte by byte a megabyte: quadratic work would run into the time limit of every test."""
    decoder = SSEDecoder()
    data = b"x" * (1024 * 1024 - 6)
    found = [item for byte in b"data: " + data + b"\n\n" for item in decoder.feed(bytes([byte]))]
    assert found == [message(data)]
