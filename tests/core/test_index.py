"""Who hears of an event: everyone who wants it, nobody else, and without a look at the others."""

import gc
import itertools
import weakref
from collections import deque
from typing import NoReturn

import pytest

from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import Filter
from harken.core.index import MAX_CHILDREN, Index, Report
from harken.core.subscription import LINES, Ending, Subscription
from harken.core.wire import RequestId
from harken.errors import InvalidURI
from tests.core.frames import name, read, same_id, tag

ALL = Filter(True, True, True, ("x://h/a",))
EVERY: list[tuple[Event, str]] = [
    (ToolsListChanged(), "tools/list_changed"),
    (PromptsListChanged(), "prompts/list_changed"),
    (ResourcesListChanged(), "resources/list_changed"),
    (ResourceUpdated("x://h/a"), "resources/updated x://h/a"),
]


class Collectable(Subscription):
    """One that the tests can watch being freed."""

    __slots__ = ("__weakref__",)


def watching(*uris: str, id: RequestId = 1) -> Collectable:
    return acknowledged(Filter(resource_subscriptions=uris), id)


def acknowledged(honored: Filter, id: RequestId = 1) -> Collectable:
    subscription = Collectable(id, honored, LINES, {"name": "test", "version": "0"})
    subscription.take()
    return subscription


def indexed(
    *subscriptions: Collectable, subresources: bool = False, report: Report = "subscribed"
) -> Index[Collectable]:
    index: Index[Collectable] = Index(subresources=subresources, report=report)
    for subscription in subscriptions:
        index.add(subscription)
    return index


def publish(index: Index[Collectable], *events: Event) -> list[Collectable]:
    dirty: list[Collectable] = []
    for event in events:
        index.mark(event, dirty)
    return dirty


def updated(index: Index[Collectable], *uris: str) -> list[Collectable]:
    return publish(index, *map(ResourceUpdated, uris))


def heard(subscription: Subscription) -> list[str]:
    return [name(message).removeprefix("resources/updated ") for message in read(subscription.take())]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        pytest.param(*each, marks=pytest.mark.clause(number))
        for each, number in zip(EVERY, ["R7", "R8", "R9", "R10"], strict=True)
    ],
)
@pytest.mark.clause("R1")
def test_an_event_reaches_who_asked_for_it_and_nobody_else(event: Event, said: str) -> None:
    one_each = [
        acknowledged(Filter(tools_list_changed=True)),
        acknowledged(Filter(prompts_list_changed=True)),
        acknowledged(Filter(resources_list_changed=True)),
        watching("x://h/a"),
    ]
    everything, nothing = acknowledged(ALL), acknowledged(Filter())
    asked = one_each[[each for each, _ in EVERY].index(event)]
    dirty = publish(indexed(*one_each, everything, nothing), event)
    assert set(dirty) == {asked, everything}
    for subscription in (*one_each, everything, nothing):
        told = [name(message) for message in read(subscription.take())]
        assert told == ([said] if subscription in {asked, everything} else [])


@pytest.mark.clause("R4", "R6")
def test_overlapping_filters_each_get_their_own_tagged_copy() -> None:
    ids: list[RequestId] = [1, "1", 2, "é"]
    subscriptions = [acknowledged(ALL, id) for id in ids]
    index = indexed(*subscriptions)
    publish(index, *(event for event, _ in EVERY))
    for id, subscription in zip(ids, subscriptions, strict=True):
        messages = read(subscription.take())
        assert [name(message) for message in messages] == [said for _, said in EVERY]
        assert all(same_id(tag(message), id) for message in messages)


@pytest.mark.clause("R6", "R15")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_one_leaves_and_the_others_still_hear(order: tuple[int, ...]) -> None:
    subscriptions = [acknowledged(ALL) for _ in range(3)]
    index = indexed(*(subscriptions[place] for place in order))
    staying = list(subscriptions)
    for place in (2, 0, 1):
        leaving = subscriptions[place]
        index.remove(leaving)
        index.remove(leaving)  # harmless when repeated
        staying.remove(leaving)
        assert set(publish(index, *(event for event, _ in EVERY))) == set(staying)
        assert [len(read(subscription.take())) for subscription in staying] == [4] * len(staying)
        assert not leaving.pending


@pytest.mark.clause("R15")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_has_left_is_freed(count: int) -> None:
    subscriptions = [acknowledged(ALL) for _ in range(count)]
    index = indexed(*subscriptions)
    publish(index, ToolsListChanged())
    freed = [weakref.ref(subscription) for subscription in subscriptions]
    while subscriptions:
        subscription = subscriptions.pop()
        subscription.cancel(Ending.CLIENT_GONE)
        index.remove(subscription)
        del subscription
    gc.collect()
    assert [reference() for reference in freed] == [None] * count
    assert not index._uris  # nor is a URI kept for nobody


def test_removing_a_stranger_takes_nothing_from_anybody() -> None:
    here, stranger = watching("x://h/a"), watching("x://h/a", "x://h/b")
    index = indexed(here)
    index.remove(stranger)
    assert updated(index, "x://h/a") == [here]


@pytest.mark.clause("D7")
def test_each_hears_the_uri_as_it_spelled_it() -> None:
    plain, loud, encoded = watching("x://h/a"), watching("X://H/a"), watching("x://h/%61")
    updated(indexed(plain, loud, encoded), "X://h/./a")
    assert [heard(each) for each in (plain, loud, encoded)] == [["x://h/a"], ["X://H/a"], ["x://h/%61"]]


