"""`harken publish`: what it sends, and what it makes of the answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click
import pytest

from harken.cli import publish
from harken.cli.publish import endpoint_of
from tests.cli.conftest import Invoke


class Hub(ThreadingHTTPServer):
    """Answers each request as told, and remembers it."""

    answer: tuple[int, bytes] = (202, b'{"accepted": 1}')
    silent = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        hub = self.server
        assert isinstance(hub, Hub)
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        hub.seen.append((self.path, headers, json.loads(body)))
        if not hub.silent:
            status, answer = hub.answer
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_one_event(invoke: Invoke, hub: Hub) -> None:
    assert invoke("publish", "tools_list_changed", "--hub", hub.url) == (0, "accepted: 1\n", "")
    path, headers, body = hub.seen[0]
    assert path == "/publish"
    assert headers["content-type"] == "application/json"
    assert "authorization" not in headers
    assert body == [{"event": "tools_list_changed"}]


@pytest.mark.parametrize("path", ["/", "/mcp", "/publish", "/publish/"])
def test_several_uris_are_several_events_in_one_request(invoke: Invoke, hub: Hub, path: str) -> None:
    invoke("publish", "resource_updated", "file:///a", "file:///b", "--hub", f"{hub.url}{path}")
    assert [path for path, _, _ in hub.seen] == ["/publish"]
    assert [body for _, _, body in hub.seen] == [
        [{"event": "resource_updated", "uri": "file:///a"}, {"event": "resource_updated", "uri": "file:///b"}]
    ]


def test_hub_and_token_come_from_the_environment(
    invoke: Invoke, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARKEN_HUB", hub.url)
    monkeypatch.setenv("HARKEN_TOKEN", "secret")
    assert invoke("publish", "prompts_list_changed")[0] == 0
    assert hub.seen[0][1]["authorization"] == "Bearer secret"
    assert invoke("publish", "prompts_list_changed", "--token", "other")[0] == 0
    assert hub.seen[1][1]["authorization"] == "Bearer other"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["resource_updated"], "at least one URI"),
        (["resource_updated", "no uri"], "not a URI"),
        (["tools_list_changed", "file:///a"], "takes no uri"),
        (["nonsense"], "is not one of"),
        ([], "Missing argument"),
        (["tools_list_changed", "--hub", "localhost:8766"], "must be a URL"),
        (["tools_list_changed", "--hub", "localhost:8766"], "did you mean http://localhost:8766?"),
        (["tools_list_changed", "--token", "a b"], "visible ASCII"),
    ],
)
def test_a_wrong_call_is_a_usage_error(invoke: Invoke, words: list[str], problem: str) -> None:
    code, stdout, stderr = invoke("publish", *words)
    assert (code, stdout) == (2, "")
    assert problem in stderr


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((401, b'{"error": "publishing needs a token"}'), "HARKEN_TOKEN"),
        ((400, b'{"error": "the entry at index 0: bad"}'), "the entry at index 0: bad"),
        ((503, b'{"error": "shutting down"}'), "shutting down"),
        ((404, b"<html>"), "does not answer like a harken hub"),
        ((200, b"[]"), "does not answer like a harken hub"),
        ((202, b"\xff"), "does not answer like a harken hub"),
        ((302, b""), "refused with 302"),
    ],
)
def test_a_refusal_is_3(invoke: Invoke, hub: Hub, answer: tuple[int, bytes], told: str) -> None:
    hub.answer = answer
    code, stdout, stderr = invoke("publish", "tools_list_changed", "--hub", hub.url)
    assert (code, stdout) == (3, "")
    assert told in stderr


def test_no_hub_is_4(invoke: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    code, _, stderr = invoke("publish", "tools_list_changed", "--hub", f"http://127.0.0.1:{port}")
    assert code == 4
    assert "harken hub" in stderr


def test_a_broken_connection_is_4(invoke: Invoke, hub: Hub) -> None:
    hub.silent = True
    code, _, stderr = invoke("publish", "tools_list_changed", "--hub", hub.url)
    assert code == 4
    assert "publishing again does no harm" in stderr


def test_no_answer_is_5(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        code, _, stderr = invoke("publish", "tools_list_changed", "--hub", url)
    assert code == 5
    assert "did not answer" in stderr


def test_no_proxy_stands_between_a_machine_and_itself(
    invoke: Invoke, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert invoke("publish", "tools_list_changed", "--hub", hub.url)[0] == 0


@pytest.mark.parametrize(
    ("hub", "endpoint"),
    [
        ("http://127.0.0.1:8766", "http://127.0.0.1:8766/publish"),
        ("http://127.0.0.1:8766/", "http://127.0.0.1:8766/publish"),
        ("http://127.0.0.1:8766/mcp", "http://127.0.0.1:8766/publish"),
        ("https://a.example/hub/", "https://a.example/hub/publish"),
        ("https://a.example/hub/mcp?x#y", "https://a.example/hub/publish"),
    ],
)
def test_the_url_that_the_hub_prints_does_as_well(hub: str, endpoint: str) -> None:
    assert endpoint_of(hub) == endpoint


def test_a_hub_is_a_url() -> None:
    with pytest.raises(click.UsageError):
        endpoint_of("hub")
