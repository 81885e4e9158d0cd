"""A real folder is changed in every way that people and programs change folders, and is heard."""

import asyncio
import os
import shutil
import threading
from pathlib import Path

import pytest

from harken.core.events import Event, Kind, ResourcesListChanged, ResourceUpdated
from harken.errors import HarkenError, HubClosed, InvalidURI
from harken.server.hub import Hub
from harken.sources import folder as module
from harken.sources.folder import Folder, events
from harken.sources.hints import NOTHING, CannotWatch, Watcher
from harken.sources.paths import Naming
from harken.sources.snapshot import Difference, look
from tests.sources.conftest import LIMIT, Ear

LIST = ResourcesListChanged()


def updated(path: Path) -> Event:
    return ResourceUpdated(path.as_uri())


def test_an_edit(notes: Path, ear: Ear) -> None:
    with Folder(notes).watching(ear):
        (notes / "today.md").write_text("# Tomorrow\n")
        ear.wait(updated(notes / "today.md"))
        assert LIST not in ear.heard


def test_an_edit_of_the_same_size_and_time(notes: Path, ear: Ear) -> None:
    status = (notes / "today.md").stat()
    with Folder(notes).watching(ear):
        (notes / "today.md").write_text("# Terry\n")
        os.utime(notes / "today.md", ns=(status.st_atime_ns, status.st_mtime_ns))
        ear.wait(updated(notes / "today.md"))


@pytest.mark.clause("R9", "R10")
def test_a_file_comes_and_goes(notes: Path, ear: Ear) -> None:
    folder = Folder(notes)
    new = notes / "plans" / "walk.txt"
    with folder.watching(ear):
        new.touch()
        ear.wait(LIST, updated(new))
        assert "plans/walk.txt" in folder.seen.paths
        ear.forget()
        new.unlink()
        ear.wait(LIST, updated(new))
        assert "plans/walk.txt" not in folder.seen.paths


def test_a_rename(notes: Path, ear: Ear) -> None:
    with Folder(notes).watching(ear):
        (notes / "today.md").rename(notes / "yesterday.md")
        ear.wait(LIST, updated(notes / "today.md"), updated(notes / "yesterday.md"))


def test_a_rename_over_another_file(notes: Path, ear: Ear) -> None:
    with Folder(notes).watching(ear):
        (notes / "today.md").rename(notes / "plans" / "trip.txt")
        ear.wait(LIST, updated(notes / "today.md"), updated(notes / "plans" / "trip.txt"))


def test_a_save_by_rename_is_an_edit_and_nothing_else(notes: Path, ear: Ear) -> None:
    with Folder(notes).watching(ear):
        for temporary in (".today.md.swp", "today.md~", ".goutputstream-X"):
            ear.forget()
            (notes / temporary).write_text(f"# {temporary}\n")
            (notes / temporary).replace(notes / "today.md")
            ear.wait(updated(notes / "today.md"))
            assert set(ear.heard) == {updated(notes / "today.md")}


def test_what_is_left_out_is_not_heard(notes: Path, ear: Ear) -> None:
    (notes / ".git").mkdir()
    with Folder(notes, exclude=["*.log"]).watching(ear):
        (notes / ".git" / "index").touch()
        (notes / ".hidden").touch()
        (notes / "a.log").touch()
        (notes / "today.md").write_text("x")
        ear.wait(updated(notes / "today.md"))
        assert set(ear.heard) == {updated(notes / "today.md")}


def test_hidden_names_are_heard_where_asked_for(notes: Path, ear: Ear) -> None:
    (notes / ".git").mkdir()
    with Folder(notes, hidden=True).watching(ear):
        (notes / ".git" / "index").touch()
        ear.wait(LIST, updated(notes / ".git" / "index"))


def test_new_folders_are_watched_with_what_is_in_them(notes: Path, ear: Ear) -> None:
    deep = notes / "a" / "b" / "c"
    with Folder(notes).watching(ear):
        deep.mkdir(parents=True)
        (deep / "x").touch()
        ear.wait(LIST, updated(deep / "x"))
        ear.forget()
        (deep / "x").write_text("x")
        ear.wait(updated(deep / "x"))
        (notes / "a").rename(notes / "z")
        moved = notes / "z" / "b" / "c" / "x"
        ear.wait(LIST, updated(deep / "x"), updated(moved))
        ear.forget()
        moved.write_text("y")
        ear.wait(updated(moved))


