"""The official conformance suite, against the official SDK's server with a hub around it.

Beside it runs the same server alone: what that passes must pass around it too. Both run on each of uvicorn's
parsers, which differ in what they leave of a header: httptools keeps the blanks at its end. There the SDK
fails one scenario by itself (`http-header-validation`: 13 of 14 checks), since it compares the value as it
comes.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.conformance.suite import Report, run_suite
from tests.e2e.commands import command
from tests.peers.typescript import installed

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

SCENARIOS = 40  # of this revision
STATELESS_CHECKS = 30


class Suite:
    """The suite, ready to be run against a server that is started for it."""

    def __init__(self, node: str, environment: dict[str, str], folder: Path) -> None:
        self.node = node
        self.environment = environment
        self.folder = folder

    async def run(self, way: str, http: str, *options: str) -> Report:
        """Start the server, run the suite with `options`, end the server by SIGTERM."""
        folder = self.folder / way
        folder.mkdir()
        words = [sys.executable, "-m", "tests.conformance.everything", way, "--http", http]
        async with command(*words, limit=110) as server:
            url = await server.url()
            report = await run_suite(self.node, self.environment, installed(), folder, url, *options)
            await server.interrupt(signal.SIGTERM)
            code, stdout, stderr = await server.end()
        assert (code, stdout) == (-signal.SIGTERM, ""), stderr  # what uvicorn ends with without streams
        assert "Traceback" not in stderr, stderr
        return report


@pytest.fixture
def suite(node: str, node_environment: dict[str, str], tmp_path: Path) -> Suite:
    """The suite, with a folder for its results."""
    return Suite(node, node_environment, tmp_path)


@pytest.mark.clause("A1", "R1", "R2", "R7", "R8", "R20")
@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_the_scenario_with_listen_passes_around_the_sdk(suite: Suite, http: str) -> None:
    report = await suite.run("around", http, "--scenario", "server-stateless")
    assert report.code == 0, report.output
    assert report.count("SUCCESS") == STATELESS_CHECKS, report
    assert report.passed == {"server-stateless"}, report


@pytest.mark.clause("H1")
@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_around_the_sdk_every_scenario_passes_that_it_passes_alone(suite: Suite, http: str) -> None:
    alone = await suite.run("bare", http, "--suite", "all")
    around = await suite.run("around", http, "--suite", "all")
    print(f"{http}, the SDK alone: {alone}\n{http}, with a hub around it: {around}")
    assert len(alone.scenarios) == len(around.scenarios) == SCENARIOS
    assert alone.passed <= around.passed, around
    for name, checks in alone.scenarios.items():
        assert len(around.scenarios[name]) == len(checks), name
    if http == "h11":
        assert around.code == 0, around.output
        assert len(around.passed) == SCENARIOS, around
