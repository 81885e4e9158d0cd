"""The normal form of URIs: RFC 3986's examples, two spellings of one URI, strings made to break it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harken.core import uris
from harken.core.uris import ancestors, normalize
from harken.errors import InvalidURI

NEVER = re.compile(r"(?!)")
UNRESERVED = "ABYZabyz0189-._~"
HARMLESS = "!$&'()*+,;=:@"
OTHERS = ' "%<>\\^`{|}\x00\x1f\x7f#?/é€😀'

# Every character that means something in a URI, and some that must not stand in one.
ADVERSARIAL = st.text(alphabet="aZ09:/?#.%2eEfF@[]-+~!é€\u2028\ud800 \n\\\"'*", max_size=24)
URI_LIKE = st.builds(
    "".join, st.tuples(st.sampled_from(["x:", "X:", "x:/", "x://", "file:///"]), ADVERSARIAL)
)


def slowly(uri: str) -> str:
    """`normalize()` without its fast path."""
    with patch.object(uris, "_NORMAL", NEVER):
        return normalize(uri)


@pytest.mark.clause("D7")
@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        # RFC 3986, section 6.2.2 and its parts
        ("eXAMPLE://a/./b/../b/%63/%7bfoo%7d", "example://a/b/c/%7Bfoo%7D"),
        ("HTTP://www.EXAMPLE.com/", "http://www.example.com/"),
        ("http://EXAMPLE.com", "http://example.com"),
        ("http://a.example/%3a", "http://a.example/%3A"),
        ("http://a.example/%7Euser", "http://a.example/~user"),
        # section 5.2.4's own examples
        ("x:/a/b/c/./../../g", "x:/a/g"),
        ("http://a/b/c/../../../g", "http://a/g"),
        ("http://a/b/c/.", "http://a/b/c/"),
        ("http://a/b/c/..", "http://a/b/"),
        ("http://a/b/c/g.", "http://a/b/c/g."),
        ("http://a/b/c/..g", "http://a/b/c/..g"),
        ("http://a/./g/.", "http://a/g/"),
        ("http://a/..", "http://a/"),
        # an encoded dot is a dot, an encoded slash is no slash
        ("x://h/a/%2e%2E/b", "x://h/b"),
        ("x://h/a%2fb", "x://h/a%2Fb"),
        # query and fragment know no dot segments and keep their case
        ("X://H/A?Q=/../%41#F/./%61", "x://h/A?Q=/../A#F/./a"),
        # the host is without case, the user's name and the path are not
        ("x://User@HOST:80/Path", "x://User@host:80/Path"),
        ("x://u%40V@H%c3%84/", "x://u%40V@h%C3%84/"),
        ("x://%48OST/", "x://host/"),
        ("x://[2001:DB8::1]/", "x://[2001:db8::1]/"),
        # both spellings of a character outside ASCII
        ("x://h/é", "x://h/%C3%A9"),
        ("x://h/%c3%a9", "x://h/%C3%A9"),
        ("x:😀", "x:%F0%9F%98%80"),
        # without a hierarchy there is nothing to remove
        ("urn:ISBN:0-395-36341-1", "urn:ISBN:0-395-36341-1"),
        ("x:a/../b", "x:a/../b"),
        ("x:", "x:"),
        ("x:?", "x:?"),
        ("x://", "x://"),
        ("x://?q", "x://?q"),
        ("file:///", "file:///"),
        # a path must not turn into an authority
        ("x:/.//B", "x:/.//B"),
        ("x:/a/..//B", "x:/.//B"),
        ("x:/a/../..//", "x:/.//"),
        ("x://h/a/..//B", "x://h//B"),
        ("x:////B", "x:////B"),
    ],
)
def test_the_normal_form(uri: str, normal: str) -> None:
    assert normalize(uri) == normal
    assert slowly(uri) == normal
    assert normalize(normal) == normal


@pytest.mark.clause("D7")
@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("", "scheme"),
        ("x", "scheme"),
        ("/a/b", "scheme"),
        ("//h/a", "scheme"),
        ("1x:a", "scheme"),
        (":a", "scheme"),
        ("é:a", "scheme"),
        (" x:a", "scheme"),
        ("x:a b", "' '"),
        ("x:a\n", r"\\n"),
        ("x:a\x7f", r"\\x7f"),
        ("C:\\notes", r"'\\\\'"),
        ("x:<a>", "'<'"),
        ("x:%", "'%'"),
        ("x:%2", "'%'"),
        ("x:%g0", "'%'"),
        ("x://h%zz/", "'%'"),
        ("x:a#{}", "'{'"),
        ("x:\ud800", "surrogate"),
        ("x://\udfff/", "surrogate"),
        ("x:?\ud83d", "surrogate"),
        ("\udfff:a", "scheme"),
    ],
)
def test_what_is_no_uri_is_refused_and_the_error_can_be_sent(uri: str, named: str) -> None:
    with pytest.raises(InvalidURI, match=named) as caught:
        normalize(uri)
    assert str(caught.value).encode()  # half a surrogate pair in it would fail here


def test_an_error_repeats_the_start_of_a_long_string_alone() -> None:
    with pytest.raises(InvalidURI) as caught:
        normalize("x" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.clause("D7")
@given(ADVERSARIAL | URI_LIKE)
@example("x://A")
@example("x://a:B/")
@example("x:/.//B")
@example("x:/a/%2e%2e//B?/../")
@example("x:\n")
def test_the_normal_form_is_its_own_normal_form(uri: str) -> None:
    try:
        normal = normalize(uri)
    except InvalidURI:
        return
    assert normalize(normal) == normal
    assert normal.isascii()


@pytest.mark.clause("D7")
@given(ADVERSARIAL | URI_LIKE | st.text(max_size=20))
@example("x://A")
@example("x://a/.b")
@example("x:\n")
@example("x:a\n")
@example("x://[A]")
def test_the_fast_path_says_what_the_slow_one_says(uri: str) -> None:
    try:
        expected = slowly(uri)
    except InvalidURI:
        with pytest.raises(InvalidURI):
            normalize(uri)
    else:
        assert normalize(uri) == expected


# -- The same in other words: RFC 3986's own algorithm, over the parts that urllib finds


def without_dots(path: str) -> str:
    """RFC 3986, section 5.2.4, step by step as it stands there."""
    output = ""
    while path:
        if path.startswith(("../", "./")):
            path = path[path.index("/") + 1 :]
        elif path.startswith("/./") or path == "/.":
            path = "/" + path[3:]
        elif path.startswith("/../") or path == "/..":
            path = "/" + path[4:]
            output = output[: max(output.rfind("/"), 0)]
        elif path in {".", ".."}:
            path = ""
        else:
            end = path.find("/", 1)
            end = len(path) if end < 0 else end
            output, path = output + path[:end], path[end:]
    return output


def decoded(part: str) -> str:
    """Percent-encodings one by one from the left, as section 6.2.2 wants them."""
    done = ""
    while part:
        if part[0] == "%":
            character = chr(int(part[1:3], 16))
            kept = character.isascii() and (character.isalnum() or character in "-._~")
            done, part = done + (character if kept else part[:3].upper()), part[3:]
        else:
            done, part = done + part[0], part[1:]
    return done


@pytest.mark.clause("D7")
@given(
    st.from_regex(
        r"[a-c]{1,2}://(u@)?[a-cA-C.%]{0,4}(:8)?(/[a-c.%2eEF]{0,4}){0,6}(\?[a./]*)?", fullmatch=True
    )
)
def test_it_agrees_with_the_words_of_the_rfc(uri: str) -> None:
    try:
        normal = normalize(uri)
    except InvalidURI:
        assert re.search("%(?![0-9a-fA-F]{2})", uri)
        return
    parts = urlsplit(uri)
    user, at, host = parts.netloc.rpartition("@")
    host = re.sub("%..", lambda encoded: encoded[0].upper(), decoded(host).lower())
    query = "?" + decoded(parts.query) if "?" in uri else ""
    assert normal == f"{parts.scheme}://{decoded(user)}{at}{host}{without_dots(decoded(parts.path))}{query}"


# -- Equal exactly for equivalent spellings: a URI as it is meant, spelled in two random ways


@dataclass(frozen=True)
class Meant:
    """A URI before it is spelled. A text is a tuple of characters; `(octet,)` is one that must be encoded."""

    scheme: str
    host: tuple[str, ...] | None
    segments: tuple[tuple[str, ...], ...]
    query: tuple[str, ...] | None


TEXT = st.lists(st.sampled_from(UNRESERVED + HARMLESS + OTHERS), max_size=4).map(tuple)
SEGMENT = TEXT.filter(lambda text: "".join(text) not in {".", ".."})
MEANT = st.builds(
    Meant,
    st.sampled_from(["x", "file", "a+b"]),
    st.none() | st.lists(st.sampled_from("abz09-. é"), max_size=3).map(tuple),
    st.lists(SEGMENT, max_size=4).map(tuple),
    st.none() | TEXT,
)


def spell_text(draw: st.DrawFn, text: tuple[str, ...], *, any_case: bool = False) -> str:
    return "".join(spell_character(draw, character, any_case) for character in text)


def spell_character(draw: st.DrawFn, character: str, any_case: bool) -> str:
    if any_case and draw(st.booleans()):
        character = character.upper() if character.isascii() else character
    literal = character in HARMLESS or not character.isascii() or character in UNRESERVED
    if character in HARMLESS or (literal and draw(st.booleans())):
        return character
    octets = character.encode()
    return "".join(f"%{octet:02x}" if draw(st.booleans()) else f"%{octet:02X}" for octet in octets)


def spell_path(draw: st.DrawFn, meant: Meant) -> str:
    dots = st.sampled_from(["/.", "/%2E", "/gone/..", "/a/b/../%2e%2e"])
    path = ""
    for segment in meant.segments:
        path += "".join(draw(st.lists(dots, max_size=2))) + "/" + spell_text(draw, segment)
    return "/." + path if meant.host is None and path.startswith("//") else path


@st.composite
def two_spellings(draw: st.DrawFn, meant: Meant) -> tuple[str, str]:
    first, second = (spell(draw, meant) for _ in range(2))
    return first, second


def spell(draw: st.DrawFn, meant: Meant) -> str:
    scheme = "".join(c.upper() if draw(st.booleans()) else c for c in meant.scheme)
    authority = "" if meant.host is None else "//" + spell_text(draw, meant.host, any_case=True)
    query = "" if meant.query is None else "?" + spell_text(draw, meant.query)
    return f"{scheme}:{authority}{spell_path(draw, meant)}{query}"


@pytest.mark.clause("D7")
@given(st.data(), MEANT)
def test_two_spellings_of_one_uri_meet(data: st.DataObject, meant: Meant) -> None:
    first, second = data.draw(two_spellings(meant))
    assert normalize(first) == normalize(second)


@pytest.mark.clause("D7")
@given(st.data(), MEANT, MEANT)
def test_two_uris_never_meet(data: st.DataObject, one: Meant, other: Meant) -> None:
    first, second = data.draw(two_spellings(one))[0], data.draw(two_spellings(other))[0]
    assert (normalize(first) == normalize(second)) == (one == other)


# -- Ancestors


@pytest.mark.clause("D8")
@pytest.mark.parametrize(
    ("uri", "above"),
    [
        ("x://a/b", ["x://a/", "x://a"]),
        ("x://a/b/", ["x://a/b", "x://a/", "x://a"]),
        ("x://a/b/c", ["x://a/b/", "x://a/b", "x://a/", "x://a"]),
        ("x://a/b?c/d#e/f", ["x://a/", "x://a"]),
        ("x://a/b#e/f?g", ["x://a/", "x://a"]),
        ("x://ab", []),
        ("x://ab?c/d", []),
        ("x:a/b", ["x:a/", "x:a"]),
        ("urn:a:b", []),
        ("file:///a", ["file:///", "file://"]),
        ("x:/", ["x:"]),
        ("x:", []),
    ],
)
def test_ancestors_are_whole_segments_nearest_first(uri: str, above: list[str]) -> None:
    assert list(ancestors(uri)) == above


def above_by_segments(uri: str) -> Iterator[str]:
    """The same by splitting: drop the last segment, then the slash before it, and so on."""
    head, slashes, rest = uri.partition("://")
    segments = re.split("[?#]", rest)[0].split("/")
    for count in range(len(segments) - 1, 0, -1):
        above = head + slashes + "/".join(segments[:count])
        yield from (each for each in (above + "/", above) if each != uri)


@pytest.mark.clause("D8")
@given(st.from_regex(r"x://[a-b]{0,2}(/[a-b]{0,2}){0,5}([?#][a/?#]*)?", fullmatch=True), st.integers(0, 20))
def test_ancestors_agree_with_splitting(uri: str, longest: int) -> None:
    assert list(ancestors(uri)) == list(above_by_segments(uri))
    assert list(ancestors(uri, longest)) == [each for each in ancestors(uri) if len(each) <= longest]


# -- A megabyte costs no more than a megabyte: with backtracking these would run for hours

LONG = [
    "x:" + "a" * 1_000_000 + "%",
    "x://" + "a" * 1_000_000 + "%",
    "x://h/" + "a/" * 500_000 + "%",
    "x://h?" + "?" * 1_000_000 + " ",
    "x:" + "/.." * 330_000,
    "x:" + "%41" * 330_000,
    "x:" + "é" * 500_000,
    "x" * 1_000_000,
    "x://" + "@" * 1_000_000 + "%",
    "x:/" + "." * 1_000_000,
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("uri", LONG, ids=lambda uri: uri[:8])
def test_a_long_string_is_read_in_bounded_time(uri: str) -> None:
    try:
        assert normalize(uri).startswith("x:")
    except InvalidURI:
        assert uri[-1] in "% x"


@pytest.mark.timeout(20)
def test_a_million_slashes_cost_no_more_than_the_caller_can_use() -> None:
    assert list(ancestors("x://h/" + "a/" * 500_000, 8)) == ["x://h/a/", "x://h/a", "x://h/", "x://h"]
