"""`harken listen`: what it takes, and how it ends where no stream can be had. More in tests/e2e."""

from __future__ import annotations

import json
import socket
import sys

import pytest

from harken.cli.listen import ending_of
from harken.core.demux import Ending
from harken.errors import (
    ConnectionLost,
    ListenTimeout,
    NeverAcknowledged,
    ProtocolError,
    Refused,
    RPCError,
)
from tests.cli.conftest import Invoke

URL = "http://127.0.0.1:1/mcp"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "say what to listen for"),
        ([URL], "say what to listen for: --all, or any of --tools, --prompts, --resources, --resource URI"),
        (["--tools"], "a URL, or a command after --"),
        (["--tools", "--"], "the command is missing"),
        (["--tools", "--", "no-such-command-anywhere"], "'no-such-command-anywhere' was not found"),
        ([URL, "--tools", "--", sys.executable], "not both"),
        ([URL, URL, "--tools"], "unexpected extra argument"),
        (["127.0.0.1:8765/mcp", "--tools"], "is no URL"),
        (["127.0.0.1:8765/mcp", "--tools"], "did you mean http://127.0.0.1:8765/mcp?"),
        ([sys.executable, "--tools"], "a command comes after --"),
        (["http://[/mcp", "--tools"], "is no URL"),
        ([URL, "--resource", "no uri"], "--resource: not a URI"),
        ([URL, "--tools", "--count", "0"], "--count"),
        ([URL, "--tools", "--timeout", "0"], "--timeout"),
        ([URL, "--tools", "--timeout", "soon"], "--timeout"),
        ([URL, "--tools", "--token", "a b"], "visible ASCII"),
        (["--tools", "--token", "secret", "--", sys.executable], "--token goes with a URL"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_wrong_call_says_what_to_pass(
    invoke: Invoke, words: list[str], problem: str, as_json: bool
) -> None:
    code, stdout, stderr = invoke("listen", *(["--json"] if as_json else []), *words)
    assert (code, stdout) == (2, "")
    assert problem in stderr


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (Refused(-32601, "no"), Ending.REFUSED),
        (RPCError(-32603, "no"), Ending.REFUSED),
        (NeverAcknowledged("no ack"), Ending.NEVER_ACKNOWLEDGED),
        (ListenTimeout("late"), Ending.TIMEOUT),
        (TimeoutError(), Ending.TIMEOUT),
        (ConnectionLost("gone"), Ending.LOST),
        (ProtocolError("nonsense"), Ending.PROTOCOL_ERROR),
    ],
)
def test_how_a_stream_ended_that_never_opened(error: Exception, ending: Ending) -> None:
    assert ending_of(error) is ending


@pytest.mark.parametrize("everything", [["--all"], ["--tools"]])
def test_nobody_there_is_4(invoke: Invoke, everything: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/mcp"
    code, stdout, stderr = invoke("listen", url, *everything)
    assert (code, stdout) == (4, "")
    assert f"ended (lost): cannot reach {url}: connection refused; is the server running?\n" in stderr
    code, stdout, stderr = invoke("listen", url, *everything, "--json")
    assert (code, stderr) == (4, "")
    error, ended = map(json.loads, stdout.splitlines())
    assert error["type"] == "error"
    assert url in error["message"]
    assert (ended["type"], ended["ending"]) == ("ended", "lost")


@pytest.mark.parametrize("everything", [["--all"], ["--tools"]])
def test_no_answer_in_time_is_5(invoke: Invoke, everything: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        code, stdout, stderr = invoke("listen", url, *everything, "--timeout", "0.1")
    assert (code, stdout) == (5, "")
    assert "ended (timeout): time is up" in stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_a_fault_is_told_before_its_traceback(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], as_json: bool
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("harken.cli.listen.Follower", broken)
    with pytest.raises(ExceptionGroup):
        invoke("listen", URL, "--tools", *(["--json"] if as_json else []))
    stdout, stderr = capfd.readouterr()
    if as_json:
        assert json.loads(stdout)["message"] == "a fault in harken: oops"
    else:
        assert "please report it: oops" in stderr


def test_a_command_that_ends_at_once_is_4(invoke: Invoke) -> None:
    code, _, stderr = invoke("listen", "--tools", "--", sys.executable, "-c", "print('usage: me')")
    assert code == 4
    assert "ended with status 0 before it answered; does it speak MCP" in stderr
    assert "It wrote 'usage: me'" in stderr
