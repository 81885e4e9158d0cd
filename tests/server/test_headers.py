"""What a request's headers must be, and what they say."""

from __future__ import annotations

from typing import Any

import pytest

from harken.core.wire import LISTEN, Inbound
from harken.errors import RPCError
from harken.server.headers import (
    PREFLIGHT,
    Headers,
    accepts_sse,
    check_body,
    check_names,
    check_present,
    cors,
    host_allowed,
    origin_allowed,
)
from tests.serving import new_hub

READ = Inbound(1, "resources/read", {"uri": "x://a"})


def headers(**values: str | list[str]) -> Headers:
    """Headers by their names with underscores."""
    return Headers(
        (name.replace("_", "-").encode(), each.encode("latin-1"))
        for name, value in values.items()
        for each in ([value] if isinstance(value, str) else value)
    )


GOOD = {"MCP_Protocol_Version": "2026-07-28", "mcp_method": "resources/read"}


@pytest.mark.clause("H4")
def test_names_are_case_insensitive_and_values_are_not() -> None:
    for name in ("MCP_NAME", "mcp_name", "Mcp_Name"):
        good = headers(**GOOD, **{name: "x://a"})
        check_present(good, READ)
        check_body(good, READ, "2026-07-28")
    with pytest.raises(RPCError) as refusal:
        check_body(headers(**GOOD, mcp_name="X://a"), READ, "2026-07-28")
    assert refusal.value.code == -32020


@pytest.mark.clause("H4")
@pytest.mark.parametrize("missing", ["MCP_Protocol_Version", "mcp_method", "mcp_name"])
@pytest.mark.parametrize("value", [[], "", " ", "a\x00", "\xe9", ["x", "x"], ["x", ""]])
def test_each_is_there_once_and_well_formed(missing: str, value: str | list[str]) -> None:
    with pytest.raises(RPCError) as refusal:
        check_present(headers(**{**GOOD, "mcp_name": "x://a", missing: value}), READ)
    assert refusal.value.code == -32020
    assert missing.replace("_", "-").lower() in refusal.value.message.lower()


@pytest.mark.clause("H4")
def test_white_space_around_a_value_does_not_count() -> None:
    check_body(headers(**GOOD, mcp_name=" x://a\t"), READ, "2026-07-28")


@pytest.mark.clause("H4")
@pytest.mark.parametrize(
    ("header", "uri", "equal"),
    [
        ("=?base64?eDovL2E=?=", "x://a", True),
        ("=?base64?eDovL2E?=", "x://a", False),
        ("=?base64?eDovL_E=?=", "x://a", False),
        ("=?base64?/w==?=", "\xff", False),
        ("=?base64??=", "", True),
        ("=?base64?", "=?base64?", True),
    ],
)
def test_names_may_be_in_base64(header: str, uri: str, equal: bool) -> None:
    inbound = Inbound(1, "resources/read", {"uri": uri})
    if equal:
        check_body(headers(**GOOD, mcp_name=header), inbound, "2026-07-28")
        return
    with pytest.raises(RPCError) as refusal:
        check_body(headers(**GOOD, mcp_name=header), inbound, "2026-07-28")
    assert refusal.value.code == -32020


@pytest.mark.clause("H4")
def test_a_name_without_its_match_in_the_body_differs() -> None:
    odd: tuple[dict[str, object] | None, ...] = (None, {}, {"uri": 1}, {"uri": ["x://a"]})
    for params in odd:
        with pytest.raises(RPCError):
            check_body(headers(**GOOD, mcp_name="x://a"), Inbound(1, READ.method, params), "2026-07-28")


def test_an_error_does_not_repeat_what_is_long() -> None:
    with pytest.raises(RPCError) as refusal:
        check_body(
            headers(**GOOD, mcp_name="x" * 9_000), Inbound(1, READ.method, {"uri": "y" * 9_000}), "2026-07-28"
        )
    assert len(refusal.value.message) < 300


@pytest.mark.clause("H4")
def test_a_method_without_a_name_needs_none() -> None:
    inbound = Inbound(1, LISTEN, {})
    good = headers(MCP_Protocol_Version="2026-07-28", Mcp_Method=LISTEN, Mcp_Name="whatever")
    check_present(good, inbound)
    check_body(good, inbound, "2026-07-28")


