"""Nothing outside the folder is ever opened: no link, no special file, no swap in between."""

import os
import socket
import threading
from pathlib import Path

import pytest

from harken.sources.opening import open_file, open_folder


def read(root: Path, path: str) -> bytes:
    with open_file(str(root), path) as fd:
        return os.read(fd, 1_000)


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_file_is_read(notes: Path) -> None:
    assert read(notes, "today.md") == b"# Today\n"
    assert read(notes, "plans/trip.txt") == b"by train\n"


def test_the_folder_itself_may_be_a_link(notes: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(notes)
    assert read(tmp_path / "link", "today.md") == b"# Today\n"


def test_links_are_refused_wherever_they_stand(notes: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (notes / "link").symlink_to(tmp_path / "secret")
    (notes / "up").symlink_to(tmp_path)
    (notes / "inside").symlink_to(notes / "today.md")
    (notes / "plans" / "loop").symlink_to(notes)
    (notes / "dangling").symlink_to("nowhere")
    for path in ("link", "up/secret", "up/notes/today.md", "inside", "plans/loop/today.md", "dangling"):
        with pytest.raises(OSError):
            read(notes, path)
    with pytest.raises(OSError), open_folder(str(notes), "up"):
        pass


def test_what_is_no_regular_file_is_refused_without_waiting(notes: Path) -> None:
    os.mkfifo(notes / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(notes, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{here}/socket")  # short enough, however deep the folder lies
        finally:
            os.close(here)
        for path in ("pipe", "socket", "plans", "absent", "today.md/x"):
            with pytest.raises(OSError):
                read(notes, path)


def test_a_device_is_refused() -> None:
    with pytest.raises(OSError):
        read(Path("/dev"), "null")


def test_nothing_stays_open(notes: Path) -> None:
    before = open_descriptors()
    for path in ("today.md", "plans/trip.txt", "plans", "plans/absent", "absent/x"):
        try:
            read(notes, path)
        except OSError:
            pass  # that it fails is not the question here
    assert open_descriptors() == before


def test_a_path_longer_than_the_system_takes_at_once(tmp_path: Path) -> None:
    name, depth = "d" * 200, 30
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        above, fd = fd, os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(above)
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    assert read(tmp_path, "/".join([name] * depth + ["file"])) == b""


def test_a_link_that_is_swapped_in_is_not_followed(notes: Path, tmp_path: Path) -> None:
    """A folder, and a file, are replaced by links to the outside and back, while they are read."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "trip.txt").write_text("secret")
    (notes / "link").symlink_to(outside)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            os.rename(notes / "plans", notes / "aside")
            os.rename(notes / "link", notes / "plans")
            os.rename(notes / "plans", notes / "link")
            os.rename(notes / "aside", notes / "plans")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        for _ in range(5_000):
            try:
                seen.add(read(notes, "plans/trip.txt"))
            except OSError:
                seen.add(b"refused")
    finally:
        over.set()
        thread.join()
    assert b"secret" not in seen
    assert b"by train\n" in seen
