"""The life of one subscription: TABLE is the truth, and what is written follows it."""

import re
from pathlib import Path

import pytest

from harken.core import subscription as module
from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import Filter
from harken.core.subscription import (
    LINES,
    SSE,
    TABLE,
    Ending,
    EndSignal,
    Framing,
    Input,
    Output,
    State,
    Subscription,
)
from harken.core.wire import RequestId
from tests.core.frames import FRAMINGS, ODD_IDS, brief, name, read, same_id, tag, unframe

ACK = "subscriptions/acknowledged"
ALL = Filter(True, True, True, ("X://H/a", "x://h/b"))
EVERY: list[tuple[Event, str]] = [
    (ToolsListChanged(), "tools/list_changed"),
    (PromptsListChanged(), "prompts/list_changed"),
    (ResourcesListChanged(), "resources/list_changed"),
    (ResourceUpdated("x://h/a"), "resources/updated X://H/a"),
    (ResourceUpdated("x://h/b"), "resources/updated x://h/b"),
]


def subscribe(
    honored: Filter = ALL, id: RequestId = 1, framing: Framing = LINES, end_signal: EndSignal = "result"
) -> Subscription:
    return Subscription(id, honored, framing, {"name": "test", "version": "0"}, end_signal)


def names(subscription: Subscription, framing: Framing = LINES) -> list[str]:
    return [name(message) for message in read(subscription.take(), framing)]


def in_state(state: State) -> Subscription:
    """A subscription in `state`; the list of tools changed while it was alive and is still to be told."""
    subscription = subscribe()
    if state in {State.ACKNOWLEDGED, State.ENDING}:
        subscription.take()
    subscription.mark(ToolsListChanged())
    if state in {State.ENDING, State.ENDING_UNACKNOWLEDGED}:
        subscription.end(Ending.SHUTDOWN)
    if state is State.ENDED:
        subscription.cancel(Ending.CLIENT_GONE)
    assert subscription.state is state
    return subscription


# -- The table


def test_the_table_has_an_entry_for_each_state_and_input() -> None:
    assert set(TABLE) == {(state, input) for state in State for input in Input}


def test_every_state_is_reached_and_the_end_is_final() -> None:
    reached = {State.OPENING}
    for _ in State:
        reached |= {target for (state, _), (target, _) in TABLE.items() if state in reached}
    assert reached == set(State)
    assert {TABLE[State.ENDED, input] for input in Input} == {(State.ENDED, ())}


@pytest.mark.clause("R2", "R14", "R15")
def test_the_table_lets_nothing_overtake_the_ack_or_follow_the_end() -> None:
    for (state, input), (target, outputs) in TABLE.items():
        written = [output for output in outputs if output not in {Output.KEEP, Output.FORGET}]
        assert not written or input is Input.FLUSH
        assert (Output.ACKNOWLEDGMENT in written) == (
            input is Input.FLUSH and state in {State.OPENING, State.ENDING_UNACKNOWLEDGED}
        )
        assert Output.ACKNOWLEDGMENT not in written[1:]
        assert (Output.END in written) == (
            target is State.ENDED and input is Input.FLUSH and state is not target
        )
        assert Output.END not in written[:-1]
        if input is Input.CANCEL:
            assert target is State.ENDED


@pytest.mark.parametrize("input", list(Input))
@pytest.mark.parametrize("state", list(State))
def test_a_subscription_does_what_the_table_says(state: State, input: Input) -> None:
    subscription = in_state(state)
    before = list(subscription.pending)
    target, outputs = TABLE[state, input]
    written: list[str] = []
    if input is Input.MARK:
        subscription.mark(ResourceUpdated("x://h/a"))
    elif input is Input.FLUSH:
        written = names(subscription)
    elif input is Input.END:
        subscription.end(Ending.MAX_AGE)
    else:
        subscription.cancel(Ending.CANCELLED)
    assert subscription.state is target
    assert subscription.alive == (target in {State.OPENING, State.ACKNOWLEDGED})
    said = {Output.ACKNOWLEDGMENT: ACK, Output.PENDING: "tools/list_changed", Output.END: "result"}
    assert written == [said[output] for output in outputs if output in said]
    if Output.KEEP in outputs:
        assert list(subscription.pending) == [*before, "x://h/a"]
    elif Output.FORGET in outputs or Output.PENDING in outputs:
        assert not subscription.pending
    else:
        assert list(subscription.pending) == before
    assert subscription.has_output == bool(subscription.take())


