"""The command `harken`. Nothing is imported before it is needed, so that a missing extra can be named."""

from __future__ import annotations

import sys

__all__ = ["main"]

# The modules that the commands need beyond the core; the extra `cli` of pyproject.toml brings them all.
_EXTRA = frozenset({"click", "httptools", "httpx2", "rich", "uvicorn", "uvloop", "watchfiles"})


def main() -> None:
    """Runs the command line and exits; what the exit codes mean is in `harken.cli.exits`."""
    sys.exit(_run())


def _run() -> int:
    try:
        from harken.cli.group import run

        return run()
    except ImportError as error:
        missing = _missing(error)
        if missing not in _EXTRA:
            raise
        print(
            f"error: this command needs the package {missing!r}, which is not installed; "
            "pip install 'harken[cli]' brings everything that the commands need",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        return 130


def _missing(error: BaseException | None) -> str:
    """The package that lacks, also where a module has told so in words of its own."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    return "" if error is None else (error.name or "").partition(".")[0]
