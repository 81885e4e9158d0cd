"""URI ↔ path: every name has a URI and comes back from it; no URI leads out."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harken.core.uris import normalize
from harken.errors import InvalidURI
from harken.sources.paths import Naming, file_base, shown

NOTES = Naming(file_base("/srv/notes"))

names = (
    st.one_of(
        st.binary(min_size=1, max_size=12),
        st.text(st.sampled_from("ab.~-_ !$&'()*+,;=:@[]#?%{}|\\^`\"<>é漢\x01"), min_size=1, max_size=12).map(
            os.fsencode
        ),
    )
    .filter(lambda name: name not in {b".", b".."} and b"/" not in name and b"\0" not in name)
    .map(os.fsdecode)
)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
bases = st.sampled_from(
    ["file:///", "file:///srv/a%20(b)/", "notes:///", "https://h.example/x/", "urn:notes/"]
)


@pytest.mark.clause("D7")
@given(bases, paths)
def test_every_path_has_a_uri_and_comes_back(base: str, path: str) -> None:
    naming = Naming(base)
    assert naming.path_of(naming.uri_of(path)) == path
    for uri in naming.spellings(path):
        assert normalize(uri) == uri
        assert naming.path_of(uri) == path


@given(bases, st.text(st.sampled_from("ab./%25eEfF0#?\\é ~:"), max_size=24))
@example("file:///srv/a%20(b)/", "%2e%2e/%2E%2e/etc/passwd")
@example("file:///", "..")
def test_no_uri_leads_out(base: str, rest: str) -> None:
    try:
        path = Naming(base).path_of(base + rest)
    except InvalidURI:
        return
    if path is not None:
        assert path
        assert not path.startswith("/")
        assert not {"", ".", ".."} & set(path.split("/"))
        assert "\0" not in path


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("a b.txt", "file:///srv/notes/a%20b.txt"),
        ("a#b?c%.txt", "file:///srv/notes/a%23b%3Fc%25.txt"),
        ("grüße/漢.md", "file:///srv/notes/gr%C3%BC%C3%9Fe/%E6%BC%A2.md"),
        (os.fsdecode(b"\xff\xfe"), "file:///srv/notes/%FF%FE"),
        ("a:b@c~d-e_f.g", "file:///srv/notes/a:b@c~d-e_f.g"),
        ("%2e%2e", "file:///srv/notes/%252e%252e"),
        ("back\\slash", "file:///srv/notes/back%5Cslash"),
        ("new\nline", "file:///srv/notes/new%0Aline"),
    ],
)
def test_names_are_encoded(path: str, uri: str) -> None:
    assert NOTES.uri_of(path) == uri
    assert NOTES.path_of(uri) == path


@pytest.mark.parametrize(
    "uri",
    [
        "file:///srv/notes/../secret",
        "file:///srv/notes/a/../../secret",
        "file:///srv/notes/%2e%2e/secret",
        "file:///srv/notes/%2E./secret",
        "file:///srv/notes/..%2Fsecret",
        "file:///srv/notes/%2e%2e%2fsecret",
        "file:///srv/notes/a%2Fb",
        "file:///srv/notes//etc/passwd",
        "file:///srv/notes/a//b",
        "file:///srv/notes/%00",
        "file:///srv/notes/a%00.txt",
        "file:///srv/notes/a/",
        "file:///srv/notes/",
        "file:///srv/notes",
        "file:///srv/notesx/a",
        "file:///srv/note",
        "file:///etc/passwd",
        "file:/srv/notes/a",
        "file://host/srv/notes/a",
        "file://user@/srv/notes/a",
        "file:///srv/notes/a?x",
        "file:///srv/notes/a#x",
        "file:///srv/notes?/a",
        "http:///srv/notes/a",
        "urn:x",
    ],
)
def test_other_uris_mean_nothing_here(uri: str) -> None:
    assert NOTES.path_of(uri) is None


@pytest.mark.parametrize(
    "uri", ["/srv/notes/a", "", "a", "file:///srv/notes/a b", "file:///srv/notes/%zz", "file:///srv/notes/\0"]
)
def test_what_is_no_uri_is_an_error(uri: str) -> None:
    with pytest.raises(InvalidURI):
        NOTES.path_of(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "FILE:///srv/notes/a",
        "file:///srv/./notes/x/../a",
        "file:///%73rv/notes/%61",
    ],
)
def test_every_spelling_is_understood(uri: str) -> None:
    assert NOTES.path_of(uri) == "a"
    assert Naming("FILE:///srv/x/../notes").path_of(uri) == "a"


def test_what_clients_make_of_a_path_is_among_the_spellings(node: str) -> None:
    path = "/srv/notes (old)/!$&'()*+,;=:@[] ~.txt"
    program = "process.stdout.write(url.pathToFileURL(process.argv[1]).href)"
    by_node = subprocess.run(
        [node, "-e", program, path], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    by_python = Path(path).as_uri()
    spellings = Naming(file_base("/srv/notes (old)")).spellings("!$&'()*+,;=:@[] ~.txt")
    assert len({*spellings, normalize(by_node), normalize(by_python)}) == len(spellings) == 3


def test_a_plain_name_has_one_spelling() -> None:
    assert NOTES.spellings("plans/trip 2.txt") == ("file:///srv/notes/plans/trip%202.txt",)


@pytest.mark.parametrize(
    ("given_base", "base"),
    [
        ("notes:///", "notes:///"),
        ("NOTES://Host", "notes://host/"),
        ("https://h.example/a/../b", "https://h.example/b/"),
        ("urn:notes", "urn:notes/"),
    ],
)
def test_the_base_ends_with_a_slash(given_base: str, base: str) -> None:
    assert Naming(given_base).base == base
    assert Naming(given_base).uri_of("a") == f"{base}a"


@pytest.mark.parametrize("base", ["/srv", "notes", "", "x://a?b", "x://a#b", "x://a b"])
def test_no_base(base: str) -> None:
    with pytest.raises(InvalidURI):
        Naming(base)


def test_the_root_of_the_file_system() -> None:
    assert file_base("/") == "file:///"
    assert Naming(file_base("/")).path_of("file:///etc/hosts") == "etc/hosts"


def test_shown_is_text_for_any_encoder() -> None:
    assert shown(os.fsdecode(b"a\xff")).encode() == "a\ufffd".encode()