def test_a_folder_that_is_replaced_is_watched_anew(notes: Path, ear: Ear) -> None:
    plan = notes / "plans" / "trip.txt"
    with Folder(notes).watching(ear):
        for number in range(3):
            ear.forget()
            shutil.rmtree(plan.parent)
            plan.parent.mkdir()
            plan.touch()
            ear.wait(updated(plan))
            ear.forget()
            plan.write_text(f"number {number}")
            ear.wait(updated(plan))


def test_a_file_that_comes_back_is_heard(notes: Path, ear: Ear) -> None:
    today = notes / "today.md"
    with Folder(notes).watching(ear):
        today.unlink()
        ear.wait(LIST, updated(today))
        ear.forget()
        today.touch()
        ear.wait(LIST, updated(today))


def test_the_folder_itself_goes_and_comes_back(notes: Path, ear: Ear) -> None:
    folder = Folder(notes)
    with folder.watching(ear):
        shutil.rmtree(notes)
        ear.wait(LIST, updated(notes / "today.md"), updated(notes / "plans" / "trip.txt"))
        assert not folder.seen.tree
        assert not folder.seen.paths
        ear.forget()
        notes.mkdir()
        (notes / "new.md").touch()
        ear.wait(LIST, updated(notes / "new.md"))
        ear.forget()
        (notes / "new.md").write_text("x")
        ear.wait(updated(notes / "new.md"))


def test_the_folder_is_replaced_at_once(notes: Path, ear: Ear) -> None:
    with Folder(notes).watching(ear):
        shutil.rmtree(notes)
        notes.mkdir()
        (notes / "today.md").touch()
        ear.wait(updated(notes / "today.md"), updated(notes / "plans" / "trip.txt"))
        ear.forget()
        (notes / "today.md").write_text("x")
        ear.wait(updated(notes / "today.md"))


def test_the_folder_moves_away_and_back(notes: Path, ear: Ear) -> None:
    with Folder(notes).watching(ear):
        notes.rename(notes.parent / "away")
        ear.wait(LIST, updated(notes / "today.md"))
        ear.forget()
        (notes.parent / "away").rename(notes)
        ear.wait(LIST, updated(notes / "today.md"))
        ear.forget()
        (notes / "plans" / "trip.txt").write_text("x")
        ear.wait(updated(notes / "plans" / "trip.txt"))


def test_a_link_to_the_folder_is_turned(notes: Path, ear: Ear) -> None:
    """As a deployment does that keeps its releases beside each other."""
    release = notes.parent / "release"
    release.mkdir()
    (release / "today.md").write_text("# Released\n")
    current = notes.parent / "current"
    current.symlink_to(notes)
    with Folder(current).watching(ear):
        (notes.parent / "next").symlink_to(release)
        (notes.parent / "next").replace(current)
        ear.wait(LIST, updated(current / "today.md"), updated(current / "plans" / "trip.txt"))
        ear.forget()
        (release / "today.md").write_text("# Mended\n")
        ear.wait(updated(current / "today.md"))


def test_a_folder_that_is_not_there_yet(notes: Path, ear: Ear) -> None:
    folder = Folder(notes / "later")
    with folder.watching(ear):
        assert not folder.seen.paths
        (notes / "later").mkdir()
        (notes / "later" / "x").touch()
        ear.wait(LIST, updated(notes / "later" / "x"))


def test_a_thousand_files_at_once(notes: Path, ear: Ear) -> None:
    files = [notes / "plans" / f"{number}.txt" for number in range(1_000)]
    folder = Folder(notes)
    with folder.watching(ear):
        for file in files:
            file.touch()
        ear.wait(LIST, *map(updated, files))
    ear.forget()
    entered, leave = threading.Event(), threading.Event()

    def hold(*told: Event) -> None:
        ear(*told)
        entered.set()
        assert leave.wait(LIMIT)

    with folder.watching(hold):
        (notes / "today.md").write_text("x")
        assert entered.wait(LIMIT)
        for file in files:
            file.write_text("x")
        ear.forget()
        leave.set()
        ear.wait(*map(updated, files))
        assert any({*map(updated, files)} <= set(batch) for batch in ear.batches)


