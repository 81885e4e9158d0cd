"""The three methods: what they answer, that the answers keep to the schema, and what they never give out."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Mapping
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import Any

import pytest
from mcp_types.methods import parse_server_result

from harken.core.wire import PROTOCOL_VERSION, Meta
from harken.errors import RPCError
from harken.server.methods import Request
from harken.sources.files import Files, media_type
from harken.sources.folder import Folder
from tests.sources.conftest import Ear

pytestmark = pytest.mark.anyio


async def call(files: Files, method: str, **params: object) -> Any:
    """The result, after a look whether it keeps to the schema."""
    request = Request(1, method, params, Meta(PROTOCOL_VERSION, {}))
    result: Mapping[str, object] = await files.methods[method](request)
    whole = {"resultType": "complete", **result}
    parse_server_result(method, PROTOCOL_VERSION, whole)
    return result


async def refusal(files: Files, method: str, **params: object) -> RPCError:
    with pytest.raises(RPCError) as caught:
        await call(files, method, **params)
    return caught.value


async def listed(files: Files) -> list[Any]:
    """All pages."""
    result = await call(files, "resources/list")
    resources = list(result["resources"])
    while "nextCursor" in result:
        result = await call(files, "resources/list", cursor=result["nextCursor"])
        resources += result["resources"]
    return resources


@pytest.fixture
def folder(notes: Path) -> Folder:
    return Folder(notes)


@pytest.fixture
def files(folder: Folder) -> Files:
    return Files(folder)


def uri(path: Path) -> str:
    return path.as_uri()


def entry(notes: Path, name: str, size: int, kind: str) -> dict[str, object]:
    return {"uri": uri(notes / name), "name": name, "size": size, "mimeType": kind}


async def test_the_list(notes: Path, folder: Folder, ear: Ear) -> None:
    (notes / "a.bin").write_bytes(b"\0")
    async with folder.watching(ear):
        assert await call(Files(folder), "resources/list") == {
            "resources": [
                entry(notes, "a.bin", 1, "application/octet-stream"),
                entry(notes, "plans/trip.txt", 9, "text/plain"),
                entry(notes, "today.md", 8, "text/markdown"),
            ],
            "ttlMs": 0,
            "cacheScope": "private",
        }


async def test_a_name_that_tells_no_type_and_is_no_utf8(notes: Path, folder: Folder, ear: Ear) -> None:
    (notes / os.fsdecode(b"\xff")).touch()
    async with folder.watching(ear):
        first, *_, last = await listed(Files(folder))
        assert first["name"] == "plans/trip.txt"
        assert last == {"uri": f"{uri(notes)}/%FF", "name": "\ufffd", "size": 0}


async def test_everything_listed_can_be_read(notes: Path, folder: Folder, ear: Ear) -> None:
    names = [b"a b", b"#?%", b"\xff", "grüße".encode(), b"%41", b"back\\slash", b"new\nline", b"'\"<>[]{}|^`"]
    for name in names:
        (notes / os.fsdecode(name)).write_bytes(name)
    async with folder.watching(ear):
        files = Files(folder)
        contents = set()
        for resource in await listed(files):
            (content,) = (await call(files, "resources/read", uri=resource["uri"]))["contents"]
            assert content["uri"] == resource["uri"]
            contents.add(content["text"].encode() if "text" in content else base64.b64decode(content["blob"]))
        assert contents >= set(names)


async def test_pages(notes: Path, folder: Folder, ear: Ear) -> None:
    for number in range(8):
        (notes / f"{number}.txt").touch()
    async with folder.watching(ear):
        for page in (1, 2, 3, 5, 9, 10, 11):
            pages = await listed(Files(folder, page=page))
            assert [found["name"] for found in pages] == [
                *(f"{number}.txt" for number in range(8)),
                "plans/trip.txt",
                "today.md",
            ]
        whole = await call(Files(folder, page=10), "resources/list")
        assert "nextCursor" not in whole


async def test_a_page_is_a_thousand(notes: Path, folder: Folder, ear: Ear) -> None:
    for number in range(1_001):
        (notes / "plans" / str(number)).touch()
    async with folder.watching(ear):
        files = Files(folder)
        first = await call(files, "resources/list")
        assert len(first["resources"]) == 1_000
        rest = await call(files, "resources/list", cursor=first["nextCursor"])
        assert len(rest["resources"]) == 3


async def test_a_cursor_outlives_the_file_it_stands_at(notes: Path, folder: Folder, ear: Ear) -> None:
    async with folder.watching(ear):
        files = Files(folder, page=1)
        first = await call(files, "resources/list")
        (notes / "plans" / "trip.txt").unlink()
        await asyncio.to_thread(ear.wait_until, lambda: len(folder.seen.paths) == 1)
        second = await call(files, "resources/list", cursor=first["nextCursor"])
        assert [found["name"] for found in second["resources"]] == ["today.md"]


@pytest.mark.parametrize("cursor", ["", "*", "x", "a===", "YQ==\n", "a b", "é", None, 1, [], {}, True])
async def test_a_bad_cursor(files: Files, cursor: object) -> None:
    assert (await refusal(files, "resources/list", cursor=cursor)).code == -32602
    assert (await refusal(files, "resources/templates/list", cursor=cursor)).code == -32602


async def test_a_forged_cursor_is_a_place_in_the_list_and_nothing_else(
    notes: Path, folder: Folder, ear: Ear
) -> None:
    async with folder.watching(ear):
        forged = base64.urlsafe_b64encode(b"../../etc/passwd\0\xff").decode()
        result = await call(Files(folder), "resources/list", cursor=forged)
        assert len(result["resources"]) == 2


async def test_the_list_is_empty_while_the_folder_is_away(notes: Path, folder: Folder, ear: Ear) -> None:
    async with folder.watching(ear):
        os.rename(notes, notes.parent / "away")
        await asyncio.to_thread(ear.wait_until, lambda: not folder.seen.paths)
        files = Files(folder)
        assert await listed(files) == []
        assert (await refusal(files, "resources/read", uri=uri(notes / "today.md"))).code == -32602


async def test_the_template(notes: Path, files: Files) -> None:
    result = await call(files, "resources/templates/list")
    (template,) = result["resourceTemplates"]
    assert template["uriTemplate"] == f"{uri(notes)}/{{+path}}"
    assert template["name"] == "notes"
    expanded = template["uriTemplate"].replace("{+path}", "plans/trip.txt")
    assert (await call(files, "resources/read", uri=expanded))["contents"][0]["text"] == "by train\n"


async def test_the_template_below_another_base(notes: Path) -> None:
    files = Files(Folder(notes, base_uri="notes://mine"))
    (template,) = (await call(files, "resources/templates/list"))["resourceTemplates"]
    assert template["uriTemplate"] == "notes://mine/{+path}"
    content = (await call(files, "resources/read", uri="notes://mine/today.md"))["contents"][0]
    assert content == {"uri": "notes://mine/today.md", "mimeType": "text/markdown", "text": "# Today\n"}
    assert (await refusal(files, "resources/read", uri=uri(notes / "today.md"))).code == -32602


@pytest.mark.parametrize(
    ("name", "data", "kind", "content"),
    [
        ("a.txt", b"", "text/plain", {"text": ""}),
        ("a", "grüße\r\n".encode(), "text/plain", {"text": "grüße\r\n"}),
        ("a.json", b"{}", "application/json", {"text": "{}"}),
        ("a", b"a\0b", "application/octet-stream", {"blob": "YQBi"}),
        ("a", b"\xff", "application/octet-stream", {"blob": "/w=="}),
        ("a.txt", b"\xff", "text/plain", {"blob": "/w=="}),
        ("a.png", b"\x89PNG\r\n\x1a\n", "image/png", {"blob": "iVBORw0KGgo="}),
        ("a.svg", b"<svg/>", "image/svg+xml", {"text": "<svg/>"}),
    ],
)
async def test_text_and_binary(
    notes: Path, files: Files, name: str, data: bytes, kind: str, content: dict[str, str]
) -> None:
    (notes / name).write_bytes(data)
    result = await call(files, "resources/read", uri=uri(notes / name))
    assert result == {
        "contents": [{"uri": uri(notes / name), "mimeType": kind, **content}],
        "ttlMs": 0,
        "cacheScope": "private",
    }


@pytest.mark.clause("D7")
async def test_the_uri_comes_back_as_the_client_spelled_it(notes: Path, files: Files) -> None:
    spelled = f"FILE://{notes}/x/../%74oday.md"
    (content,) = (await call(files, "resources/read", uri=spelled))["contents"]
    assert content["uri"] == spelled
    assert content["text"] == "# Today\n"


@pytest.mark.parametrize(
    "rest",
    [
        "absent.md",
        "plans",
        "plans/",
        "",
        "today.md/",
        "today.md/x",
        "/today.md",
        "../secret",
        "..%2Fsecret",
        "%2e%2e/secret",
        "%2E%2E%2Fsecret",
        "plans/../../secret",
        "plans%2Ftrip.txt",
        "//etc/passwd",
        "%2Fetc%2Fpasswd",
        "today.md%00",
        "%00",
        "link",
        "up/secret",
        "inside",
        "pipe",
        ".hidden",
        ".git/config",
        "a.log",
        "today.md?x",
        "today.md#x",
        "x" * 300,
        "x/" * 3_000,
    ],
)
async def test_what_is_not_served_is_not_found(notes: Path, rest: str) -> None:
    """Whatever the reason, the answer is the same: it tells nothing of what is there."""
    (notes.parent / "secret").write_text("secret")
    (notes / "link").symlink_to(notes.parent / "secret")
    (notes / "up").symlink_to(notes.parent)
    (notes / "inside").symlink_to(notes / "today.md")
    os.mkfifo(notes / "pipe")
    (notes / ".git").mkdir()
    for name in (".hidden", ".git/config", "a.log"):
        (notes / name).touch()
    asked = f"{uri(notes)}/{rest}"
    error = await refusal(Files(Folder(notes, exclude=["*.log"])), "resources/read", uri=asked)
    assert (error.code, error.message, error.data) == (-32602, "Resource not found", {"uri": asked})


@pytest.mark.parametrize(
    "asked",
    [
        "http://127.0.0.1{}",
        "file://elsewhere{}",
        "file:{}",
        "file://user@{}",
        "urn:{}",
        "data:text/plain,x{}",
    ],
)
async def test_other_schemes_and_hosts_are_not_found(notes: Path, files: Files, asked: str) -> None:
    asked = asked.format(notes / "today.md")
    error = await refusal(files, "resources/read", uri=asked)
    assert (error.code, error.data) == (-32602, {"uri": asked})


@pytest.mark.parametrize("asked", ["", "today.md", "/etc/passwd", "file:///a b", "file:///%", "x:\0"])
async def test_no_uri(files: Files, asked: str) -> None:
    error = await refusal(files, "resources/read", uri=asked)
    assert (error.code, error.data) == (-32602, {"uri": asked})
    assert "not a URI" in error.message


@pytest.mark.parametrize("params", [{}, {"uri": None}, {"uri": 1}, {"uri": []}, {"uri": {}}, {"uri": True}])
async def test_no_string(files: Files, params: dict[str, object]) -> None:
    assert (await refusal(files, "resources/read", **params)).code == -32602


async def test_a_hidden_file_is_read_where_asked_for(notes: Path) -> None:
    (notes / ".hidden").write_text("x")
    files = Files(Folder(notes, hidden=True))
    assert (await call(files, "resources/read", uri=uri(notes / ".hidden")))["contents"][0]["text"] == "x"


async def test_a_file_that_is_too_large(notes: Path, folder: Folder) -> None:
    (notes / "large").write_bytes(b"x" * 11)
    (notes / "just").write_bytes(b"x" * 10)
    files = Files(folder, largest=10)
    error = await refusal(files, "resources/read", uri=uri(notes / "large"))
    assert error.code == -32603
    assert error.data == {"uri": uri(notes / "large"), "size": 11, "limit": 10}
    assert "larger than 10 bytes" in error.message
    assert (await call(files, "resources/read", uri=uri(notes / "just")))["contents"][0]["text"] == "x" * 10


async def test_a_file_without_permission(notes: Path, files: Files) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (notes / "today.md").chmod(0)
    error = await refusal(files, "resources/read", uri=uri(notes / "today.md"))
    assert error.code == -32603
    assert "Permission denied" in error.message


async def test_trouble_of_the_server_is_not_taken_for_absence(notes: Path, files: Files) -> None:
    await call(files, "resources/read", uri=uri(notes / "today.md"))  # its thread is there from now on
    limits = getrlimit(RLIMIT_NOFILE)
    setrlimit(RLIMIT_NOFILE, (3, limits[1]))
    try:
        error = await refusal(files, "resources/read", uri=uri(notes / "today.md"))
    finally:
        setrlimit(RLIMIT_NOFILE, limits)
    assert error.code == -32603
    assert "Too many open files" in error.message


async def test_many_reads_at_once(notes: Path, files: Files) -> None:
    results = await asyncio.gather(
        *(call(files, "resources/read", uri=uri(notes / "today.md")) for _ in range(50))
    )
    assert {result["contents"][0]["text"] for result in results} == {"# Today\n"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.md", "text/markdown"),
        ("A.TXT", "text/plain"),
        ("a.yml", "application/yaml"),
        ("a.tar.gz", "application/gzip"),
        ("a.txt.bz2", "application/x-bzip2"),
        ("a.Z", "application/octet-stream"),
        ("data:text/html,x.txt", "text/plain"),
        ("http:.png", "image/png"),
        ("a?b#c.css", "text/css"),
        ("dir.png/README", None),
        ("README", None),
        ("a.", None),
        ("", None),
        (os.fsdecode(b"\xff.txt"), "text/plain"),
    ],
)
def test_media_types(name: str, kind: str | None) -> None:
    assert media_type(name) == kind
