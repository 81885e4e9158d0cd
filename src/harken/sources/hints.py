"""Hints from the file system about where to look, by way of watchfiles.

Each folder is watched by itself, not recursively: recursion would follow symbolic links out of the folder and
watch what is left out (a `.git`, a `node_modules`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Generator, Mapping
from typing import NamedTuple

from watchfiles import Change, watch
from watchfiles.main import FileChange

from harken.sources.snapshot import Identity, identity_of

__all__ = ["NOTHING", "CannotWatch", "Hints", "Watcher"]

STEP = 25  # milliseconds without a further change after which changes are told
DEBOUNCE = 200  # milliseconds after which they are told in any case
TURN = 50  # milliseconds that one wait lasts where nothing changes


class CannotWatch(Exception):
    """The file system can't be watched, or no longer; the message says why."""


class Hints(NamedTuple):
    """Where something may have changed."""

    folders: frozenset[str]
    everywhere: bool
    """Some of it may be anywhere."""
    told: int
    """How many changes were told; so many at once may have been more than the system could keep."""


NOTHING = Hints(frozenset(), False, 0)


class Watcher:
    """Watches folders below `root` and says where something may have changed.

    Not thread-safe: one thread arms, waits and closes.
    """

    def __init__(self, root: str, stop: threading.Event) -> None:
        self._root = root
        self._stop = stop
        self.blind: frozenset[str] = frozenset()
        """Folders of which no hint will come, though they were to be watched."""
        self._watched: dict[str, Identity] = {}
        self._changes: Generator[set[FileChange], None, None] | None = None

    def unwatched(self, folders: Mapping[str, Identity]) -> set[str]:
        """Those of the folders that are not watched (or no longer, since another one is in their place)."""
        return {path for path, identity in folders.items() if self._watched.get(path) != identity}

    def arm(self, folders: Mapping[str, Identity]) -> Hints:
        """Watches these folders from now on, and no others; those that are gone meanwhile stay unwatched.

        What changes in them once this has returned is told by `wait()`; what was told of those watched before
        is in the hints returned. Raises CannotWatch; then what was watched before still is.
        """
        present = {path: folders[path] for path in folders if self._is_there(path, folders[path])}
        blind = frozenset(path for path in present if not _can_be_named(self._root + path))
        changes = watch(
            *(os.path.join(self._root, path) for path in present.keys() - blind),
            watch_filter=None,
            debounce=DEBOUNCE,
            step=STEP,
            stop_event=self._stop,
            rust_timeout=TURN,
            yield_on_timeout=True,
            raise_interrupt=False,
            recursive=False,
            ignore_permission_denied=False,  # True also hides that a folder isn't there
        )
        try:
            first = _next(changes)
        except CannotWatch as error:
            if isinstance(error.__cause__, FileNotFoundError | PermissionError):
                return NOTHING  # one has gone this very moment, and its folder will tell
            raise
        # The old one may still hold changes from before the new one listened.
        before = _drained(self._changes)
        self.close()
        self._changes, self._watched, self.blind = changes, present, blind
        return self._told(first | before)

    def _is_there(self, path: str, identity: Identity) -> bool:
        return identity_of(os.path.join(self._root, path)) == identity

    def wait(self) -> Hints:
        """The next hints; after a moment without any, none. Raises CannotWatch; then nothing is watched."""
        if self._changes is None:
            self._stop.wait(TURN / 1000)
            return NOTHING
        try:
            return self._told(_next(self._changes))
        except CannotWatch:
            self.close()
            raise

    def close(self) -> None:
        """Watches nothing any more. Harmless when repeated."""
        if self._changes is not None:
            self._changes.close()
        self._changes, self._watched, self.blind = None, {}, frozenset()

    def _told(self, changes: Collection[FileChange]) -> Hints:
        folders: set[str] = set()
        everywhere = False
        for change, name in changes:
            path = self._below(name)
            if path is None:
                everywhere = True
                continue
            if change is not Change.modified and path in self._watched:
                self._lose(path)
            folders.add(path.rpartition("/")[0])
        return Hints(frozenset(folders), everywhere, len(changes))

    def _below(self, name: str) -> str | None:
        """A told name as a path; None where the system names our folder otherwise than we do."""
        if name == self._root:
            return ""
        path = name.removeprefix(os.path.join(self._root, ""))
        return None if path == name else path

    def _lose(self, path: str) -> None:
        """A watch ends with its folder. A new folder in its place may even have the same identity."""
        for watched in [name for name in self._watched if not path or f"{name}/".startswith(f"{path}/")]:
            del self._watched[watched]


def _can_be_named(path: str) -> bool:
    """Whether watchfiles takes the path: it must be UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _next(changes: Generator[set[FileChange], None, None]) -> set[FileChange]:
    try:
        return next(changes, set())
    except (OSError, RuntimeError) as error:
        raise CannotWatch(str(error)) from error


def _drained(changes: Generator[set[FileChange], None, None] | None) -> set[FileChange]:
    try:
        return set() if changes is None else _next(changes)
    except CannotWatch:
        return set()  # an old one that is broken is what the new one is for