@pytest.mark.field("F41")
def test_two_hundred_changes_in_one_go_are_one_or_two_events(notes: Path) -> None:
    """They happen while the watch is held up in a publish, so that none can be seen by itself."""
    ear, entered, leave = Ear(), threading.Event(), threading.Event()
    today = notes / "today.md"

    def hold(*told: Event) -> None:
        ear(*told)
        if not entered.is_set():
            entered.set()
            assert leave.wait(LIMIT)

    with Folder(notes).watching(hold):
        (notes / "plans" / "trip.txt").write_text("x")
        assert entered.wait(LIMIT)
        for number in range(200):
            today.write_text(f"number {number:03}")
        leave.set()
        ear.wait(updated(today))
        (notes / "plans" / "trip.txt").write_text("y")
        ear.wait_until(lambda: ear.heard.count(updated(notes / "plans" / "trip.txt")) >= 2)
        assert 1 <= ear.heard.count(updated(today)) <= 2


def test_names_that_are_no_utf8(notes: Path, ear: Ear) -> None:
    folder = notes / os.fsdecode(b"\xfe")
    with Folder(notes).watching(ear):
        (notes / os.fsdecode(b"\xff.txt")).touch()
        ear.wait(LIST, ResourceUpdated(f"{notes.as_uri()}/%FF.txt"))
        folder.mkdir()
        (folder / "x").touch()
        ear.wait(ResourceUpdated(f"{notes.as_uri()}/%FE/x"))
        ear.forget()
        (folder / "x").write_text("x")
        ear.wait(ResourceUpdated(f"{notes.as_uri()}/%FE/x"))
        ear.forget()
        (notes / "today.md").write_text("x")
        ear.wait(updated(notes / "today.md"))


def test_another_base(notes: Path, ear: Ear) -> None:
    with Folder(notes, base_uri="notes:///").watching(ear):
        (notes / "plans" / "trip.txt").write_text("x")
        ear.wait(ResourceUpdated("notes:///plans/trip.txt"))


