"""What `server/discover` says: all that is needed, and nothing that is not true."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pytest

from harken.core.events import ALL_KINDS, Kind
from harken.server.discover import BITS, discover_result, families, with_bits
from tests.serving import new_hub, serving
from tests.wire_client import ALL, discovered, listening

SETS = [set(chosen) for chosen in chain.from_iterable(combinations(sorted(Kind), n) for n in range(5))]


def bits_in(capabilities: Any) -> set[Kind]:
    """The kinds whose bit is set, to true and to nothing else."""
    told = set()
    for kind, (family, bit) in BITS.items():
        value = capabilities.get(family, {}).get(bit, ...)
        assert value in (True, ...)
        if value is True:
            told.add(kind)
    return told


@pytest.mark.clause("R20")
@pytest.mark.field("F6")
@pytest.mark.parametrize("kinds", SETS, ids=lambda kinds: "+".join(sorted(kinds)) or "none")
@pytest.mark.parametrize(
    "before",
    [
        {},
        {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": False, "x": 1},
            "y": {},
        },
        {"tools": None, "prompts": True, "resources": []},
    ],
    ids=["nothing", "bits", "odd"],
)
def test_the_bits_are_exactly_the_kinds(kinds: set[Kind], before: dict[str, object]) -> None:
    told = with_bits(before, kinds)
    assert bits_in(told) == kinds
    assert told.get("y") == before.get("y")


@pytest.mark.clause("R20")
def test_what_else_a_family_says_stays() -> None:
    before = {"tools": {"x": 1, "listChanged": True}, "experimental": {"listChanged": True}}
    told = with_bits(before, [])
    assert told == {"tools": {"x": 1}, "experimental": {"listChanged": True}}
    assert before["tools"] == {"x": 1, "listChanged": True}  # the caller's own is left alone


def test_families_follow_the_methods() -> None:
    assert families(["tools/list", "server/discover", "x/y"]) == {"tools": {}}
    assert families(["resources/read", "prompts/get"]) == {"prompts": {}, "resources": {}}
    assert families([]) == {}


@pytest.mark.clause("A1")
def test_the_result_is_whole() -> None:
    result = discover_result({"x": {}}, ALL_KINDS, "Read the notes.")
    assert result["resultType"] == "complete"
    assert result["supportedVersions"] == ["2026-07-28"]
    assert isinstance(result["ttlMs"], int)
    assert result["ttlMs"] >= 0
    assert result["cacheScope"] == "public"
    assert result["instructions"] == "Read the notes."
    assert "instructions" not in discover_result({}, [], None)


@pytest.mark.anyio
@pytest.mark.clause("R20", "A1", "R3")
@pytest.mark.field("F6")
@pytest.mark.parametrize("kinds", SETS, ids=lambda kinds: "+".join(sorted(kinds)) or "none")
async def test_what_is_discovered_is_what_is_acknowledged(kinds: set[Kind]) -> None:
    hub = new_hub(supports=kinds, name="n", version="v", instructions="i", capabilities={"x": {"y": 1}})
    async with serving(hub.asgi()) as port:
        result = (await discovered(port)).discovered
        assert bits_in(result["capabilities"]) == kinds
        assert result["capabilities"]["x"] == {"y": 1}
        assert result["instructions"] == "i"
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"] == {"name": "n", "version": "v"}
        async with listening(port, ALL) as stream:
            assert set(await stream.acknowledged()) == kinds
