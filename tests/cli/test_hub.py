"""`harken hub`: what it refuses to start with. The running hub is tested in tests/e2e and tests/gateway."""

import socket

import pytest

from tests.cli.conftest import Invoke


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_off_loopback_it_needs_a_token(invoke: Invoke, host: str) -> None:
    code, stdout, stderr = invoke("hub", "--host", host)
    assert (code, stdout) == (2, "")
    assert "--publish-token" in stderr


@pytest.mark.parametrize("token", ["", "two words", "ü"])
def test_a_token_that_no_header_carries_is_refused(invoke: Invoke, token: str) -> None:
    code, _, stderr = invoke("hub", "--publish-token", token)
    assert code == 2
    assert "visible ASCII" in stderr


def test_the_token_is_read_from_the_environment(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARKEN_PUBLISH_TOKEN", "two words")
    assert invoke("hub")[0] == 2


def test_the_port_is_8766_by_default(invoke: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 8766)):
        code, _, stderr = invoke("hub")
    assert code == 2
    assert "port 8766 on 127.0.0.1 is in use" in stderr
