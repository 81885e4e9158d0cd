#!/usr/bin/env python3
"""Measures harken beside the official SDK's server, in turn in one run, and prints the ratios.

Each measurement starts a fresh server on one core and the load generator (C, `listenload.c`) on the other.
Absolute figures hold for one machine and one moment; compare within a run.

    make bench
    .venv/bin/python bench/run.py --scenario bursts --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
SERVERS = {"harken": "harken_http.py", "sdk": "sdk_http.py"}
SCENARIOS = {
    "fanout": ("one event to every stream", ["--filter", "one", "--burst", "1"], {"harken": 500, "sdk": 60}),
    "bursts": (
        "32 distinct URIs at once to every stream",
        ["--filter", "shared:64", "--burst", "32"],
        {"harken": 1920, "sdk": 96},
    ),
    "match": (
        "one listener an event among streams of 100 URIs each",
        ["--filter", "split:100:{uris}", "--burst", "5000", "--step", "7919"],
        {"harken": 50_000, "sdk": 5_000},
    ),
}
FIGURES = (  # name, key in the load generator's report, whether more is better
    ("deliveries/s", "deliv_per_s", True),
    ("opened/s", "open_rate", True),
    ("KB an idle stream", "rss_kb_per_stream", False),
)


def main() -> int:
    options = parse_options()
    load = build()
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for turn in range(options.rounds):
        for scenario in options.scenario:
            for server in SERVERS:
                print(f"round {turn + 1}: {scenario}, {server} …", file=sys.stderr, flush=True)
                report = measure(load, server, scenario, options.streams)
                rows.setdefault((scenario, server), []).append(report)
    table(rows, options.streams)
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="by default all")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each, 3 by default")
    parser.add_argument("--streams", type=int, default=1000, help="open streams, 1000 by default")
    options = parser.parse_args()
    options.scenario = options.scenario or list(SCENARIOS)
    return options


def build() -> Path:
    """The load generator, compiled where it is missing or old."""
    source, binary = HERE / "listenload.c", HERE / ".build" / "listenload"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise SystemExit("bench: no C compiler found; install gcc or clang for the load generator")
        binary.parent.mkdir(exist_ok=True)
        subprocess.run([compiler, "-O2", "-o", str(binary), str(source)], check=True)
    return binary


def measure(load: Path, server: str, scenario: str, streams: int) -> dict[str, Any]:
    """One fresh server, warmed up, under one load."""
    port, side_port = free_port(), free_port()
    _, arguments, events = SCENARIOS[scenario]
    arguments = [argument.format(uris=streams * 100) for argument in arguments]
    script = str(HERE / "servers" / SERVERS[server])
    process = subprocess.Popen([*pinned(0), sys.executable, script, str(port), str(side_port)])
    try:
        wait_for(port, process)
        wait_for(side_port, process)
        base = [*pinned(1), str(load), "--port", str(port), "--pid", str(process.pid)]
        base += ["--pub", f"side:{side_port}", "--quiet"]
        warm_up = ["-n", "20", "--events", "20", "--burst", "1", "--idle", "0.1"]
        subprocess.run([*base, *warm_up], check=True, capture_output=True, timeout=60)
        command = [*base, "-n", str(streams), "--events", str(events[server]), *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return report
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def pinned(core: int) -> list[str]:
    tool = shutil.which("taskset")
    return [tool, "-c", str(core)] if tool is not None and (os.cpu_count() or 1) > 1 else []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"bench: the server did not start (exit status {process.poll()})")


def table(rows: dict[tuple[str, str], list[dict[str, Any]]], streams: int) -> None:
    scenarios = dict.fromkeys(scenario for scenario, _ in rows)
    for scenario in scenarios:
        print(f"\n{scenario}: {SCENARIOS[scenario][0]}; {streams} streams, medians")
        print(f"  {'':<20}{'harken':>14}{'SDK':>14}{'ratio':>10}")
        for name, key, more_is_better in FIGURES:
            ours, theirs = (
                median(report[key] for report in rows[scenario, server]) for server in ("harken", "sdk")
            )
            ratio = ours / theirs if more_is_better else theirs / ours
            print(f"  {name:<20}{ours:>14,.1f}{theirs:>14,.1f}{ratio:>9.1f}×")
        faults = sum(
            report[fault] for server in SERVERS for report in rows[scenario, server] for fault in FAULTS
        )
        print(f"  lost, doubled or mislabelled: {faults}")


FAULTS = ("lost", "dup", "bad_id", "before_ack")

if __name__ == "__main__":
    sys.exit(main())
