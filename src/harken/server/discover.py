"""`server/discover` (clause A1): what this server can do, and no more (clause R20)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harken.core.events import Kind
from harken.core.wire import SUPPORTED_VERSIONS

__all__ = ["BITS", "discover_result", "families", "with_bits"]

BITS: dict[Kind, tuple[str, str]] = {
    Kind.TOOLS_LIST_CHANGED: ("tools", "listChanged"),
    Kind.PROMPTS_LIST_CHANGED: ("prompts", "listChanged"),
    Kind.RESOURCES_LIST_CHANGED: ("resources", "listChanged"),
    Kind.RESOURCE_SUBSCRIPTIONS: ("resources", "subscribe"),
}
"""The capability bit that promises each kind."""

TTL_MS = 60_000  # how long a client may keep what it discovered: a deploy may change it

_FAMILIES = ("tools", "prompts", "resources")


def with_bits(capabilities: Mapping[str, object], kinds: Collection[Kind]) -> dict[str, object]:
    """`capabilities` with exactly the bits of `kinds` set (clause R20)."""
    told: dict[str, object] = {}
    for name, value in capabilities.items():
        held = dict(value) if isinstance(value, dict) else {}
        told[name] = value
        if name in _FAMILIES:
            told[name] = {key: held[key] for key in held if key not in {"listChanged", "subscribe"}}
    for kind in sorted(kinds):
        family, bit = BITS[kind]
        bits = told.setdefault(family, {})
        if isinstance(bits, dict):
            bits[bit] = True
    return told


def families(methods: Collection[str]) -> dict[str, object]:
    """The capabilities that the presence of these methods shows."""
    return {family: {} for family in _FAMILIES if any(method.startswith(f"{family}/") for method in methods)}


def discover_result(
    capabilities: Mapping[str, object], kinds: Collection[Kind], instructions: str | None
) -> dict[str, object]:
    """The result of `server/discover`."""
    result: dict[str, object] = {
        "resultType": "complete",
        "supportedVersions": list(SUPPORTED_VERSIONS),
        "capabilities": with_bits(capabilities, kinds),
        "ttlMs": TTL_MS,
        "cacheScope": "public",
    }
    if instructions is not None:
        result["instructions"] = instructions
    return result
