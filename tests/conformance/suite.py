"""Runs the official conformance suite against a URL, and reads what it saw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SUITE = Path("node_modules/@modelcontextprotocol/conformance/dist/index.js")
REVISION = "2026-07-28"
LIMIT = 90  # seconds, a bound on a machine with much else to do
RESULT = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")  # a folder: the scenario and the time
PASSED = {"SUCCESS", "INFO"}


@dataclass
class Report:
    """What the suite saw: its exit code, what it printed, and of each scenario the checks by status."""

    code: int
    output: str
    scenarios: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    @property
    def passed(self) -> set[str]:
        """The scenarios without a failure or a warning."""
        return {name for name, checks in self.scenarios.items() if {status for _, status in checks} <= PASSED}

    def count(self, status: str) -> int:
        """How many checks ended in `status`, over all scenarios."""
        return sum(found == status for checks in self.scenarios.values() for _, found in checks)

    def __str__(self) -> str:
        total = sum(map(len, self.scenarios.values())) - self.count("INFO")
        told = f"{self.count('SUCCESS')} of {total} checks"
        told += f", {len(self.passed)} of {len(self.scenarios)} scenarios"
        bad = [
            f"{name}: {check} {status}"
            for name, checks in self.scenarios.items()
            for check, status in checks
            if status not in PASSED
        ]
        return "\n".join([told, *bad])


async def run_suite(
    node: str, environment: Mapping[str, str], peers: Path, folder: Path, url: str, *options: str
) -> Report:
    """Run it with an empty list of expected failures, so that a warning counts as a failure too."""
    expected = folder / "expected-failures.yml"
    expected.write_text("")
    results = folder / "results"
    process = await asyncio.create_subprocess_exec(
        *(node, str(peers / SUITE), "server", "--url", url, *options, "--spec-version", REVISION),
        *("--expected-failures", str(expected), "-o", str(results)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(environment),
    )
    try:
        async with asyncio.timeout(LIMIT):
            output, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert process.returncode is not None
    return Report(process.returncode, output.decode(errors="replace"), read_results(results))


def read_results(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Scenario → the names and ends of its checks."""
    scenarios: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in sorted(folder.glob("*/checks.json")):
        folder_name = RESULT.fullmatch(path.parent.name)
        assert folder_name is not None, path
        scenarios[folder_name[1]] += [
            (check["id"], check["status"]) for check in json.loads(path.read_text())
        ]
    return dict(scenarios)
