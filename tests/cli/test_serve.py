"""`harken serve`: what it refuses to start with. The running server is tested in tests/e2e."""

import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke


def test_no_folder(invoke: Invoke) -> None:
    code, stdout, stderr = invoke("serve")
    assert (code, stdout) == (2, "")
    assert "Missing argument 'DIR'" in stderr


def test_a_folder_that_does_not_exist(invoke: Invoke, tmp_path: Path) -> None:
    code, stdout, stderr = invoke("serve", str(tmp_path / "absent"))
    assert (code, stdout) == (2, "")
    assert "does not exist" in stderr


def test_a_file_is_no_folder(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, stderr = invoke("serve", str(tmp_path / "file"))
    assert code == 2
    assert "is a file" in stderr


@pytest.mark.parametrize("base", ["notes", "/notes", "x://a b", "x://a?b", "x://a#b", ""])
def test_a_base_that_is_no_uri(invoke: Invoke, tmp_path: Path, base: str) -> None:
    code, _, stderr = invoke("serve", str(tmp_path), "--base-uri", base)
    assert code == 2
    assert "--base-uri" in stderr


def test_stdio_has_no_room_for_json(invoke: Invoke, tmp_path: Path) -> None:
    code, stdout, stderr = invoke("serve", str(tmp_path), "--stdio", "--json")
    assert (code, stdout) == (2, "")
    assert "leave out --json" in stderr


def test_the_port_is_8765_by_default(invoke: Invoke, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 8765)):
        code, _, stderr = invoke("serve", str(tmp_path))
    assert code == 2
    assert "port 8765 on 127.0.0.1 is in use" in stderr


def test_the_help_is_enough_to_begin(invoke: Invoke) -> None:
    code, stdout, _ = invoke("serve", "--help")
    assert code == 0
    for word in ("--host", "--port", "--stdio", "--exclude", "--hidden", "--base-uri", "--json", "Examples:"):
        assert word in stdout
