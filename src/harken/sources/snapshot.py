"""What a folder holds at one moment, and what differs between two.

The truth about a change is the difference between two snapshots; whatever a file system reports is a hint
where to look.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from harken.sources.opening import open_folder
from harken.sources.selection import Selection

__all__ = [
    "Difference",
    "Entry",
    "FolderState",
    "Identity",
    "Tree",
    "compare",
    "files_of",
    "identity_of",
    "look",
]

Identity = tuple[int, int]
"""The device and inode of a folder."""

# A file system stamps changes with a clock that ticks every 1 to 10 ms. Two writes within one tick look like
# one, so a file that changed this recently is to be looked at once more.
_TICK = 20_000_000  # nanoseconds
_SKEW = 60_000_000_000  # nanoseconds; a stamp further ahead tells of a wrong clock, not of a recent change

# What opening a folder fails with where there is none that could be served.
_AWAY = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ESTALE}


class Entry(NamedTuple):
    """What tells one state of a file from another."""

    size: int
    inode: int
    modified: int
    changed: int
    settled: bool
    """False where a later change could still leave the rest as it is."""


class FolderState(NamedTuple):
    """One folder: its own identity, its files, the folders in it."""

    identity: Identity
    files: Mapping[str, Entry]
    folders: Mapping[str, Identity]
    settled: bool
    """Whether every file is."""


Tree = Mapping[str, FolderState]
"""Every folder by its path, the root by the empty one; without entries where the root is away."""


class Difference(NamedTuple):
    """The paths of files, each sorted."""

    added: list[str]
    removed: list[str]
    updated: list[str]


def look(
    known: Tree, root: str, selection: Selection, paths: Iterable[str], *, everything: bool = False
) -> dict[str, FolderState]:
    """`known`, brought up to date for the folders at `paths` and for all that is new below them.

    `everything` looks into every folder below them, the known ones too. Raises OSError where looking fails
    for a reason that says nothing about the folder, such as too many open files.
    """
    tree = dict(known)
    waiting = sorted(paths, key=len, reverse=True)
    found_here: set[str] = set()
    done: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in done or (path and path not in tree and path not in found_here):
            continue
        done.add(path)
        state = _read(root, path, selection)
        _forget(tree, path, state)
        if state is None:
            continue
        tree[path] = state
        for name, identity in state.folders.items():
            child = _join(path, name)
            if everything or child not in tree or tree[child].identity != identity:
                found_here.add(child)
                waiting.append(child)
    return tree


def compare(before: Tree, after: Tree) -> Difference:
    """What became of the files between two snapshots."""
    added: list[str] = []
    removed: list[str] = []
    updated: list[str] = []
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old is new:
            continue
        was: Mapping[str, Entry] = old.files if old is not None else {}
        now: Mapping[str, Entry] = new.files if new is not None else {}
        added += (_join(path, name) for name in now.keys() - was.keys())
        removed += (_join(path, name) for name in was.keys() - now.keys())
        updated += (_join(path, name) for name in now.keys() & was.keys() if now[name] != was[name])
    return Difference(sorted(added), sorted(removed), sorted(updated))


def files_of(tree: Tree) -> list[str]:
    """The paths of all files, sorted."""
    return sorted(_join(path, name) for path, state in tree.items() for name in state.files)


def identity_of(root: str) -> Identity | None:
    """Which folder is at `root` now; None where there is none."""
    try:
        status = os.stat(root)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def _read(root: str, path: str, selection: Selection) -> FolderState | None:
    """The folder as it is; None where there is none."""
    begun = time.time_ns()
    files: dict[str, Entry] = {}
    folders: dict[str, Identity] = {}
    try:
        with open_folder(root, path) as fd:
            own = os.fstat(fd)
            with os.scandir(fd) as entries:
                for entry in entries:
                    _note(entry, _join(path, entry.name), selection, begun, files, folders)
    except OSError as error:
        if error.errno in _AWAY:
            return None
        raise
    settled = all(entry.settled for entry in files.values())
    return FolderState((own.st_dev, own.st_ino), files, folders, settled)


def _note(
    entry: os.DirEntry[str],
    path: str,
    selection: Selection,
    begun: int,
    files: dict[str, Entry],
    folders: dict[str, Identity],
) -> None:
    """Puts one name of a folder where it belongs: links and special files nowhere."""
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        if selection.takes(path, folder=True):
            folders[entry.name] = (status.st_dev, status.st_ino)
    elif stat.S_ISREG(status.st_mode) and selection.takes(path, folder=False):
        settled = not begun - _TICK < status.st_ctime_ns < begun + _SKEW
        files[entry.name] = Entry(
            status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, settled
        )


def _forget(tree: dict[str, FolderState], path: str, now: FolderState | None) -> None:
    """Takes out the folder at `path` where it is gone, else what is gone from it, with all below."""
    before = tree.get(path)
    if before is None:
        return
    remaining = {} if now is None else now.folders
    gone = [_join(path, name) for name in before.folders.keys() - remaining.keys()]
    if now is None:
        del tree[path]
    while gone:
        folder = gone.pop()
        state = tree.pop(folder, None)
        if state is not None:
            gone += (_join(folder, name) for name in state.folders)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
