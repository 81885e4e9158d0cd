"""URIs: one normal form for comparing (decision D7), and whose sub-resource is whose (decision D8).

The normal form is RFC 3986's syntax-based one (section 6.2.2): scheme and host in lower case,
percent-encodings in upper case and only where needed, dot segments removed. A character outside ASCII is
taken as its UTF-8 percent-encoding (RFC 3987, section 3.1), so both spellings meet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harken.errors import InvalidURI

__all__ = ["ancestors", "normalize"]

_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//[^/?#]*)?([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_ILLEGAL = re.compile(r'[\x00-\x20\x7f<>"{}|\\^`]|%(?![0-9A-Fa-f]{2})')
# Nearly every URI is in normal form already, and this sees it in one pass: no percent sign, no upper case
# before the path, no segment that starts with a dot. Two slashes always open an authority.
_NORMAL = re.compile(
    r"[a-z][a-z0-9+.-]*:(?://[a-z0-9._~:@!$&'()*+,;=\[\]-]*(?=[/?]|\Z)|(?!//))"
    r"(?:(?!/\.)[A-Za-z0-9._~:@!$&'()*+,;=/\[\]-])*(?:\?[A-Za-z0-9._~:@!$&'()*+,;=/?\[\]-]*)?\Z"
)
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_OCTETS = [chr(octet) if octet < 0x80 else f"%{octet:02X}" for octet in range(0x100)]
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SHOWN = 80  # how much of a bad URI an error message repeats, in characters


def normalize(uri: str) -> str:
    """The normal form of `uri`; equal for two URIs exactly when they name one resource.

    Raises InvalidURI for a string that is no URI.
    """
    if _NORMAL.match(uri):
        return uri
    parts = _PARTS.fullmatch(uri)
    if parts is None:
        raise InvalidURI(f"not a URI (a scheme such as 'file:' must come first): {uri[:_SHOWN]!r}")
    if illegal := _ILLEGAL.search(uri):
        raise InvalidURI(f"not a URI ({illegal[0]!r} must be percent-encoded): {uri[:_SHOWN]!r}")
    scheme, authority, path, query, fragment = (part or "" for part in parts.groups())
    path = _tidy(path)
    if authority or path.startswith("/"):
        path = _remove_dot_segments(path)
    if not authority and path.startswith("//"):
        path = "/." + path  # else what follows would be read as an authority (RFC 3986, section 3.3)
    return f"{scheme.lower()}:{_lower_host(_tidy(authority))}{path}{_tidy(query)}{_tidy(fragment)}"


def ancestors(uri: str, longest: int | None = None) -> Iterator[str]:
    """Every URI in normal form that has `uri`, in normal form too, below it; nearest first.

    Whole segments only: `x://a/b` lies below `x://a/` and `x://a`; `x://ab` lies below neither. Those of more
    than `longest` characters are left out, so that a URI of a million slashes costs what the caller can use.
    """
    longest = len(uri) - 1 if longest is None else min(longest, len(uri) - 1)
    path_end = min((at for at in (uri.find("?"), uri.find("#")) if at >= 0), default=len(uri))
    colon = uri.find(":")
    start = colon + 3 if uri.startswith("//", colon + 1) else colon + 1
    slash = uri.rfind("/", start, min(path_end, longest + 1))
    while slash >= 0:
        if slash < longest:
            yield uri[: slash + 1]
        yield uri[:slash]
        slash = uri.rfind("/", start, slash)


def _tidy(part: str) -> str:
    """Percent-encodings as RFC 3986 sections 6.2.2.1 and 6.2.2.2 want them."""
    if "%" in part:
        part = _ENCODED.sub(_shortest, part)
    if part.isascii():
        return part
    try:
        return "".join([_OCTETS[octet] for octet in part.encode()])
    except UnicodeEncodeError as error:
        raise InvalidURI("not a URI (it holds half of a surrogate pair)") from error


def _shortest(encoded: re.Match[str]) -> str:
    character = chr(int(encoded[0][1:], 16))
    return character if character in _UNRESERVED else encoded[0].upper()


def _lower_host(authority: str) -> str:
    """`//user@Host:port` with its host in lower case; the user's name keeps its case."""
    user, at, host = authority.rpartition("@")
    return user + at + _ENCODED.sub(lambda encoded: encoded[0].upper(), host.lower())


def _remove_dot_segments(path: str) -> str:
    """RFC 3986, section 5.2.4, for a path that is empty or starts with a slash."""
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments[1:]:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept) if len(segments) > 1 else path
