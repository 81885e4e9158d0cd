"""Opens what lies below a folder, and never anything else.

Each name of a path is opened in the folder that was opened before it, without following symbolic links. So
neither a link that is there nor one that is swapped in meanwhile leads out. The folder itself may be reached
through links: whoever serves it has chosen it. A hard link is a file of this folder like any other, and what
is mounted below it is a part of it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["open_file", "open_folder"]

# O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY


@contextmanager
def open_folder(root: str, path: str) -> Iterator[int]:
    """A file descriptor of the folder at `path` below `root`; the empty path is `root` itself.

    Raises OSError where there is none, or where a link is on the way.
    """
    fd = os.open(root, _FOLDER)
    try:
        for name in path.split("/") if path else ():
            above, fd = fd, os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=fd)
            os.close(above)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_file(root: str, path: str) -> Iterator[int]:
    """A file descriptor of the regular file at `path` below `root`.

    Raises OSError where there is none: no folder, link, pipe, socket or device is ever opened for reading.
    """
    folder, _, name = path.rpartition("/")
    with open_folder(root, folder) as above:
        # Looked at before, since opening a device can already do something; and after, since it may be
        # another one by then.
        _must_be_regular(os.stat(name, dir_fd=above, follow_symlinks=False), path)
        fd = os.open(name, _FLAGS, dir_fd=above)
    try:
        _must_be_regular(os.fstat(fd), path)
        yield fd
    finally:
        os.close(fd)


def _must_be_regular(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
