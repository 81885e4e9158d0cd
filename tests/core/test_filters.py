"""Filters: what is accepted from the wire, what is honoured of it, what it matches."""

from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.core.events import (
    ALL_KINDS,
    Event,
    Kind,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import KIND_OF, Filter
from harken.errors import InvalidFilter, InvalidURI

BOOLEANS = ["toolsListChanged", "promptsListChanged", "resourcesListChanged"]
EVERYTHING: dict[str, Any] = dict.fromkeys(BOOLEANS, True) | {"resourceSubscriptions": ["x://a", "x://b"]}
EVENTS: dict[str, Event] = {
    "toolsListChanged": ToolsListChanged(),
    "promptsListChanged": PromptsListChanged(),
    "resourcesListChanged": ResourcesListChanged(),
    "resourceSubscriptions": ResourceUpdated("x://a"),
}

URIS = st.sampled_from(
    ["x://a", "X://A", "x://%61", "x://a/", "x://b", "x://b/../c", "y:é", "y:%C3%A9", "y:%c3%a9"]
)
FILTERS = st.builds(
    Filter, st.booleans(), st.booleans(), st.booleans(), st.lists(URIS, max_size=6).map(tuple)
)


@pytest.mark.clause("R13")
@pytest.mark.parametrize("empty", [{}, dict.fromkeys(BOOLEANS, False), {"resourceSubscriptions": []}])
def test_a_missing_field_and_false_are_not_subscribed(empty: dict[str, object]) -> None:
    parsed = Filter.parse(empty)
    assert parsed == Filter()
    assert not parsed
    assert parsed.kinds == frozenset()
    assert parsed.to_wire() == {}


@pytest.mark.clause("R13")
@pytest.mark.parametrize("kind", list(Kind))
def test_each_field_asks_for_its_own_kind_alone(kind: Kind) -> None:
    parsed = Filter.parse({kind.value: EVERYTHING[kind.value]})
    assert parsed
    assert parsed.kinds == {kind}
    assert {KIND_OF[type(event)] for event in EVENTS.values() if parsed.matches(event)} == {kind}


@pytest.mark.clause("R13")
@pytest.mark.parametrize("value", [None, True, 0, 1.5, "x", [], ["toolsListChanged"], [[]], ()])
def test_a_filter_that_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(InvalidFilter, match=r"params\.notifications must be an object"):
        Filter.parse(value)


@pytest.mark.clause("R13")
@pytest.mark.parametrize("field", BOOLEANS)
@pytest.mark.parametrize("value", [None, 0, 1, 1.0, "", "true", "false", [], [True], {}])
def test_nothing_is_coerced_to_a_boolean(field: str, value: object) -> None:
    with pytest.raises(InvalidFilter, match=field):
        Filter.parse(EVERYTHING | {field: value})


@pytest.mark.clause("R13")
@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, 1, "", "x://a", {}, {"x://a": True}, [None], [1], [["x://a"]], ["x://a", None]],
)
def test_nothing_is_coerced_to_a_list_of_strings(value: object) -> None:
    with pytest.raises(InvalidFilter, match="resourceSubscriptions"):
        Filter.parse(EVERYTHING | {"resourceSubscriptions": value})


@pytest.mark.clause("D7")
@pytest.mark.parametrize("uri", ["", "notes.md", "/a", "x:a b", "x:%", "C:\\notes", "x:\ud800"])
def test_a_string_that_is_no_uri_refuses_the_filter(uri: str) -> None:
    with pytest.raises(InvalidFilter, match=r"resourceSubscriptions.*not a URI"):
        Filter.parse({"resourceSubscriptions": ["x://a", uri]})
    with pytest.raises(InvalidURI):
        Filter(resource_subscriptions=(uri,))


@pytest.mark.clause("D6")
@pytest.mark.parametrize(
    "key", ["x", "tools_list_changed", "TOOLSLISTCHANGED", "", "com.example/thing", "_meta"]
)
def test_unknown_keys_are_ignored_and_not_echoed(key: str) -> None:
    assert Filter.parse({key: {"any": ["thing"]}}).to_wire() == {}
    assert Filter.parse(EVERYTHING | {key: None}).to_wire() == EVERYTHING


@pytest.mark.clause("D5", "D7")
def test_duplicates_count_once_in_first_seen_order_as_first_spelled() -> None:
    asked = ["x://h/b", "X://H/A", "x://h/b", "x://h/%41", "x://h/c", "x://h/./b"]
    parsed = Filter.parse({"resourceSubscriptions": asked})
    assert parsed.resource_subscriptions == ("x://h/b", "X://H/A", "x://h/c")
    assert parsed.to_wire() == {"resourceSubscriptions": ["x://h/b", "X://H/A", "x://h/c"]}
    assert parsed.spellings == {"x://h/b": "x://h/b", "x://h/A": "X://H/A", "x://h/c": "x://h/c"}


@given(FILTERS)
def test_the_wire_form_reads_back_and_is_the_schemas(asked: Filter) -> None:
    wire = asked.to_wire()
    assert Filter.parse(wire) == asked
    mcp_types.SubscriptionFilter.model_validate(wire, strict=True)
    assert set(wire) == {kind.value for kind in asked.kinds}
    assert all(wire.values())  # R3: neither false nor an empty list


@pytest.mark.clause("R3")
@given(FILTERS, st.frozensets(st.sampled_from(Kind)))
def test_a_server_honours_what_it_supports_and_leaves_the_rest_out(
    asked: Filter, kinds: frozenset[Kind]
) -> None:
    honored = asked.narrow(kinds)
    assert honored.kinds == asked.kinds & kinds
    assert honored.to_wire() == {kind: wanted for kind, wanted in asked.to_wire().items() if kind in kinds}


@pytest.mark.clause("R3")
def test_a_kind_that_is_not_supported_is_neither_false_nor_echoed() -> None:
    asked = Filter.parse(EVERYTHING)
    assert asked.narrow({Kind.TOOLS_LIST_CHANGED}).to_wire() == {"toolsListChanged": True}
    assert asked.narrow(()).to_wire() == {}
    assert asked.narrow(ALL_KINDS) is asked


@pytest.mark.clause("R11")
@given(FILTERS, FILTERS)
def test_what_was_not_honoured_is_told_kind_by_kind_and_uri_by_uri(asked: Filter, honored: Filter) -> None:
    missing = asked.without(honored)
    assert missing.kinds - {Kind.RESOURCE_SUBSCRIPTIONS} == (
        asked.kinds - honored.kinds - {Kind.RESOURCE_SUBSCRIPTIONS}
    )
    assert missing.spellings == {
        normal: uri for normal, uri in asked.spellings.items() if normal not in honored.spellings
    }
    assert not asked.without(asked)


@pytest.mark.clause("D7")
def test_a_filter_matches_a_uri_however_it_is_spelled() -> None:
    watched = Filter(resource_subscriptions=("X://H/%61",))
    assert watched.matches(ResourceUpdated("x://h/./a"))
    assert not watched.matches(ResourceUpdated("x://h/A"))
    assert not watched.matches(ResourceUpdated("x://h/a/"))


@pytest.mark.clause("R1")
@given(FILTERS)
def test_a_filter_matches_nothing_else(asked: Filter) -> None:
    for key, event in EVENTS.items():
        if key != "resourceSubscriptions":
            assert asked.matches(event) == (key in asked.to_wire())
    assert not asked.matches(ResourceUpdated("z://nobody"))


def test_equal_filters_are_one() -> None:
    assert (
        len({Filter(True, resource_subscriptions=("x://a", "x://a")), Filter(True, False, False, ("x://a",))})
        == 1
    )
