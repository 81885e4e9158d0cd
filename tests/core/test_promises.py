"""The design's promises 1 and 3, checked against a simple model over random lives of many subscriptions.

1. The acknowledgment comes first, nothing outside the honoured filter is told, nothing follows the end.
3. What is pending is bounded by the filter, one entry an item, in the order of first becoming pending.

And what became pending while a subscription was alive is told before its end, or its client has left.
The model knows nothing of normal forms or segments: the universe below says by hand what is the same as what.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import Filter
from harken.core.index import Index, Report
from harken.core.subscription import Ending, EndSignal, Framing, Subscription
from harken.core.wire import RequestId
from tests.core.frames import FRAMINGS, ODD_IDS, name, read, same_id, tag

MAX_CHILDREN = 64

LISTS: dict[str, Event] = {
    "tools": ToolsListChanged(),
    "prompts": PromptsListChanged(),
    "resources": ResourcesListChanged(),
}

# normal form → further spellings of the same resource
SPELLINGS = {
    "x://h/": ["X://H/", "x://h/a/.."],
    "x://h/a": ["X://H/%61", "x://h/./b/../a"],
    "x://h/a/": ["x://H/a/."],
    "x://h/a/b": ["x://h/a/%62"],
    "x://h/a/b/c": ["x://h//../a/b/c"],
    "x://h/ab": ["x://h/a%62"],
    "x://h/%C3%A9": ["x://h/é", "x://h/%c3%a9"],
    "y:z": ["Y:%7a"],
}
CHILDREN = [f"x://h/a/{number}" for number in range(150)]
# normal form → what it lies below, nearest first
ABOVE = {
    "x://h/a": ["x://h/"],
    "x://h/a/": ["x://h/a", "x://h/"],
    "x://h/a/b": ["x://h/a/", "x://h/a", "x://h/"],
    "x://h/a/b/c": ["x://h/a/b", "x://h/a/", "x://h/a", "x://h/"],
    "x://h/ab": ["x://h/"],
    "x://h/%C3%A9": ["x://h/"],
} | {child: ["x://h/a/", "x://h/a", "x://h/"] for child in CHILDREN}

RESOURCES = st.sampled_from(sorted(SPELLINGS))


def spellings(resource: str) -> st.SearchStrategy[str]:
    return st.sampled_from([resource, *SPELLINGS[resource]])


@dataclass
class Life:
    """A subscription and all that the model knows of it."""

    subscription: Subscription
    framing: Framing
    signal: EndSignal
    lists: list[str]
    uris: dict[str, str]
    """Normal form → as this client spells it."""
    acknowledged: bool = False
    ending: bool = False
    over: bool = False
    due: dict[frozenset[str], None] = field(default_factory=dict)
    """What is still to be told, in order. One entry is a set of names, any of which tells it."""

    @property
    def alive(self) -> bool:
        return not self.ending and not self.over

    def owe(self, *names: str) -> None:
        if self.alive:
            self.due.setdefault(frozenset(names))

    def owe_list(self, kind: str) -> None:
        if kind in self.lists:
            self.owe(f"{kind}/list_changed")

    def owe_resource(self, resource: str) -> None:
        if resource in self.uris:
            self.owe(f"resources/updated {self.uris[resource]}")

    def owe_child(self, resource: str, above: Iterable[str]) -> None:
        """`resource` changed: each of those above it that was subscribed is told, or the child is named."""
        child = f"resources/updated {self.uris.get(resource, resource)}"
        for each in above:
            if each in self.uris:
                self.owe(child, f"resources/updated {self.uris[each]}")


class Promises(RuleBasedStateMachine):
    lives = Bundle[Life]("lives")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Life] = []

    @initialize(subresources=st.booleans(), report=st.sampled_from(["subscribed", "child"]))
    def begin(self, subresources: bool, report: Report) -> None:
        self.subresources, self.report = subresources, report
        self.index: Index[Subscription] = Index(subresources=subresources, report=report)

    @property
    def names_children(self) -> bool:
        return self.subresources and self.report == "child"

    # -- What happens

    @rule(
        target=lives,
        id=st.sampled_from(ODD_IDS),
        lists=st.lists(st.sampled_from(sorted(LISTS)), unique=True),
        uris=st.lists(RESOURCES.flatmap(lambda one: st.tuples(st.just(one), spellings(one))), max_size=6),
        framing=st.sampled_from(FRAMINGS),
        signal=st.sampled_from(["result", "result", "cancelled", "both"]),
    )
    def open(
        self,
        id: RequestId,
        lists: list[str],
        uris: list[tuple[str, str]],
        framing: Framing,
        signal: EndSignal,
    ) -> Life:
        asked: dict[str, Any] = {f"{kind}ListChanged": True for kind in lists}
        asked["resourceSubscriptions"] = [spelled for _, spelled in uris]
        first_seen: dict[str, str] = {}
        for resource, spelled in uris:
            first_seen.setdefault(resource, spelled)
        server = {"name": "test", "version": "0"}
        subscription = Subscription(id, Filter.parse(asked), framing, server, signal)
        self.index.add(subscription)
        life = Life(subscription, framing, signal, lists, first_seen)
        self.all.append(life)
        return life

    @rule(kind=st.sampled_from(sorted(LISTS)))
    def change_a_list(self, kind: str) -> None:
        self.publish(LISTS[kind])
        for life in self.all:
            life.owe_list(kind)

    @rule(change=RESOURCES.flatmap(lambda one: st.tuples(st.just(one), spellings(one))))
    def change_a_resource(self, change: tuple[str, str]) -> None:
        resource, spelled = change
        self.publish(ResourceUpdated(spelled))
        self.owe_resource(resource)

    @rule(first=st.integers(0, 149), count=st.integers(1, 150))
    def change_many_children(self, first: int, count: int) -> None:
        for child in CHILDREN[first : first + count]:
            self.publish(ResourceUpdated(child))
            self.owe_resource(child)

    @rule(life=lives)
    def doubt(self, life: Life) -> None:
        life.subscription.mark_everything()
        for kind in LISTS:
            life.owe_list(kind)
        for resource in life.uris:
            life.owe_resource(resource)

    @rule(life=lives, data=st.data())
    def mark_one(self, life: Life, data: st.DataObject) -> None:
        """What the index does to many, said to one, who may be over."""
        if life.lists:
            kind = data.draw(st.sampled_from(life.lists))
            life.subscription.mark(LISTS[kind])
            life.owe_list(kind)
        if life.uris:
            resource = data.draw(st.sampled_from(sorted(life.uris)))
            life.subscription.mark(ResourceUpdated(data.draw(spellings(resource))))
            life.owe_resource(resource)

    @rule(life=lives)
    def end(self, life: Life) -> None:
        life.subscription.end(Ending.SHUTDOWN)
        self.index.remove(life.subscription)
        life.ending = True

    @rule(life=lives)
    def cancel(self, life: Life) -> None:
        life.subscription.cancel(Ending.CLIENT_GONE)
        self.index.remove(life.subscription)
        life.over = True
        life.due.clear()

    @rule(life=lives)
    def flush(self, life: Life) -> None:
        in_order = [name(json.loads(head + b"1}}}")) for head in life.subscription.pending.values()]
        had_output = life.subscription.has_output
        output = life.subscription.take()
        assert bool(output) == had_output
        messages = read(output, life.framing)
        assert all(same_id(tag(message), life.subscription.id) for message in messages)
        told = [name(message) for message in messages]
        if life.over:
            assert told == []
            return
        if not life.acknowledged:
            assert told.pop(0) == "subscriptions/acknowledged"
            assert messages[0]["params"]["notifications"] == self.honored(life)
            life.acknowledged = True
        if life.ending:
            end = {"result": ["result"], "cancelled": ["cancelled"], "both": ["cancelled", "result"]}[
                life.signal
            ]
            assert told[-len(end) :] == end
            del told[-len(end) :]
            life.over = True
        assert told == in_order
        self.check_told(life, told)
        life.due.clear()

    def teardown(self) -> None:
        for life in self.all:
            self.flush(life)
            self.flush(life)

    # -- What must hold

    @invariant()
    def each_is_bounded_by_its_filter(self) -> None:
        for life in self.all:
            named = len(life.lists) + len(life.uris)
            assert len(life.subscription.pending) <= named + (MAX_CHILDREN if self.names_children else 0)

    @invariant()
    def each_lives_as_long_as_it_should(self) -> None:
        for life in self.all:
            assert life.subscription.alive == life.alive
            assert not life.over or not life.subscription.pending

    def publish(self, event: Event) -> None:
        """Publishes; nobody who had something pending loses it or its place, and who had nothing is named."""
        before = [list(life.subscription.pending) for life in self.all]
        dirty: list[Subscription] = []
        self.index.mark(event, dirty)
        woken = []
        for life, items in zip(self.all, before, strict=True):
            now = list(life.subscription.pending)
            assert now[: len(items)] == items
            assert life.alive or now == items
            if now and not items:
                woken.append(life.subscription)
        assert len(dirty) == len(woken)
        assert set(dirty) == set(woken)

    def owe_resource(self, resource: str) -> None:
        above = ABOVE.get(resource, []) if self.subresources else []
        for life in self.all:
            life.owe_resource(resource)
            if self.names_children:
                life.owe_child(resource, above)
            else:
                for each in above:
                    life.owe_resource(each)

    def check_told(self, life: Life, told: list[str]) -> None:
        assert len(set(told)) == len(told)
        if self.names_children:
            assert all(not names.isdisjoint(told) for names in life.due)  # nothing is forgotten
            assert set(told) <= frozenset[str]().union(*life.due)  # and nothing is said unasked
        else:
            assert [frozenset({each}) for each in told] == list(life.due)

    def honored(self, life: Life) -> dict[str, Any]:
        honored: dict[str, Any] = {f"{kind}ListChanged": True for kind in life.lists}
        return honored | ({"resourceSubscriptions": list(life.uris.values())} if life.uris else {})


@pytest.mark.timeout(300)
@pytest.mark.clause("R1", "R2", "R3", "R4", "R6", "R14", "R15", "R21", "R23", "D5", "D7", "D8")
def test_the_promises_hold_over_random_lives() -> None:
    run_state_machine_as_test(
        Promises, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )
