"""The command line inside this process."""

from collections.abc import Callable

import pytest

from harken.cli.group import run

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def invoke(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs `harken …` here: the exit code, stdout, stderr. For what needs no server and no signal."""
    for name in ("HARKEN_HUB", "HARKEN_TOKEN", "HARKEN_PUBLISH_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def invoking(*words: str) -> tuple[int, str, str]:
        code = run(list(words))
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return invoking
