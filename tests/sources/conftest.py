"""A real folder, and an ear for what is published of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from harken.core.events import Event

LIMIT = 20  # seconds, a bound on a machine with much else to do


class Ear:
    """Takes what is published, from any thread, and waits for it."""

    def __init__(self) -> None:
        self.batches: list[tuple[Event, ...]] = []
        self._news = threading.Condition()

    def __call__(self, *events: Event) -> None:
        with self._news:
            self.batches.append(events)
            self._news.notify_all()

    @property
    def heard(self) -> list[Event]:
        """All events so far."""
        return [event for batch in self.batches for event in batch]

    def forget(self) -> None:
        """Begins anew."""
        with self._news:
            self.batches.clear()

    def wait(self, *wanted: Event) -> None:
        """Until all of these were heard since the last `forget()`."""
        self.wait_until(lambda: set(wanted) <= set(self.heard))

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Until `holds` after some event."""
        with self._news:
            assert self._news.wait_for(holds, LIMIT), f"heard only {self.heard}"


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder with two files, one of them in a folder of its own."""
    folder = tmp_path / "notes"
    (folder / "plans").mkdir(parents=True)
    (folder / "today.md").write_text("# Today\n", "utf-8")
    (folder / "plans" / "trip.txt").write_text("by train\n", "utf-8")
    return folder
