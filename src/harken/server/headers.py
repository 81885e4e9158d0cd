"""What a request's HTTP headers must be, and what they say of the client (clauses H3, H4, H8)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import urlsplit

from harken.core.wire import HEADER_MISMATCH, Inbound
from harken.errors import RPCError

__all__ = [
    "PREFLIGHT",
    "Headers",
    "accepts_sse",
    "check_body",
    "check_names",
    "check_present",
    "cors",
    "host_allowed",
    "origin_allowed",
]

_NAMED = {"resources/read": "uri", "tools/call": "name", "prompts/get": "name"}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Headers:
    """The headers of one request by lower-case name; values are compared as they are (clause H4)."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[bytes, list[str]] = {}
        for name, value in raw:
            self._values.setdefault(name.lower(), []).append(value.decode("latin-1").strip(" \t"))

    def all(self, name: str) -> list[str]:
        """Every value of `name`, in order."""
        return self._values.get(name.encode(), [])

    def get(self, name: str) -> str | None:
        """The values of `name` joined by commas, None without any."""
        values = self.all(name)
        return ", ".join(values) if values else None

    def single(self, name: str) -> str:
        """The one value of `name`. Raises RPCError `-32020` where it is missing, doubled or malformed."""
        values = self.all(name.lower())
        if len(values) != 1:
            raise RPCError(HEADER_MISMATCH, f"the header {name} is {'missing' if not values else 'doubled'}")
        if not values[0] or not all(" " <= character <= "~" for character in values[0]):
            raise RPCError(HEADER_MISMATCH, f"the header {name} is malformed")
        return values[0]


def check_present(headers: Headers, inbound: Inbound) -> None:
    """Raises RPCError `-32020` where a header that this request needs is missing or malformed (clause H4)."""
    headers.single("MCP-Protocol-Version")
    headers.single("Mcp-Method")
    if inbound.method in _NAMED:
        _decoded(headers.single("Mcp-Name"))


def check_body(headers: Headers, inbound: Inbound, version: str) -> None:
    """Raises RPCError `-32020` where a header says other than the body (clause H4)."""
    _equal("MCP-Protocol-Version", headers.single("MCP-Protocol-Version"), version)
    _equal("Mcp-Method", headers.single("Mcp-Method"), inbound.method)
    if (key := _NAMED.get(inbound.method)) is not None:
        _equal("Mcp-Name", _decoded(headers.single("Mcp-Name")), (inbound.params or {}).get(key))


def _equal(name: str, header: str, body: object) -> None:
    if header != body:
        shown = body[:64] if isinstance(body, str) else body
        raise RPCError(HEADER_MISMATCH, f"the header {name} says {header[:64]!r}, the body {shown!r}")


def _decoded(value: str) -> str:
    """A value in the specification's Base64 form, or as it stands."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[len("=?base64?") : -len("?=")], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise RPCError(HEADER_MISMATCH, "the header Mcp-Name is not valid Base64 of UTF-8") from error


def accepts_sse(accept: str | None) -> bool:
    """Whether a client with this `Accept` can take `text/event-stream` (clause H3)."""
    if accept is None:
        return True
    best = (-1, 0.0)  # how exactly a range fits, and its weight: the most exact one decides
    for media_range in accept.split(","):
        name, *parameters = (part.strip().lower() for part in media_range.split(";"))
        exactness = {"text/event-stream": 2, "text/*": 1, "*/*": 0}.get(name, -1)
        if exactness > best[0]:
            best = (exactness, _weight(parameters))
    return best[1] > 0


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def check_names(name: str, names: Collection[str] | None) -> frozenset[str] | None:
    """The origins or hosts of an option, in lower case. Raises TypeError for anything else."""
    if names is None:
        return None
    # A lone string is a collection of strings too: it would allow each of its parts.
    if isinstance(names, str) or not all(isinstance(each, str) for each in names):
        raise TypeError(f"{name} must be a list of strings, not {names!r}")
    return frozenset(each.lower() for each in names)


def origin_allowed(origin: str, allowed: Collection[str] | None) -> bool:
    """Whether a browser page at `origin` may speak to us (clause H8); by default only loopback's may."""
    if allowed is not None:
        return "*" in allowed or origin.lower() in allowed
    try:
        parts = urlsplit(origin)
        return parts.scheme in {"http", "https"} and parts.hostname in _LOOPBACK
    except ValueError:
        return False


def host_allowed(host: str | None, allowed: Collection[str] | None) -> bool:
    """Whether `Host` names us: a name that an attacker points at loopback does not."""
    if allowed is None:
        return True
    try:
        return host is not None and urlsplit(f"//{host}").hostname in allowed
    except ValueError:
        return False


def cors(origin: str | None) -> list[tuple[bytes, bytes]]:
    """The headers that let the page at an allowed `origin` read the answer (clause H14)."""
    if origin is None:
        return []
    return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]


PREFLIGHT: Mapping[bytes, bytes] = {
    b"access-control-allow-methods": b"POST",
    b"access-control-allow-headers": (
        b"authorization, content-type, accept, mcp-protocol-version, mcp-method, mcp-name"
    ),
    b"access-control-max-age": b"600",
}
"""The answer to a preflight (clause H14)."""
