"""The entry point: what it says where an extra is missing, and how it takes Ctrl-C."""

import subprocess
import sys

import pytest

CALL = """
import sys
sys.modules[{missing!r}] = None
sys.argv[1:] = {words!r}
import harken.cli
harken.cli.main()
"""


def call(missing: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line where the module `missing` can't be imported."""
    code = CALL.format(missing=missing, words=list(words))
    return subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=30, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("click", ["--help"]),
        ("uvicorn", ["hub", "--port", "0"]),
        ("httpx2", ["publish", "tools_list_changed"]),
        ("httpx2", ["listen", "http://127.0.0.1:1/mcp", "--tools"]),
        ("watchfiles", ["serve", "."]),
    ],
)
def test_a_missing_extra_is_named(missing: str, words: list[str]) -> None:
    done = call(missing, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert missing in done.stderr
    assert "pip install 'harken[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_missing_of_harken_itself_is_a_fault() -> None:
    done = call("harken.gateway.app", "hub", "--port", "0")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize("words", [["--version"], ["hub", "--help"]])
def test_what_needs_no_extra_but_click_works_without(words: list[str]) -> None:
    assert call("uvicorn", *words).returncode == 0
