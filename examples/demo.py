"""The main job, in one terminal: a folder as a live MCP server, and a listener attached to it.

    python examples/demo.py           stays until Ctrl-C
    python examples/demo.py --once    ends after the first event

It starts two real commands, `harken serve` and `harken listen --all`. A moment after the listener has its
ack, it edits one file (examples/notes/today.md, which git ignores), so that there is something to see.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO

NOTES = Path(__file__).resolve().parent / "notes"
TODAY = NOTES / "today.md"
HARKEN = Path(sys.executable).with_name("harken")

MOMENT = 1.0  # seconds from the ack to the edit
PATIENCE = 15.0  # seconds that a command has to end by itself


@contextlib.contextmanager
def command(*arguments: str, output: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Runs `harken …` and gives its "stdout" or "stderr" to read; asks it to end on the way out.

    It has a process group of its own: Ctrl-C reaches this script alone, which ends the two in order.
    """
    stdout, stderr = (subprocess.PIPE if name == output else None for name in ("stdout", "stderr"))
    words = [str(HARKEN), *arguments]
    with subprocess.Popen(words, stdout=stdout, stderr=stderr, text=True, process_group=0) as process:
        stream = process.stdout or process.stderr
        assert stream is not None
        try:
            yield process, stream
        finally:
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Asks for a graceful end, and insists where none comes, or at a second Ctrl-C."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(PATIENCE)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        process.wait()


def say(text: str) -> None:
    print(text, flush=True)


def echo(stream: IO[str], prefix: str) -> None:
    """Repeats each line, until the end."""
    for line in stream:
        say(f"{prefix}{line.rstrip()}")


def edit() -> None:
    """The one edit that a newcomer sees."""
    TODAY.write_text(f"# Today\n\nThe demo wrote this at {time.strftime('%H:%M:%S')}.\n", "utf-8")


def begin(once: bool) -> None:
    """Invites whoever stays, and edits."""
    if not once:
        say(f"\nEdit, add or delete a file in {NOTES} and watch. Ctrl-C ends.\n")
    edit()


def show(stream: IO[str], once: bool) -> None:
    """Repeats what the listener prints; a moment after the ack, its first line, comes the edit.

    Until then the ack may go on: what is not honored has a line of its own. Whoever stays is then invited.
    """
    first = stream.readline()
    if not first:
        return
    say(first.rstrip())
    timer = threading.Timer(MOMENT, begin, [once])
    timer.daemon = True
    timer.start()
    echo(stream, "")


def run(once: bool) -> int:
    """Serves, listens, and returns the exit code: 0, or that of the command that failed."""
    with command("serve", str(NOTES), "--port", "0", output="stderr") as (server, log):
        url = log.readline().strip()
        if not url.startswith("http"):
            sys.stderr.write(f"{url}\n{log.read()}")
            return server.wait(PATIENCE) or 1
        say(f"$ harken serve {NOTES} --port 0\n{url}\n\n$ harken listen {url} --all")
        threading.Thread(target=echo, args=(log, "server: "), daemon=True).start()
        return attend(server, url, once)


def attend(server: subprocess.Popen[str], url: str, once: bool) -> int:
    """Listens until the listener ends; at Ctrl-C the server ends first, so that the listener sees why."""
    options = ["--count", "1"] if once else []
    with command("listen", url, "--all", *options, output="stdout") as (listener, output):
        reader = threading.Thread(target=show, args=(output, once), daemon=True)
        reader.start()
        try:
            listener.wait()
        except KeyboardInterrupt:
            say("")
            end(server)
            with contextlib.suppress(subprocess.TimeoutExpired):
                listener.wait(PATIENCE)
        end(listener)
        reader.join(PATIENCE)
    end(server)
    return listener.returncode or server.returncode


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="A folder as a live MCP server, and a listener on it.")
    parser.add_argument("--once", action="store_true", help="end after the first event")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    TODAY.touch()  # so that the edit is an update of something that the listener already watches
    return run(options.once)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