def test_the_diagram_agrees_with_the_table() -> None:
    assert module.__doc__ is not None
    first, second, third = module.__doc__.split("::\n\n")[1].splitlines()[:3]
    arrow = r"──(\w+)──▶ (\w+(?: \w+)?)"
    above = next(
        word for word in re.finditer(r"\w+", first) if word.start() <= second.index("└") <= word.end()
    )
    drawn = set()
    for start, line in (("opening", first), (above[0], second)):
        for match in re.finditer(arrow, line):
            drawn.add((start, match[1], match[2]))
            start = match[2]
    assert "cancel (from any state)" in third
    assert third.index("┘") == second.index("▲") <= first.index("ended") + len("ended")

    def word(state: State) -> str:
        return state.name.lower().replace("_", " ")

    moves = {
        (word(state), input.name.lower(), word(target))
        for (state, input), (target, _) in TABLE.items()
        if state is not target
    }
    assert drawn | {(word(state), "cancel", "ended") for state in State if state is not State.ENDED} == moves


def test_the_diagram_of_the_docs_agrees_with_the_table(project: Path) -> None:
    text = (project / "docs" / "architecture.md").read_text("utf-8")
    arrows = re.findall(r"^    (\w+) --> (\w+): (\w+)(?: \(([\w, ]+)\))?$", text, re.MULTILINE)
    written = {Output.ACKNOWLEDGMENT, Output.PENDING, Output.END}
    assert sorted(arrows) == sorted(
        (
            state.name.lower(),
            target.name.lower(),
            input.name.lower(),
            ", ".join(output.name.lower() for output in outputs if output in written),
        )
        for (state, input), (target, outputs) in TABLE.items()
        if state is not target or written & set(outputs)
    )


def test_the_endings_are_the_closed_list() -> None:
    assert [str(ending) for ending in Ending] == [
        "shutdown",
        "max_age",
        "token_expired",
        "revoked",
        "stuck_reader",
        "nothing_honored",
        "broker_away",
        "client_gone",
        "cancelled",
        "rejected",
    ]


# -- What is written


@pytest.mark.clause("R2", "R3")
@pytest.mark.parametrize("framing", FRAMINGS)
def test_the_ack_comes_first_whatever_came_before_it(framing: Framing) -> None:
    subscription = subscribe(Filter(tools_list_changed=True), framing=framing)
    subscription.mark(ToolsListChanged())
    ack, change = read(subscription.take(), framing)
    assert ack["method"] == "notifications/subscriptions/acknowledged"
    assert ack["params"]["notifications"] == {"toolsListChanged": True}
    assert change["method"] == "notifications/tools/list_changed"
    assert not subscription.has_output
    assert subscription.take() == b""


@pytest.mark.clause("R4")
@pytest.mark.field("F45")
@pytest.mark.parametrize("id", ODD_IDS, ids=brief)
@pytest.mark.parametrize("framing", FRAMINGS)
def test_every_message_of_a_life_carries_the_id(framing: Framing, id: RequestId) -> None:
    subscription = subscribe(id=id, framing=framing, end_signal="both")
    subscription.mark_everything()
    subscription.end(Ending.SHUTDOWN)
    messages = read(subscription.take(), framing)
    assert [name(message) for message in messages] == [
        ACK,
        *(said for _, said in EVERY),
        "cancelled",
        "result",
    ]
    assert all(same_id(tag(message), id) for message in messages)


@pytest.mark.parametrize(("event", "said"), EVERY)
@pytest.mark.clause("R7", "R8", "R9", "R10")
def test_each_event_is_told_by_its_own_notification(event: Event, said: str) -> None:
    subscription = subscribe()
    subscription.take()
    subscription.mark(event)
    assert names(subscription) == [said]


@pytest.mark.clause("D7")
def test_an_update_names_the_uri_as_this_client_spelled_it() -> None:
    subscription = subscribe(Filter(resource_subscriptions=("X://H/%61/../É",)))
    subscription.take()
    subscription.mark(ResourceUpdated("x://h/%c3%89"))
    subscription.mark(ResourceUpdated("x://h/É"))
    assert names(subscription) == ["resources/updated X://H/%61/../É"]


@pytest.mark.field("F41")
def test_identical_changes_are_one_and_keep_their_first_place() -> None:
    subscription = subscribe()
    subscription.take()
    for _ in range(200):
        for event, _ in reversed(EVERY):
            subscription.mark(event)
    assert len(subscription.pending) == len(EVERY)
    assert names(subscription) == [said for _, said in reversed(EVERY)]


