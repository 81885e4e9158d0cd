"""Which message is whose, and how each subscription's life goes on."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.core.calls import Error, Malformed, Message, Notification, Result, ServerRequest
from harken.core.demux import MAX_CHILDREN_SIZE, Demux, Ending, Ignored, State, Stream
from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import Filter
from harken.core.wire import (
    ACKNOWLEDGED,
    CANCELLED,
    LISTS,
    RESOURCE_UPDATED,
    SUBSCRIPTION_ID,
    RequestId,
)
from harken.errors import ConnectionLost, NeverAcknowledged, ProtocolError, Refused, RPCError

ALL = Filter(True, True, True, ("x://a", "x://b"))
TOOLS = Filter(tools_list_changed=True)


def tagged(method: str, id: object, **params: object) -> Notification:
    return Notification(method, {**params, "_meta": {SUBSCRIPTION_ID: id}})


def ack(id: object, honored: Filter = ALL) -> Notification:
    return tagged(ACKNOWLEDGED, id, notifications=honored.to_wire())


def tools(id: object) -> Notification:
    return tagged("notifications/tools/list_changed", id)


def updated(id: object, uri: object) -> Notification:
    return tagged(RESOURCE_UPDATED, id, uri=uri)


def cancelled(id: object) -> Notification:
    return Notification(CANCELLED, {"requestId": id})


def taken(stream: Stream) -> list[Event]:
    return list(iter(stream.take, None))


def acknowledged(
    id: RequestId = 1, wanted: Filter = ALL, honored: Filter | None = None
) -> tuple[Demux, Stream]:
    demux = Demux()
    stream = demux.open(id, wanted)
    assert demux.receive(ack(id, wanted if honored is None else honored)) is stream
    return demux, stream


# The acknowledgment


@pytest.mark.clause("R11")
@pytest.mark.field("F47")
def test_the_ack_says_what_is_honored() -> None:
    demux = Demux()
    stream = demux.open(1, ALL)
    assert (stream.state, stream.honored) == (State.WAITING, None)
    assert demux.receive(ack(1, TOOLS)) is stream
    assert (stream.state, stream.honored) == (State.ACKNOWLEDGED, TOOLS)


def test_a_second_ack_changes_nothing() -> None:
    demux, stream = acknowledged(honored=TOOLS)
    assert demux.receive(ack(1, ALL)) is Ignored.REPEATED_ACK
    assert stream.honored == TOOLS


@pytest.mark.clause("R25")
@pytest.mark.parametrize(
    "notifications", [None, [], {"toolsListChanged": 1}, {"resourceSubscriptions": ["no uri"]}]
)
def test_a_broken_ack_is_a_protocol_error(notifications: object) -> None:
    demux = Demux()
    stream = demux.open(1, ALL)
    demux.receive(tagged(ACKNOWLEDGED, 1, notifications=notifications))
    assert stream.ending is Ending.PROTOCOL_ERROR
    assert isinstance(stream.error, ProtocolError)
    assert stream.honored is None
    assert not stream.answered, "the server thinks that it lives, so it must be cancelled"


# Which message is whose


@pytest.mark.clause("R5", "R6")
def test_type_and_value_of_the_id_both_count() -> None:
    demux = Demux()
    number, text = demux.open(1, ALL), demux.open("1", ALL)
    assert demux.receive(ack("1")) is text
    assert number.state is State.WAITING
    assert demux.receive(ack(1)) is number
    assert demux.receive(tools("1")) is text
    assert (taken(number), taken(text)) == ([], [ToolsListChanged()])
    assert demux.receive(Result("1", {})) is text
    assert demux.receive(cancelled(1)) is number
    assert (number.ending, text.ending) == (Ending.CANCELLED_BY_SERVER, Ending.COMPLETED)


@pytest.mark.clause("R5")
@pytest.mark.parametrize("id", [True, 1.0, None, [1], {}])
def test_what_equals_an_id_in_python_is_none_on_the_wire(id: object) -> None:
    demux, stream = acknowledged(1)
    for message in (tools(id), cancelled(id), ack(id)):
        assert demux.receive(message) is Ignored.MALFORMED
    assert (taken(stream), stream.ending) == ([], None)


@pytest.mark.field("F48")
def test_unknown_ids_are_counted_and_ignored() -> None:
    counts: Counter[Ignored] = Counter()
    demux = Demux(counts)
    stream = demux.open(1, ALL)
    demux.receive(ack(1))
    refusal = RPCError(-32603, "no")
    for message in (ack(2), tools(2), updated("1", "x://a"), cancelled(2), Result(2, {}), Error(2, refusal)):
        assert demux.receive(message) is Ignored.UNKNOWN
    assert demux.receive(Error(None, refusal)) is Ignored.UNKNOWN
    assert counts == {Ignored.UNKNOWN: 7}
    assert (taken(stream), stream.ending) == ([], None)


@pytest.mark.clause("R16")
def test_what_still_comes_after_the_end_is_ignored() -> None:
    demux, stream = acknowledged()
    demux.end(stream, Ending.CLOSED)
    for message in (tools(1), ack(1), Result(1, {}), Error(1, RPCError(1, "no")), cancelled(1)):
        assert demux.receive(message) is Ignored.LATE
    assert (stream.ending, stream.error, taken(stream)) == (Ending.CLOSED, None, [])
    assert demux.streams == []


@pytest.mark.clause("R16")
def test_what_comes_for_a_request_that_was_given_up_is_late() -> None:
    demux = Demux()
    demux.give_up(7)
    assert demux.receive(Error(7, RPCError(-32601, "no"))) is Ignored.LATE
    assert demux.receive(Error(8, RPCError(-32601, "no"))) is Ignored.UNKNOWN


@pytest.mark.clause("T6")
def test_the_second_of_two_answers_is_ignored() -> None:
    demux = Demux()
    stream = demux.open(1, ALL)
    assert demux.receive(Error(1, RPCError(-32600, "in use"))) is stream
    assert demux.receive(Error(1, RPCError(-32600, "in use"))) is Ignored.LATE
    assert demux.receive(ack(1)) is Ignored.LATE
    assert stream.ending is Ending.REFUSED


def test_ended_subscriptions_are_not_remembered_for_ever() -> None:
    demux = Demux()
    for id in range(3000):
        demux.end(demux.open(id, TOOLS), Ending.CLOSED)
    assert demux.receive(tools(2999)) is Ignored.LATE
    assert demux.receive(tools(0)) is Ignored.UNKNOWN


def test_ending_a_subscription_twice_is_harmless() -> None:
    demux, stream = acknowledged()
    demux.end(stream, Ending.TIMEOUT)
    demux.end(stream, Ending.CLOSED)
    assert stream.ending is Ending.TIMEOUT


@pytest.mark.clause("R22")
def test_a_request_from_the_server_is_counted() -> None:
    demux, stream = acknowledged()
    assert demux.receive(ServerRequest("ping")) is Ignored.SERVER_REQUEST
    assert demux.receive(ServerRequest("subscriptions/listen")) is Ignored.SERVER_REQUEST
    assert demux.ignored == {Ignored.SERVER_REQUEST: 2}
    assert stream.ending is None


@pytest.mark.clause("R23")
@pytest.mark.parametrize(
    "message",
    [
        Notification("notifications/tools/list_changed", None),
        Notification("notifications/tools/list_changed", []),
        Notification("notifications/tools/list_changed", {}),
        Notification("notifications/tools/list_changed", {"_meta": None}),
        Notification("notifications/tools/list_changed", {"_meta": {}}),
        Notification(CANCELLED, {}),
        Notification(CANCELLED, None),
        Malformed("anything"),
    ],
)
def test_a_malformed_message_is_counted(message: Message) -> None:
    demux, stream = acknowledged()
    assert demux.receive(message) is Ignored.MALFORMED
    assert (taken(stream), stream.ending) == ([], None)


@pytest.mark.parametrize("method", ["notifications/progress", "notifications/message", "notifications/other"])
def test_other_notifications_are_none_of_its_business(method: str) -> None:
    demux, _ = acknowledged()
    assert demux.receive(tagged(method, 1)) is Ignored.OTHER


# Events


def test_each_event_is_typed() -> None:
    demux, stream = acknowledged()
    for method in LISTS:
        demux.receive(tagged(method, 1))
    demux.receive(updated(1, "x://a"))
    assert taken(stream) == [
        ToolsListChanged(),
        PromptsListChanged(),
        ResourcesListChanged(),
        ResourceUpdated("x://a"),
    ]
    assert stream.take() is None


def test_what_is_unread_collapses() -> None:
    demux, stream = acknowledged()
    for _ in range(100):
        demux.receive(tools(1))
        demux.receive(updated(1, "x://b"))
        demux.receive(updated(1, "X://b"))
        demux.receive(updated(1, "x://child"))
    assert taken(stream) == [ToolsListChanged(), ResourceUpdated("x://b"), ResourceUpdated("x://child")]
    demux.receive(tools(1))
    assert taken(stream) == [ToolsListChanged()]


@pytest.mark.clause("R19")
@pytest.mark.parametrize("uri", ["x://a/b", "y:elsewhere", "x://ab", "no uri at all", ""])
def test_an_update_is_never_dropped_for_its_uri(uri: str) -> None:
    demux, stream = acknowledged(wanted=Filter(resource_subscriptions=("x://a",)))
    assert demux.receive(updated(1, uri)) is stream
    assert taken(stream) == [ResourceUpdated(uri)]


@pytest.mark.clause("R19")
def test_an_update_names_the_uri_as_it_was_asked_for() -> None:
    demux, stream = acknowledged(wanted=Filter(resource_subscriptions=("X://A/%7Eme",)))
    demux.receive(updated(1, "x://a/~me"))
    assert taken(stream) == [ResourceUpdated("X://A/%7Eme")]


@pytest.mark.clause("R19")
def test_updates_that_no_filter_bounds_collapse_into_the_filter() -> None:
    demux, stream = acknowledged()
    demux.receive(tools(1))
    for number in range(2000):
        demux.receive(updated(1, f"x://a/{number}"))
    events = taken(stream)
    assert ResourceUpdated("x://a") in events
    assert ResourceUpdated("x://b") in events
    assert ToolsListChanged() in events
    assert len(events) < 1500
    demux.receive(updated(1, "x://a/" + "y" * MAX_CHILDREN_SIZE))
    assert taken(stream) == [ResourceUpdated("x://a"), ResourceUpdated("x://b")]


@pytest.mark.clause("R19")
def test_a_reader_who_keeps_up_gets_every_child() -> None:
    demux, stream = acknowledged()
    for number in range(5000):
        demux.receive(updated(1, f"x://a/{number}"))
        assert taken(stream) == [ResourceUpdated(f"x://a/{number}")]


@pytest.mark.parametrize("uri", [None, 1, ["x://a"]])
def test_an_update_of_nobody_knows_what_is_one_of_everything(uri: object) -> None:
    demux, stream = acknowledged(honored=Filter(tools_list_changed=True, resource_subscriptions=("x://a",)))
    assert demux.receive(updated(1, uri)) is stream
    assert taken(stream) == [ToolsListChanged(), ResourceUpdated("x://a")]


def test_events_of_a_kind_that_was_not_asked_for_are_ignored() -> None:
    demux, stream = acknowledged(wanted=TOOLS)
    assert demux.receive(updated(1, "x://a")) is Ignored.UNASKED
    assert demux.receive(tagged("notifications/prompts/list_changed", 1)) is Ignored.UNASKED
    assert taken(stream) == []


def test_an_event_before_the_ack_is_kept_for_after_it() -> None:
    demux = Demux()
    stream = demux.open(1, ALL)
    assert demux.receive(tools(1)) is stream
    assert stream.take() is None
    demux.receive(ack(1))
    assert taken(stream) == [ToolsListChanged()]


def test_what_came_before_the_end_can_still_be_taken() -> None:
    demux, stream = acknowledged()
    demux.receive(tools(1))
    demux.receive(Result(1, {"resultType": "complete"}))
    assert stream.ending is Ending.COMPLETED
    assert taken(stream) == [ToolsListChanged()]


@pytest.mark.field("F24")
def test_what_could_not_be_read_may_have_been_anything() -> None:
    demux, stream = acknowledged(honored=Filter(False, True, True, ("x://b",)))
    waiting = demux.open(2, ALL)
    assert demux.resync() == [stream, waiting]
    assert taken(stream) == [PromptsListChanged(), ResourcesListChanged(), ResourceUpdated("x://b")]
    demux.receive(ack(2))
    assert taken(waiting) == [], "its user reads everything after the ack anyway (decision D12)"


# Endings


@pytest.mark.clause("R25", "D1")
@pytest.mark.parametrize("result", [{"resultType": "complete", "_meta": {}}, {}])
def test_a_result_is_the_graceful_end(result: dict[str, Any]) -> None:
    demux, stream = acknowledged()
    assert demux.receive(Result(1, result)) is stream
    assert (stream.ending, stream.error, stream.answered) == (Ending.COMPLETED, None, True)
    assert stream.state is State.ENDED


@pytest.mark.clause("R25")
@pytest.mark.parametrize("after_ack", [True, False])
@pytest.mark.parametrize(
    "result", [{"resultType": "input_required"}, {"resultType": "other"}, {"resultType": None}, None, [], "x"]
)
def test_any_other_result_is_a_protocol_error(result: object, after_ack: bool) -> None:
    demux = Demux()
    stream = demux.open(1, ALL)
    if after_ack:
        demux.receive(ack(1))
    demux.receive(Result(1, result))
    assert stream.ending is Ending.PROTOCOL_ERROR
    assert isinstance(stream.error, ProtocolError)


@pytest.mark.clause("D11", "R25")
def test_a_result_without_an_ack_is_final() -> None:
    demux = Demux()
    stream = demux.open(1, ALL)
    demux.receive(Result(1, {"resultType": "complete"}))
    assert stream.ending is Ending.NEVER_ACKNOWLEDGED
    assert isinstance(stream.error, NeverAcknowledged)
    assert not stream.ending.may_return


def test_nothing_honored_is_an_end_of_its_own() -> None:
    demux, stream = acknowledged(honored=Filter())
    demux.receive(Result(1, {"resultType": "complete"}))
    assert stream.ending is Ending.NOTHING_HONORED
    assert not stream.ending.may_return


@pytest.mark.clause("R25")
def test_an_error_after_the_ack_is_an_end_of_its_own() -> None:
    demux, stream = acknowledged()
    error = RPCError(-32603, "fell over")
    demux.receive(Error(1, error))
    assert (stream.ending, stream.error, stream.answered) == (Ending.ERROR_AFTER_ACK, error, True)


@pytest.mark.clause("R25")
def test_an_error_before_the_ack_is_a_refusal() -> None:
    demux = Demux()
    stream = demux.open(1, ALL)
    demux.receive(Error(1, RPCError(-32603, "full", {"reason": "server_full", "retryAfter": 3})))
    assert (stream.ending, stream.answered) == (Ending.REFUSED, True)
    assert isinstance(stream.error, Refused)
    assert (stream.error.code, stream.error.message, stream.error.retry_after) == (-32603, "full", 3.0)
    assert stream.error.data == {"reason": "server_full", "retryAfter": 3}


def test_a_refusal_that_a_transport_knows_more_about_is_kept() -> None:
    refused = Refused(-32603, "full", status=503, retry_after=1.0)
    demux = Demux()
    stream = demux.open(1, ALL)
    demux.receive(Error(1, refused))
    assert stream.error is refused


@pytest.mark.clause("R25", "D1", "R5")
def test_a_cancel_by_the_server_is_told_apart() -> None:
    demux, stream = acknowledged(honored=Filter())
    demux.receive(cancelled(1))
    assert (stream.ending, stream.error, stream.answered) == (Ending.CANCELLED_BY_SERVER, None, True)
    waiting = demux.open(2, ALL)
    demux.receive(cancelled(2))
    assert waiting.ending is Ending.CANCELLED_BY_SERVER
    assert isinstance(waiting.error, NeverAcknowledged)


@pytest.mark.clause("R18", "R25")
def test_a_lost_transport_is_told_apart() -> None:
    demux, stream = acknowledged()
    error = ConnectionLost("gone")
    demux.end(stream, Ending.LOST, error)
    assert (stream.ending, stream.error, stream.answered) == (Ending.LOST, error, False)


def test_which_endings_a_client_may_come_back_from() -> None:
    assert {ending for ending in Ending if ending.may_return} == {
        Ending.COMPLETED,
        Ending.CANCELLED_BY_SERVER,
        Ending.ERROR_AFTER_ACK,
        Ending.LOST,
        Ending.TIMEOUT,
    }


# Whatever a server sends

IDS = st.sampled_from([1, 2, "1", 3, None])
MESSAGES = st.one_of(
    st.builds(ack, IDS, st.sampled_from([ALL, TOOLS, Filter()])),
    st.builds(tools, IDS),
    st.builds(updated, IDS, st.sampled_from(["x://a", "X://b", "x://a/c", None, "?"])),
    st.builds(cancelled, IDS),
    st.builds(Result, IDS, st.sampled_from([{}, {"resultType": "input_required"}, None])),
    st.builds(Error, IDS, st.just(RPCError(-32603, "no"))),
    st.just(ServerRequest("ping")),
    st.just(Malformed("no message")),
)


@given(st.lists(MESSAGES, max_size=60))
def test_whatever_a_server_sends_each_life_goes_one_way(messages: list[Message]) -> None:
    demux = Demux()
    streams = {id: demux.open(id, ALL) for id in (1, "1", 2)}
    endings: dict[RequestId, Ending | None] = {}
    for message in messages:
        before = {id: stream.state for id, stream in streams.items()}
        outcome = demux.receive(message)
        for id, stream in streams.items():
            if stream is not outcome:
                assert stream.state is before[id], "only the subscription that is named may change"
            assert before[id].value <= stream.state.value
            if before[id] is State.ENDED:
                assert stream.ending is endings[id]
                assert stream is not outcome
            endings[id] = stream.ending
    for stream in streams.values():
        events = taken(stream)
        assert len(events) == len(set(events)) <= 7
        assert stream.honored is not None or not events
    assert set(demux.streams) == {stream for stream in streams.values() if stream.ending is None}
