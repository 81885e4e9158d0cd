"""Hints from the real file system."""

import os
import resource
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harken.sources.hints import NOTHING, CannotWatch, Hints, Watcher
from harken.sources.selection import Selection
from harken.sources.snapshot import Identity, look


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def watcher(notes: Path, stop: threading.Event) -> Iterator[Watcher]:
    """One that watches the notes."""
    watcher = Watcher(str(notes), stop)
    watcher.arm(folders(notes))
    yield watcher
    watcher.close()


def folders(root: Path) -> dict[str, Identity]:
    tree = look({}, str(root), Selection(hidden=True), {""})
    return {path: state.identity for path, state in tree.items()}


def hints(watcher: Watcher) -> Hints:
    """The next that say anything. (The time limit of each test bounds the wait.)"""
    while (told := watcher.wait()) == NOTHING:
        pass
    return told


def folders_until(watcher: Watcher, path: str) -> set[str]:
    """The folders that are told of until `path` is."""
    told: set[str] = set()
    while path not in told:
        told |= hints(watcher).folders
    return told


def test_a_change_is_told_by_its_folder(watcher: Watcher, notes: Path) -> None:
    (notes / "today.md").write_text("x")
    assert folders_until(watcher, "") == {""}
    (notes / "plans" / "walk.txt").touch()
    assert folders_until(watcher, "plans") <= {"", "plans"}


def test_many_changes_are_counted(watcher: Watcher, notes: Path) -> None:
    for number in range(50):
        (notes / f"{number}.txt").touch()
    told = 0
    while told < 50:
        told += hints(watcher).told
    assert told >= 50


def test_nothing_is_told_where_nothing_changes(watcher: Watcher) -> None:
    assert watcher.wait() == NOTHING


def test_what_is_not_armed_is_not_watched(watcher: Watcher, notes: Path) -> None:
    (notes / ".git").mkdir()
    assert folders_until(watcher, "") == {""}
    (notes / ".git" / "index").touch()
    (notes / "plans" / "walk.txt").touch()
    assert folders_until(watcher, "plans") <= {"", "plans"}
    assert watcher.unwatched(folders(notes)) == {".git"}
    watcher.arm(folders(notes))
    (notes / ".git" / "index").write_text("x")
    folders_until(watcher, ".git")


def test_links_are_not_followed(watcher: Watcher, notes: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (notes / "link").symlink_to(outside)
    assert folders_until(watcher, "") == {""}
    watcher.arm(folders(notes))
    (outside / "file").touch()
    (notes / "plans" / "trip.txt").write_text("x")
    assert folders_until(watcher, "plans") <= {"", "plans"}


def test_what_the_old_watch_heard_is_handed_over(watcher: Watcher, notes: Path) -> None:
    (notes / "plans" / "walk.txt").touch()
    assert "plans" in watcher.arm(folders(notes)).folders


def test_a_folder_that_went_is_no_longer_watched_though_another_takes_its_place(
    watcher: Watcher, notes: Path
) -> None:
    before = folders(notes)
    assert watcher.unwatched(before) == set()
    shutil.rmtree(notes / "plans")
    (notes / "plans").mkdir()
    folders_until(watcher, "")
    # whatever the identity of the new one is
    assert watcher.unwatched({**before, **folders(notes)}) == {"plans"}
    assert watcher.unwatched(before) == {"plans"}


def test_with_the_root_everything_went(watcher: Watcher, notes: Path) -> None:
    before = folders(notes)
    shutil.rmtree(notes)
    while watcher.unwatched(before) != set(before):
        hints(watcher)


def test_another_folder_is_not_taken_for_the_old_one(watcher: Watcher, notes: Path) -> None:
    assert watcher.unwatched({"plans": (0, 0)}) == {"plans"}


def test_before_it_is_armed_it_waits_and_tells_nothing(notes: Path, stop: threading.Event) -> None:
    watcher = Watcher(str(notes), stop)
    assert watcher.wait() == NOTHING
    assert watcher.unwatched(folders(notes)) == {"", "plans"}
    watcher.close()


def test_the_stop_ends_a_wait(watcher: Watcher, stop: threading.Event) -> None:
    stop.set()
    assert watcher.wait() == NOTHING


def test_a_name_that_is_no_utf8_breaks_the_watch(watcher: Watcher, notes: Path) -> None:
    (notes / os.fsdecode(b"\xff")).touch()
    with pytest.raises(CannotWatch):
        hints(watcher)
    assert watcher.unwatched(folders(notes)) == {"", "plans"}
    watcher.arm(folders(notes))
    (notes / "plans" / "walk.txt").touch()
    folders_until(watcher, "plans")


def test_a_folder_whose_name_is_no_utf8_is_blind(watcher: Watcher, notes: Path) -> None:
    name = os.fsdecode(b"\xfe")
    (notes / name).mkdir()
    watcher.arm(folders(notes))
    assert watcher.blind == {name}
    assert watcher.unwatched(folders(notes)) == set()


def test_a_system_that_has_no_more_watches(watcher: Watcher, notes: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(CannotWatch):
            watcher.arm({"": (0, 0)})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    (notes / "plans" / "walk.txt").touch()
    folders_until(watcher, "plans")


def test_a_name_from_elsewhere_may_mean_anything(watcher: Watcher) -> None:
    """Some systems tell the real path of a folder that was watched through a link."""
    from watchfiles import Change

    assert watcher._told({(Change.added, "/private/notes/x")}).everywhere


def test_a_folder_that_is_gone_is_not_taken_for_watched(watcher: Watcher, notes: Path) -> None:
    before = folders(notes)
    notes.rename(notes.parent / "away")
    watcher.arm(before)
    (notes.parent / "away").rename(notes)
    assert watcher.unwatched(before) == set(before)
