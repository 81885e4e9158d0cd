"""The client runs under asyncio and under trio, and so do its tests."""

import pytest


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each async test of the client runs twice."""
    return str(request.param)