@pytest.mark.clause("R1")
@pytest.mark.parametrize(("event", "said"), EVERY[:4])
def test_doubt_makes_everything_honoured_pending_and_nothing_else(event: Event, said: str) -> None:
    uris = ("X://H/a",) if isinstance(event, ResourceUpdated) else ()
    tools, prompts, resources = (event == other for other, _ in EVERY[:3])
    subscription = subscribe(Filter(tools, prompts, resources, uris))
    subscription.take()
    subscription.mark_everything()
    assert names(subscription) == [said]


@pytest.mark.clause("R15")
def test_doubt_wakes_nothing_that_is_over() -> None:
    for state in (State.ENDING, State.ENDING_UNACKNOWLEDGED, State.ENDED):
        subscription = in_state(state)
        before = dict(subscription.pending)
        subscription.mark_everything()
        assert subscription.pending == before


@pytest.mark.clause("R14")
@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_graceful_end_tells_what_is_pending_then_the_result_then_nothing(framing: Framing) -> None:
    subscription = subscribe(framing=framing)
    subscription.take()
    subscription.mark(ToolsListChanged())
    subscription.end(Ending.SHUTDOWN)
    subscription.mark(PromptsListChanged())
    assert names(subscription, framing) == ["tools/list_changed", "result"]
    subscription.mark(ToolsListChanged())
    subscription.end(Ending.MAX_AGE)
    assert subscription.take() == b""
    assert not subscription.has_output


@pytest.mark.clause("D2", "R2", "R14")
def test_an_empty_filter_gets_its_ack_and_its_result() -> None:
    subscription = subscribe(Filter())
    subscription.end(Ending.NOTHING_HONORED)
    ack, result = read(subscription.take())
    assert ack["params"]["notifications"] == {}
    assert name(result) == "result"


@pytest.mark.clause("D1", "R27")
@pytest.mark.parametrize(
    ("signal", "said"),
    [("result", ["result"]), ("cancelled", ["cancelled"]), ("both", ["cancelled", "result"])],
)
def test_the_end_is_told_as_the_option_says(signal: EndSignal, said: list[str]) -> None:
    subscription = subscribe(end_signal=signal)
    assert names(subscription) == [ACK]
    subscription.end(Ending.SHUTDOWN)
    assert names(subscription) == said


@pytest.mark.clause("D1", "R27")
def test_the_end_is_told_by_the_result_unless_asked_otherwise() -> None:
    subscription = Subscription(1, ALL, LINES, {"name": "test", "version": "0"})
    subscription.end(Ending.SHUTDOWN)
    assert names(subscription) == [ACK, "result"]


@pytest.mark.clause("R15")
@pytest.mark.parametrize("state", list(State))
def test_a_cancel_is_followed_by_nothing_and_frees_what_was_pending(state: State) -> None:
    subscription = in_state(state)
    subscription.cancel(Ending.CANCELLED)
    for event, _ in EVERY:
        subscription.mark(event)
    subscription.end(Ending.SHUTDOWN)
    assert subscription.take() == b""
    assert not subscription.pending
    assert not subscription.has_output


def test_the_first_ending_counts() -> None:
    assert subscribe().ending is None
    subscription = subscribe()
    subscription.end(Ending.MAX_AGE)
    subscription.end(Ending.SHUTDOWN)
    subscription.cancel(Ending.CLIENT_GONE)
    subscription.cancel(Ending.CANCELLED)
    assert subscription.ending is Ending.MAX_AGE
    gone = subscribe()
    gone.cancel(Ending.CLIENT_GONE)
    gone.end(Ending.SHUTDOWN)
    gone.cancel(Ending.CANCELLED)
    assert gone.ending is Ending.CLIENT_GONE


def test_the_framings_are_the_transports_own() -> None:
    subscription = subscribe(framing=SSE)
    subscription.mark(ToolsListChanged())
    output = subscription.take()
    events = output.decode().split("\n\n")
    assert events.pop() == ""
    assert [event.split("\n")[0] for event in events] == ["event: message"] * 2
    assert all(re.fullmatch(r"event: message\ndata: \{.*\}", event) for event in events)
    line = subscribe()
    assert unframe(line.take(), LINES)[0] == unframe(output, SSE)[0]
