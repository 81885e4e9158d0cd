"""Which URI a file below a folder has, and which file a URI means.

A path here is relative to the folder, with slashes, as Python decodes file names (bytes that are no UTF-8 as
lone surrogates). The URI holds a name's bytes, percent-encoded, so that every name has one.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote, unquote_to_bytes

from harken.core.uris import normalize
from harken.errors import InvalidURI

__all__ = ["Naming", "file_base", "shown"]

_PREFIX = re.compile(r"[a-z][a-z0-9+.-]*:(?://[^/?#]*)?")
_QUERY_OR_FRAGMENT = re.compile(r"[?#]")
# What may stand in a path as it is (RFC 3986, section 3.3: sub-delims, ":" and "@"), and is never decoded by
# the normal form. Three habits exist: browsers and JavaScript leave these and brackets alone, Python encodes
# them all, and the RFC's grammar lets all but the brackets stand.
_STANDING = "!$&'()*+,;=:@"
_HABITS = (_STANDING, "", _STANDING + "[]")
_SPELLED_DIFFERENTLY = re.compile(r"[!$&'()*+,;=:@\[\]]")


class Naming:
    """The URIs of the files below `base`, an absolute URI without query and fragment.

    Raises InvalidURI where `base` is no such URI.
    """

    def __init__(self, base: str) -> None:
        base = normalize(base)
        if "?" in base or "#" in base:
            raise InvalidURI(f"files can't lie below a URI with a query or fragment: {base!r}")
        self.base: str = base if base.endswith("/") else base + "/"
        """The folder's own URI, in normal form, with a slash at its end."""
        self._prefix, self._above = _split(self.base[:-1])
        others = (self._prefix + "/".join(_quote(name, habit) for name in self._above) for habit in _HABITS)
        self._bases = (self.base, *(f"{other}/" for other in others))

    def uri_of(self, path: str) -> str:
        """The URI of a path, in normal form (decision D7)."""
        return self.base + _quote(path, _STANDING)

    def spellings(self, path: str) -> tuple[str, ...]:
        """Every URI, in normal form, by which clients are known to name this file; `uri_of` comes first.

        RFC 3986 holds `a(1)` and `a%281%29` for two resources, so a client that makes its URIs itself may
        never use the spelling of the list. It still has to hear of the file.
        """
        if not _SPELLED_DIFFERENTLY.search(path) and len(set(self._bases)) == 1:
            return (self.uri_of(path),)
        others = (base + _quote(path, habit) for base, habit in zip(self._bases[1:], _HABITS, strict=True))
        return tuple(dict.fromkeys((self.uri_of(path), *others)))

    def path_of(self, uri: str) -> str | None:
        """The path that a URI means; None where it means nothing below the folder.

        Raises InvalidURI for what is no URI. Never gives a path that leads out: no empty, `.` or `..` name,
        no name with a slash or a NUL in it, however it was encoded.
        """
        prefix, names = _split(normalize(uri))
        depth = len(self._above)
        below = names[depth:]
        if prefix != self._prefix or names[:depth] != self._above or not below:
            return None
        if any(name in {"", ".", ".."} or "/" in name or "\0" in name for name in below):
            return None
        return "/".join(below)


def file_base(folder: str) -> str:
    """The `file://` URI of an absolute path (RFC 8089)."""
    return f"file://{_quote(folder.rstrip('/'), _STANDING)}/"


def shown(path: str) -> str:
    """A path as text that any encoder takes; bytes that are no UTF-8 show as replacement characters."""
    return os.fsencode(path).decode("utf-8", "replace")


def _quote(path: str, habit: str) -> str:
    return quote(os.fsencode(path), safe="/" + habit)


def _split(uri: str) -> tuple[str, list[str]]:
    """A URI in normal form as its scheme and authority, and the decoded names of its path.

    A query or fragment makes it the URI of something else: a NUL is added, which no file's name holds.
    """
    prefix = _PREFIX.match(uri)
    assert prefix is not None, "a normal form begins with a scheme"
    path, *others = _QUERY_OR_FRAGMENT.split(uri[prefix.end() :], maxsplit=1)
    names = [os.fsdecode(unquote_to_bytes(name)) for name in path.split("/")]
    return prefix[0], names + ["\0"] * len(others)