def test_a_lost_hint_is_made_good(notes: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(watcher: Watcher) -> object:
        watcher._stop.wait(0.01)
        return NOTHING

    monkeypatch.setattr(Watcher, "wait", deaf)
    with Folder(notes, rescan=0.05).watching(ear):
        (notes / "plans" / "trip.txt").write_text("x")
        ear.wait(updated(notes / "plans" / "trip.txt"))


def test_a_burst_brings_a_look_everywhere(notes: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many hints at once may have been more than the system kept."""
    told = [NOTHING._replace(told=module.BURST)]

    def burst(watcher: Watcher) -> object:
        watcher._stop.wait(0.01)
        return told.pop() if told and ear.batches else NOTHING

    monkeypatch.setattr(Watcher, "wait", burst)
    monkeypatch.setattr(module, "SOON", 0.05)
    folder = Folder(notes, rescan=3_600)
    with folder.watching(ear) as watch:
        (notes / "plans" / "trip.txt").write_text("x")
        ear()  # from now on there is a burst
        ear.wait(updated(notes / "plans" / "trip.txt"))
        assert watch is not None


def test_where_nothing_can_be_watched_it_is_looked_at_often(
    notes: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(watcher: Watcher, folders: object) -> None:
        raise CannotWatch("no space left for watches")

    monkeypatch.setattr(Watcher, "arm", refuse)
    monkeypatch.setattr(module, "POLL", 0.05)
    with Folder(notes).watching(ear):
        for text in ("x", "y"):
            ear.forget()
            (notes / "today.md").write_text(text)
            ear.wait(updated(notes / "today.md"))
        monkeypatch.undo()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "max_user_watches" in caplog.text


def test_trouble_is_told_and_survived(
    notes: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "POLL", 0.05)
    calls = 0

    def fail_once(*arguments: object, **more: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError(24, "Too many open files")
        return look(*arguments, **more)  # type: ignore[arg-type]  # passed on as they are

    monkeypatch.setattr(module, "look", fail_once)
    with Folder(notes).watching(ear):
        ear.wait(LIST, updated(notes / "today.md"))
        assert "Too many open files" in caplog.text


def test_what_the_hub_does_not_take_now_is_told_later(notes: Path, ear: Ear) -> None:
    refusals: list[Exception] = [TimeoutError("busy"), HarkenError("too many wait")]

    def busy(*told: Event) -> None:
        if refusals:
            raise refusals.pop()
        ear(*told)

    with Folder(notes).watching(busy):
        (notes / "today.md").write_text("x")
        ear.wait(updated(notes / "today.md"))
        assert refusals == []


def test_a_hub_that_starts_anew_is_told_what_it_missed(notes: Path, ear: Ear) -> None:
    closed, open_again = threading.Event(), threading.Event()

    def publish(*told: Event) -> None:
        if not open_again.is_set():
            closed.set()
            raise HubClosed("over")
        ear(*told)

    with Folder(notes).watching(publish):
        (notes / "today.md").write_text("x")
        assert closed.wait(LIMIT)
        open_again.set()
        ear.wait(updated(notes / "today.md"))


def test_the_watch_ends_with_its_context(notes: Path, ear: Ear) -> None:
    before = threading.active_count()
    with Folder(notes).watching(ear):
        assert threading.active_count() > before
    assert threading.active_count() == before
    (notes / "today.md").write_text("x")
    assert ear.heard == []


def test_what_was_there_before_is_no_news(notes: Path, ear: Ear) -> None:
    for number in range(20):
        (notes / f"{number}.txt").touch()
    folder = Folder(notes)
    with folder.watching(ear):
        assert len(folder.seen.paths) == 22
        (notes / "today.md").write_text("x")
        ear.wait(updated(notes / "today.md"))
        assert set(ear.heard) == {updated(notes / "today.md")}


@pytest.mark.anyio
@pytest.mark.field("F7")
async def test_a_hub_hears_from_the_thread(notes: Path) -> None:
    """The watch publishes from a thread of its own, without any request around it."""
    published: asyncio.Queue[Event] = asyncio.Queue()

    class Broker:
        async def start(self, deliver: object) -> None: ...

        def publish(self, told: list[Event]) -> None:
            for event in told:
                published.put_nowait(event)

        async def close(self) -> None: ...

    hub = Hub(broker=Broker())  # type: ignore[arg-type]  # it carries nothing any further
    async with asyncio.timeout(LIMIT), hub, Folder(notes).watching(hub.publish_from_thread):
        (notes / "today.md").write_text("x")
        assert await published.get() == updated(notes / "today.md")


def test_a_folder_has_one_watch_at_a_time(notes: Path, ear: Ear) -> None:
    folder = Folder(notes)
    with folder.watching(ear), pytest.raises(RuntimeError, match="watched already"), folder.watching(ear):
        pass
    with folder.watching(ear):
        (notes / "today.md").write_text("x")
        ear.wait(updated(notes / "today.md"))


def test_the_events_of_a_difference() -> None:
    naming = Naming("x://h/")
    assert list(events(Difference([], [], ["b", "a"]), naming)) == [
        ResourceUpdated("x://h/a"),
        ResourceUpdated("x://h/b"),
    ]
    assert list(events(Difference(["c"], ["a"], ["b"]), naming)) == [
        LIST,
        ResourceUpdated("x://h/a"),
        ResourceUpdated("x://h/b"),
        ResourceUpdated("x://h/c"),
    ]
    assert list(events(Difference([], [], ["a!"]), naming)) == [
        ResourceUpdated("x://h/a!"),
        ResourceUpdated("x://h/a%21"),
    ]
    assert list(events(Difference([], [], []), naming)) == []


def test_arguments(notes: Path) -> None:
    with pytest.raises(InvalidURI):
        Folder(notes, base_uri="notes")
    with pytest.raises(ValueError, match="above 0 seconds"):
        Folder(notes, rescan=0)
    assert Folder.supports == {Kind.RESOURCES_LIST_CHANGED, Kind.RESOURCE_SUBSCRIPTIONS}
