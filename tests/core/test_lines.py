"""Lines are read wherever a read splits them; one over the cap is told of and skipped."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.core.lines import LineDecoder, Oversized

STREAMS = st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"bc", b"xxxxxxxx"]), max_size=40).map(
    b"".join
)


def plainly(stream: bytes, cap: int) -> list[bytes | Oversized]:
    """Line by line over the whole stream."""
    *lines, rest = stream.split(b"\n")
    found = [Oversized(cap) if len(line) > cap else line.removesuffix(b"\r") for line in lines]
    if len(rest) > cap:
        found.append(Oversized(cap))
    return [line for line in found if line]


@pytest.mark.clause("T1", "T9")
@given(STREAMS, st.lists(st.integers(0, 200)), st.sampled_from([100, 8, 3, 1]))
def test_any_split_reads_the_same(stream: bytes, cuts: list[int], cap: int) -> None:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = LineDecoder(cap)
    found = [line for start, end in pairwise(edges) for line in decoder.feed(stream[start:end])]
    assert found == plainly(stream, cap)


@pytest.mark.clause("T1")
def test_blank_lines_and_an_unfinished_one_are_no_messages() -> None:
    assert LineDecoder().feed(b'\n\r\n{"a":1}\r\n\n{"b"') == [b'{"a":1}']


@pytest.mark.clause("T9")
@pytest.mark.field("F24")
def test_after_a_line_over_the_cap_the_next_one_is_read() -> None:
    decoder = LineDecoder(4)
    assert decoder.feed(b"1234\n12345") == [b"1234", Oversized(4)]
    assert decoder.feed(b"67890" * 1000) == []
    assert decoder.feed(b"\nok\n") == [b"ok"]


@pytest.mark.clause("T9")
def test_many_small_reads_of_a_long_line_cost_no_more_than_their_bytes() -> None:
    """Byte by byte a megabyte: quadratic work would run into the time limit of every test."""
    decoder = LineDecoder()
    line = b"x" * 1024 * 1024
    assert [found for byte in line + b"\n" for found in decoder.feed(bytes([byte]))] == [line]