@pytest.mark.clause("D5")
def test_a_uri_named_twice_is_told_once() -> None:
    subscription = watching("X://H/a", "x://h/a", "x://h/%61")
    index = indexed(subscription)
    assert updated(index, "x://h/a", "x://h/a") == [subscription]
    assert heard(subscription) == ["X://H/a"]
    index.remove(subscription)
    assert not index._uris


@pytest.mark.field("F41")
def test_a_burst_collapses_and_announces_each_subscription_once() -> None:
    one, other = acknowledged(ALL), acknowledged(ALL)
    dirty: deque[Collectable] = deque()
    index = indexed(one, other)
    for _ in range(200):
        for event, _ in EVERY:
            index.mark(event, dirty)
    assert list(dirty) == [one, other]
    assert [name(message) for message in read(one.take())] == [said for _, said in EVERY]
    assert publish(index, ToolsListChanged()) == [one]  # the other's is pending already


def test_what_is_no_uri_marks_nobody() -> None:
    subscription = acknowledged(ALL)
    index = indexed(subscription, subresources=True)
    for uri in ("", "x", "x:\ud800", "x:a b"):
        with pytest.raises(InvalidURI):
            updated(index, uri)
    assert not subscription.pending


class Untouchable(dict[object, bytes]):
    """The pending set of somebody whom an event does not concern."""

    def __len__(self) -> NoReturn:
        raise AssertionError("an event looked at a subscription that does not want it")

    __bool__ = __len__


def test_the_others_are_not_even_looked_at() -> None:
    others = [watching(f"x://h/{number}") for number in range(100)]
    for other in others:
        other.pending = Untouchable()
    wants = watching("x://h/a")
    assert updated(indexed(wants, *others), "x://h/a") == [wants]
    with pytest.raises(AssertionError, match="looked at"):
        updated(indexed(*others), "x://h/5")


# -- Sub-resources


@pytest.mark.clause("D8")
@pytest.mark.parametrize("above", ["x://h/a", "x://h/a/", "X://H/%61"])
def test_without_the_option_nobody_hears_of_a_child(above: str) -> None:
    subscription = watching(above)
    assert updated(indexed(subscription, report="child"), "x://h/a/b") == []
    assert not subscription.pending


@pytest.mark.clause("D8")
@pytest.mark.parametrize("above", ["x://h/a", "x://h/a/", "X://H/%61", "x://h", "x://h/"])
def test_a_child_is_told_by_the_name_that_was_subscribed(above: str) -> None:
    subscription = watching(above)
    index = indexed(subscription, subresources=True)
    assert updated(index, "x://h/a/b", "x://h/a/c/d") == [subscription]
    assert heard(subscription) == [above]


@pytest.mark.clause("D8")
@pytest.mark.parametrize("above", ["x://h/a", "x://h/a/", "X://H/%61", "x://h"])
def test_a_child_is_told_by_its_own_name_on_request(above: str) -> None:
    subscription = watching(above)
    index = indexed(subscription, subresources=True, report="child")
    assert updated(index, "X://h/a/%62", "x://h/a/c", "x://h/a/b") == [subscription]
    assert heard(subscription) == ["x://h/a/b", "x://h/a/c"]


@pytest.mark.clause("D8", "R1")
@pytest.mark.parametrize("report", ["subscribed", "child"])
def test_only_whole_segments_count(report: Report) -> None:
    subscription = watching("x://h/a", "x://h/d/")
    index = indexed(subscription, subresources=True, report=report)
    assert (
        updated(index, "x://h/ab", "x://h/a.b", "x://h/%61b", "x://h", "x://h/d", "x://h/b/a", "y://h/a/b")
        == []
    )
    assert not subscription.pending


@pytest.mark.clause("D8")
def test_who_names_parent_and_child_hears_of_both_or_of_the_child_as_it_spelled_it() -> None:
    subscription = watching("x://h/a", "X://H/a/b")
    updated(indexed(subscription, subresources=True), "x://h/a/b")
    assert heard(subscription) == ["X://H/a/b", "x://h/a"]
    updated(indexed(subscription, subresources=True, report="child"), "x://h/a/b")
    assert heard(subscription) == ["X://H/a/b"]


@pytest.mark.clause("D8")
def test_a_parent_that_is_pending_speaks_for_its_children() -> None:
    subscription = watching("x://h/a")
    updated(indexed(subscription, subresources=True, report="child"), "x://h/a", "x://h/a/b")
    assert heard(subscription) == ["x://h/a"]


@pytest.mark.clause("D8")
@pytest.mark.parametrize("named", [1, 200])
def test_a_flood_of_children_collapses_into_what_was_subscribed(named: int) -> None:
    subscription = watching(*(f"X://h/{number}" for number in range(named)))
    index = indexed(subscription, subresources=True, report="child")
    updated(index, *(f"x://h/0/{child}" for child in range(1000)))
    children = [f"x://h/0/{child}" for child in range(MAX_CHILDREN)]
    assert list(subscription.pending) == [*children, "x://h/0"]
    updated(index, *(f"x://h/{number}" for number in range(named)))
    assert len(subscription.pending) == MAX_CHILDREN + named
    assert heard(subscription)[: MAX_CHILDREN + 1] == [*children, "X://h/0"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("report", ["subscribed", "child"])
def test_a_million_slashes_are_no_burden(report: Report) -> None:
    subscription = watching("x://h/a", "x://h/b")
    index = indexed(subscription, subresources=True, report=report)
    uri = "x://h/a/" + "b/" * 500_000
    updated(index, uri)
    assert heard(subscription) == ["x://h/a" if report == "subscribed" else uri]
