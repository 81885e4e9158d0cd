"""Which names of a folder are served at all."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

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
        self._hidden = hidden
        self._names: list[tuple[str, bool]] = []
        self._paths: list[tuple[str, bool]] = []
        for glob in exclude:
            pattern = glob.rstrip("/").removeprefix("./")
            patterns = self._paths if "/" in pattern else self._names
            patterns.append((pattern.removeprefix("/"), glob.endswith("/")))

    def takes(self, path: str, *, folder: bool) -> bool:
        """Whether a path is served, given that the folder in which it lies is."""
        name = path.rpartition("/")[2]
        if not self._hidden and any(fnmatchcase(name, leftover) for leftover in _LEFTOVERS):
            return False
        return not (_any(self._names, name, folder) or _any(self._paths, path, folder))

    def takes_file(self, path: str) -> bool:
        """Whether the file at `path` is served, and each folder on the way to it."""
        above = [path[:at] for at, character in enumerate(path) if character == "/"]
        return all(self.takes(folder, folder=True) for folder in above) and self.takes(path, folder=False)


def _any(patterns: list[tuple[str, bool]], name: str, folder: bool) -> bool:
    return any(fnmatchcase(name, pattern) for pattern, folders_only in patterns if folder or not folders_only)
