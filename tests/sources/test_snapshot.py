"""Snapshots, and what differs between two."""

import errno
import os
import resource
from pathlib import Path

import pytest

from harken.sources.selection import Selection
from harken.sources.snapshot import Difference, Tree, compare, files_of, identity_of, look

ALL = Selection()


def snapshot(root: Path, selection: Selection = ALL) -> Tree:
    return look({}, str(root), selection, {""})


def again(known: Tree, root: Path, *paths: str) -> Tree:
    return look(known, str(root), ALL, paths)


def test_files_and_folders(notes: Path) -> None:
    (notes / "empty").mkdir()
    tree = snapshot(notes)
    assert files_of(tree) == ["plans/trip.txt", "today.md"]
    assert set(tree) == {"", "plans", "empty"}
    assert tree[""].identity == identity_of(str(notes))
    assert tree[""].files["today.md"].size == 8


def test_links_and_special_files_are_not_there(notes: Path) -> None:
    (notes / "link.md").symlink_to(notes / "today.md")
    (notes / "folder").symlink_to(notes / "plans")
    os.mkfifo(notes / "pipe")
    assert files_of(snapshot(notes)) == ["plans/trip.txt", "today.md"]


def test_what_is_not_selected_is_not_there(notes: Path) -> None:
    (notes / ".git").mkdir()
    (notes / ".git" / "config").touch()
    (notes / "a.log").touch()
    assert set(snapshot(notes)) == {"", "plans"}
    tree = snapshot(notes, Selection(hidden=True, exclude=["*.log", "plans"]))
    assert files_of(tree) == [".git/config", "today.md"]


def test_no_folder_no_snapshot(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("absent", "file"):
        assert snapshot(tmp_path / name) == {}
        assert identity_of(str(tmp_path / name)) is None


def test_a_difference(notes: Path) -> None:
    before = snapshot(notes)
    (notes / "today.md").write_text("# Tomorrow\n")
    (notes / "plans" / "walk.txt").touch()
    (notes / "plans" / "trip.txt").unlink()
    after = again(before, notes, "", "plans")
    assert compare(before, after) == Difference(["plans/walk.txt"], ["plans/trip.txt"], ["today.md"])
    assert compare(after, after) == Difference([], [], [])


def test_only_the_folders_named_are_looked_into(notes: Path) -> None:
    before = snapshot(notes)
    (notes / "today.md").unlink()
    (notes / "plans" / "trip.txt").unlink()
    assert compare(before, again(before, notes, "plans")).removed == ["plans/trip.txt"]
    assert compare(before, again(before, notes, "")).removed == ["today.md"]
    everything = look(before, str(notes), ALL, {""}, everything=True)
    assert compare(before, everything).removed == ["plans/trip.txt", "today.md"]


def test_a_folder_that_moved_is_new_with_all_below(notes: Path) -> None:
    (notes / "plans" / "deep").mkdir()
    (notes / "plans" / "deep" / "x").touch()
    before = snapshot(notes)
    (notes / "plans").rename(notes / "done")
    after = again(before, notes, "")
    assert compare(before, after) == Difference(
        ["done/deep/x", "done/trip.txt"], ["plans/deep/x", "plans/trip.txt"], []
    )
    assert set(after) == {"", "done", "done/deep"}


def test_another_folder_of_the_same_name_is_looked_into(notes: Path) -> None:
    before = snapshot(notes)
    (notes / "plans").rename(notes.parent / "away")
    (notes / "plans").mkdir()
    (notes / "plans" / "walk.txt").touch()
    assert compare(before, again(before, notes, "")) == Difference(["plans/walk.txt"], ["plans/trip.txt"], [])


def test_a_folder_becomes_a_link_or_a_file(notes: Path, tmp_path: Path) -> None:
    before = snapshot(notes)
    (notes / "plans").rename(tmp_path / "away")
    (notes / "plans").symlink_to(tmp_path / "away")
    assert files_of(again(before, notes, "", "plans")) == ["today.md"]
    (notes / "plans").unlink()
    (notes / "plans").touch()
    assert files_of(again(before, notes, "plans", "")) == ["plans", "today.md"]


def test_a_folder_that_nobody_knows_is_no_place_to_look(notes: Path) -> None:
    """A late hint must not bring a folder in by the back door."""
    (notes / ".git").mkdir()
    (notes / ".git" / "config").touch()
    before = snapshot(notes)
    assert again(before, notes, ".git", "absent") == before


def test_the_root_goes_and_comes_back(notes: Path) -> None:
    before = snapshot(notes)
    notes.rename(notes.parent / "away")
    gone = again(before, notes, "")
    assert gone == {}
    (notes.parent / "away").rename(notes)
    assert again(gone, notes, "") == before


def test_a_save_by_rename_is_an_update(notes: Path) -> None:
    before = snapshot(notes)
    (notes / "new").write_text("# Today\n")
    status = (notes / "today.md").stat()
    os.utime(notes / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
    (notes / "new").replace(notes / "today.md")
    assert compare(before, again(before, notes, "")).updated == ["today.md"]


def test_an_unreadable_folder_is_away(notes: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (notes / "plans").chmod(0)
    try:
        assert files_of(snapshot(notes)) == ["today.md"]
    finally:
        (notes / "plans").chmod(0o755)


def test_a_fresh_change_is_not_trusted_yet(notes: Path) -> None:
    """Two writes in one tick of the file system's clock leave the same stamp."""
    before = snapshot(notes)
    assert not before[""].settled
    entry = before[""].files["today.md"]
    later = before
    while not later[""].settled:  # bounded by the clock
        later = again(later, notes, "")
    assert later[""].files["today.md"] == entry._replace(settled=True)
    assert compare(before, later).updated == ["today.md"]
    assert compare(later, again(later, notes, "")) == Difference([], [], [])


def test_a_failure_that_says_nothing_about_the_folder_is_none_of_its_changes(notes: Path) -> None:
    before = snapshot(notes)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError) as caught:
            again(before, notes, "")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.errno == errno.EMFILE
