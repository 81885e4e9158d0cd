"""`python -m harken`."""

import subprocess
import sys

from harken.version import __version__


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-W", "error", "-m", "harken", "--version"]
    done = subprocess.run(words, check=False, timeout=30, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"harken, version {__version__}\n")
    words[-1] = "nonsense"
    assert subprocess.run(words, check=False, timeout=30, capture_output=True).returncode == 2
