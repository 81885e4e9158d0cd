"""The commands as a group: help, unknown ones, and what is imported when."""

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harken.cli.group import COMMANDS, harken
from harken.version import __version__
from tests.cli.conftest import Invoke


def test_help_lists_the_commands_with_an_example(invoke: Invoke) -> None:
    code, stdout, _ = invoke("--help")
    assert code == 0
    for name in ("serve", "listen", "hub", "publish"):
        assert f"  {name}" in stdout
    assert "harken listen http://127.0.0.1:8765/mcp --all" in stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_with_examples(invoke: Invoke, name: str) -> None:
    code, stdout, _ = invoke(name, "--help")
    assert code == 0
    assert "Example" in stdout
    assert f"harken {name}" in stdout
    command = harken.get_command(harken.make_context("harken", [name]), name)
    assert command is not None
    for parameter in command.params:
        assert all(option in stdout for option in parameter.opts if option.startswith("--"))


def test_the_version(invoke: Invoke) -> None:
    assert invoke("--version")[:2] == (0, f"harken, version {__version__}\n")


@pytest.mark.parametrize(
    "words", [["nonsense"], ["hub", "--nonsense"], ["hub", "--port", "x"], ["hub", "--port", "65536"]]
)
def test_a_wrong_call_is_a_usage_error(invoke: Invoke, words: list[str]) -> None:
    code, stdout, stderr = invoke(*words)
    assert (code, stdout) == (2, "")
    assert "Error: " in stderr


def test_help_imports_no_command() -> None:
    code = "import sys; sys.argv[1:] = ['--help']; import harken.cli; harken.cli.main()"
    names = [f"harken.cli.{name}" for name in COMMANDS] + ["uvicorn", "httpx2", "rich", "watchfiles"]
    check = f"import atexit, sys; atexit.register(lambda: print([n for n in {names} if n in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{check}\n{code}"], check=True, timeout=30, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_closed_stderr_stops_nobody(harken_command: str, tmp_path: Path) -> None:
    words = ["sh", "-c", 'exec "$0" serve "$1" --port 0 --json 2>&-', harken_command, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["type"] == "ready"
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == ""
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_warnings_go_to_stderr_on_one_line(invoke: Invoke) -> None:
    invoke("--version")
    assert logging.getLogger("harken").isEnabledFor(logging.WARNING)
