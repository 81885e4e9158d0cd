"""The files of a folder as resources: `resources/list`, `resources/templates/list`, `resources/read`.

Any folder's content may be somebody's: results are `private`, and stale at once, since a listener is told of
changes and nobody else is.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import mimetypes
import os
import re
from bisect import bisect_right
from collections.abc import Mapping

from harken.core.wire import INTERNAL_ERROR, INVALID_PARAMS
from harken.errors import InvalidURI, RPCError
from harken.server.methods import Handler, Request
from harken.sources.folder import Folder, Seen
from harken.sources.opening import open_file
from harken.sources.paths import shown

__all__ = ["Files", "media_type"]

PAGE = 1_000  # entries
LARGEST = 50 * 1024 * 1024  # bytes of a file that is read in one piece
READERS = 4  # files that are read at once: each is held in memory, up to three times over

# Without the machine's own lists, so that a file has one type everywhere; with what Python's lack.
_TYPES = mimetypes.MimeTypes(filenames=())
for _type, _ending in {
    "application/toml": ".toml",
    "application/yaml": ".yaml",
    "image/webp": ".webp",
    "text/markdown": ".md",
    "text/x-go": ".go",
    "text/x-rust": ".rs",
    "text/x-rst": ".rst",
    "text/x-typescript": ".ts",
}.items():
    _TYPES.add_type(_type, _ending)
_TYPES.add_type("application/yaml", ".yml")
_ENDINGS = re.compile(r"(\.[A-Za-z0-9_+-]+){1,2}\Z")
_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}

# What says that no such file is there; a link, a folder, a pipe or a socket is none.
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENAMETOOLONG, errno.ENXIO}
_FRESH = {"ttlMs": 0, "cacheScope": "private"}


class Files:
    """The three methods, for `Hub(methods=Files(folder).methods)`.

    :param page: entries of one page of the list.
    :param largest: bytes up to which a file can be read.
    """

    def __init__(self, folder: Folder, *, page: int = PAGE, largest: int = LARGEST) -> None:
        self._folder = folder
        self._page = page
        self._largest = largest
        self._readers = asyncio.Semaphore(READERS)
        self.methods: dict[str, Handler] = {
            "resources/list": self._list,
            "resources/templates/list": self._templates,
            "resources/read": self._read,
        }

    async def _list(self, request: Request) -> Mapping[str, object]:
        """Sorted by path. A cursor names the last path of the page before: it stays good whatever changes."""
        seen = self._folder.seen
        begin = bisect_right(seen.paths, _path_of_cursor(request)) if "cursor" in request.params else 0
        paths = seen.paths[begin : begin + self._page]
        result: dict[str, object] = {"resources": [self._resource(seen, path) for path in paths], **_FRESH}
        if begin + len(paths) < len(seen.paths):
            result["nextCursor"] = _cursor_of(paths[-1])
        return result

    def _resource(self, seen: Seen, path: str) -> dict[str, object]:
        folder, _, name = path.rpartition("/")
        resource: dict[str, object] = {
            "uri": self._folder.naming.uri_of(path),
            "name": shown(path),
            "size": seen.tree[folder].files[name].size,
        }
        if (known := media_type(name)) is not None:
            resource["mimeType"] = known
        return resource

    async def _templates(self, request: Request) -> Mapping[str, object]:
        if "cursor" in request.params:
            raise _bad_cursor()  # there is one page, without a next one
        template = {
            "uriTemplate": self._folder.naming.base + "{+path}",
            "name": shown(os.path.basename(self._folder.root) or self._folder.root),
            "description": "A file of this folder, by its path below the folder.",
        }
        return {"resourceTemplates": [template], **_FRESH}

    async def _read(self, request: Request) -> Mapping[str, object]:
        uri = request.params.get("uri")
        if not isinstance(uri, str):
            raise RPCError(INVALID_PARAMS, "resources/read needs `uri`, a string")
        path = self._path_of(uri)
        async with self._readers:
            contents = await asyncio.to_thread(self._contents, uri, path)
        return {"contents": [contents], **_FRESH}

    def _path_of(self, uri: str) -> str:
        try:
            path = self._folder.naming.path_of(uri)
        except InvalidURI as error:
            raise RPCError(INVALID_PARAMS, str(error), {"uri": uri}) from error
        if path is None or not self._folder.selection.takes_file(path):
            raise _not_found(uri)  # the same answer for what is left out and what is not there
        return path

    def _contents(self, uri: str, path: str) -> dict[str, object]:
        """The file as the schema's resource contents; blocks."""
        try:
            data = self._bytes(uri, path)
        except OSError as error:
            if error.errno in _ABSENT:
                raise _not_found(uri) from error
            raise RPCError(INTERNAL_ERROR, f"cannot be read: {error.strerror}", {"uri": uri}) from error
        known = media_type(path)
        if (text := _text(data)) is not None:
            return {"uri": uri, "mimeType": known or "text/plain", "text": text}
        blob = base64.b64encode(data).decode("ascii")
        return {"uri": uri, "mimeType": known or "application/octet-stream", "blob": blob}

    def _bytes(self, uri: str, path: str) -> bytes:
        with open_file(self._folder.root, path) as fd, os.fdopen(fd, "rb", closefd=False) as file:
            # One more than may be: a file can grow while it is read.
            size = os.fstat(fd).st_size
            data = file.read(self._largest + 1) if size <= self._largest else b""
        if max(size, len(data)) > self._largest:
            raise RPCError(
                INTERNAL_ERROR,
                f"the file is larger than {self._largest} bytes, the most that this server sends",
                {"uri": uri, "size": size, "limit": self._largest},
            )
        return data


def media_type(name: str) -> str | None:
    """The MIME type by a file's name; None where it tells none."""
    endings = _ENDINGS.search(name)
    known, compression = _TYPES.guess_type("_" + endings[0] if endings else "", strict=False)
    return known if compression is None else _COMPRESSED.get(compression, "application/octet-stream")


def _text(data: bytes) -> str | None:
    """The text that the bytes are; None for what is no UTF-8, or has a NUL in it, as no text does."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _cursor_of(path: str) -> str:
    return base64.urlsafe_b64encode(os.fsencode(path)).decode("ascii")


def _path_of_cursor(request: Request) -> str:
    cursor = request.params["cursor"]
    if not isinstance(cursor, str) or not re.fullmatch(r"[\w-]+={0,2}", cursor, re.ASCII):
        raise _bad_cursor()
    try:
        return os.fsdecode(base64.urlsafe_b64decode(cursor))
    except binascii.Error as error:
        raise _bad_cursor() from error


def _bad_cursor() -> RPCError:
    return RPCError(INVALID_PARAMS, "unknown cursor; begin again without one")


def _not_found(uri: str) -> RPCError:
    return RPCError(INVALID_PARAMS, "Resource not found", {"uri": uri})
