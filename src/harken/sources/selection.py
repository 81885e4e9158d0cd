"""Which names of a folder are served at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate

__all__ = ["Selection"]

# Names that editors leave beside a file while they save it, or until the next save.
_LEFTOVERS = (".*", "*~", "#*#", "*___jb_tmp___", "*___jb_old___")


class Selection:
    """Leaves out hidden names, unless asked for, and what matches one of the patterns `exclude`.

    Hidden is a name that begins with a dot (`.git` among them), and the backups and lock files of editors.
    A pattern is a shell glob. Without a slash it means a file's or folder's name at any depth; with one, the
    path below the folder, where `*` matches slashes too. A slash at its end makes it mean folders only.
    What lies in a folder that is left out is left out with it.
    """

    def __init__(self, *, hidden: bool = False, exclude: Sequence[str] = ()) -> None:
        globs = [*(() if hidden else _LEFTOVERS), *(glob.removeprefix("./") for glob in exclude)]
        names = [glob for glob in globs if "/" not in glob.rstrip("/")]
        paths = [glob for glob in globs if "/" in glob.rstrip("/")]
        self._names = _either(names), _either(glob for glob in names if not glob.endswith("/"))
        self._paths = _either(paths), _either(glob for glob in paths if not glob.endswith("/"))

    def takes(self, path: str, *, folder: bool) -> bool:
        """Whether a path is served, given that the folder in which it lies is."""
        names, paths = (pair[0 if folder else 1] for pair in (self._names, self._paths))
        if names is not None and names.match(path, path.rfind("/") + 1):
            return False
        return paths is None or not paths.match(path)

    def takes_file(self, path: str) -> bool:
        """Whether the file at `path` is served, and each folder on the way to it."""
        above = [path[:at] for at, character in enumerate(path) if character == "/"]
        return all(self.takes(folder, folder=True) for folder in above) and self.takes(path, folder=False)


def _either(globs: Iterable[str]) -> re.Pattern[str] | None:
    """One pattern for all of them, since each file of a large folder is held against it."""
    patterns = [translate(glob.strip("/")) for glob in globs]
    return re.compile("|".join(patterns)) if patterns else None
