"""The twin of harken/version.py."""

import importlib.metadata

import harken
from harken.version import __version__


def test_the_installed_package_has_this_version() -> None:
    assert importlib.metadata.version("harken") == __version__


def test_the_version_is_public() -> None:
    assert harken.__version__ == __version__