@pytest.mark.clause("H3")
@pytest.mark.parametrize(
    ("accept", "taken"),
    [
        (None, True),
        ("*/*", True),
        ("text/*;q=0.001", True),
        ("TEXT/EVENT-STREAM ; Q=1", True),
        ("application/json,text/event-stream", True),
        ("text/event-stream;charset=utf-8;q=0.5", True),
        ("text/event-stream, */*;q=0", True),
        ("*/*, text/event-stream;q=0", False),
        ("*/*, text/*;q=0", False),
        ("text/*;q=0, text/event-stream;q=0.1", True),
        ("application/json", False),
        ("text/plain", False),
        ("text", False),
        ("", False),
        (",,;", False),
        ("*/*;q=x", False),
        ("*/*;q=nan", False),
        ("*/*;q=-1", False),
    ],
)
def test_who_can_take_a_stream(accept: str | None, taken: bool) -> None:
    assert accepts_sse(accept) is taken


@pytest.mark.clause("H8")
@pytest.mark.parametrize(
    ("origin", "allowed", "may"),
    [
        ("http://localhost", None, True),
        ("https://localhost:3000", None, True),
        ("http://127.0.0.1:1", None, True),
        ("http://[::1]:1", None, True),
        ("http://127.0.0.1.evil.example", None, False),
        ("http://localhost@evil.example", None, False),
        ("http://evil.example/localhost", None, False),
        ("http://evil.example#@localhost", None, False),
        ("chrome-extension://localhost", None, False),
        ("null", None, False),
        ("", None, False),
        ("http://[::1", None, False),
        ("https://a.example", ["https://a.example"], True),
        ("https://A.example", ["https://a.example"], True),
        ("https://a.example:443", ["https://a.example"], False),
        ("http://localhost", ["https://a.example"], False),
        ("http://localhost", [], False),
        ("null", ["*"], True),
    ],
)
def test_which_pages_may_come(origin: str, allowed: list[str] | None, may: bool) -> None:
    assert origin_allowed(origin, allowed) is may


@pytest.mark.clause("H8")
@pytest.mark.parametrize(
    ("host", "allowed", "may"),
    [
        (None, None, True),
        ("evil.example", None, True),
        ("localhost", ["localhost"], True),
        ("LOCALHOST:80", ["localhost"], True),
        ("[::1]:80", ["::1"], True),
        ("evil.example", ["localhost"], False),
        ("localhost.evil.example", ["localhost"], False),
        (None, ["localhost"], False),
        ("[", ["localhost"], False),
        ("", ["localhost"], False),
    ],
)
def test_which_hosts_are_ours(host: str | None, allowed: list[str] | None, may: bool) -> None:
    assert host_allowed(host, allowed) is may


@pytest.mark.clause("H8")
@pytest.mark.parametrize("name", ["allowed_origins", "allowed_hosts"])
@pytest.mark.parametrize("value", ["https://a.example", "*", [None], [b"localhost"]])
def test_what_names_no_pages_or_hosts_is_an_error_at_once(name: str, value: Any) -> None:
    """One string would otherwise allow each of its parts."""
    with pytest.raises(TypeError, match=name):
        new_hub().asgi(**{name: value})


@pytest.mark.clause("H8")
def test_names_compare_in_lower_case() -> None:
    assert check_names("x", ["LocalHost", "::1"]) == frozenset({"localhost", "::1"})
    assert check_names("x", None) is None
    assert check_names("x", ()) == frozenset()


@pytest.mark.clause("H14")
def test_who_may_read_the_answer() -> None:
    assert cors(None) == []
    assert dict(cors("https://a.example")) == {
        b"access-control-allow-origin": b"https://a.example",
        b"vary": b"origin",
    }
    assert b"authorization" in PREFLIGHT[b"access-control-allow-headers"]


def test_values_are_joined_or_told_apart() -> None:
    several = headers(Accept=["a", "b"])
    assert several.get("accept") == "a, b"
    assert several.all("accept") == ["a", "b"]
    assert several.get("origin") is None
    assert several.all("origin") == []
