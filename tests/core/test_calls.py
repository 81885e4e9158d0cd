"""What a client writes is a valid message; what a server sends is told apart, and never trusted."""

import json
from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.core.calls import (
    Error,
    Malformed,
    Notification,
    Result,
    ServerRequest,
    decode_message,
    encode_notification,
    encode_request,
    read_retry_after,
    request_meta,
)
from harken.core.wire import read_meta
from harken.errors import ProtocolError

META = request_meta({"name": "test", "version": "1"})


def test_each_request_says_who_asks() -> None:
    meta = read_meta({"_meta": META})
    assert meta.version == "2026-07-28"
    assert meta.capabilities == {}
    assert meta.client_info == {"name": "test", "version": "1"}


@pytest.mark.clause("T1")
def test_a_request_is_one_line_and_valid() -> None:
    body = encode_request(
        7, "subscriptions/listen", {"_meta": META, "notifications": {"toolsListChanged": True}}
    )
    assert b"\n" not in body
    request = mcp_types.SubscriptionsListenRequest.model_validate(json.loads(body))
    assert request.params.notifications.tools_list_changed is True
    assert json.loads(body)["id"] == 7


@pytest.mark.clause("R23", "T1")
def test_a_notification_has_no_id() -> None:
    body = encode_notification("notifications/cancelled", {"requestId": 7, "reason": "two\nlines"})
    assert b"\n" not in body
    assert "id" not in json.loads(body)
    assert mcp_types.CancelledNotification.model_validate(json.loads(body)).params.request_id == 7


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"method": "m", "params": {"a": 1}}, Notification("m", {"a": 1})),
        ({"method": "m"}, Notification("m", None)),
        ({"method": "m", "params": []}, Notification("m", [])),
        ({"method": "m", "id": 1}, ServerRequest("m")),
        ({"method": "m", "id": None}, ServerRequest("m")),
        ({"id": 1, "result": {}}, Result(1, {})),
        ({"id": "1", "result": None}, Result("1", None)),
        ({"result": {}}, Result(None, {})),
        ({"method": 1, "params": {}}, Malformed("method is no string")),
        ({"id": 1}, Malformed("neither method, result nor error")),
        ({}, Malformed("neither method, result nor error")),
        ({"id": True, "result": {}}, Malformed("id is neither an integer nor a string")),
        ({"id": 1.0, "result": {}}, Malformed("id is neither an integer nor a string")),
        ({"id": [], "error": {}}, Malformed("id is neither an integer nor a string")),
    ],
)
def test_messages_are_told_apart(body: dict[str, Any], message: object) -> None:
    assert decode_message(json.dumps(body).encode()) == message


@pytest.mark.clause("R5")
def test_ids_keep_their_type() -> None:
    for id in (1, "1", 0, "", 2**53, 10**30):
        message = decode_message(json.dumps({"id": id, "result": {}}).encode())
        assert isinstance(message, Result)
        assert (type(message.id), message.id) == (type(id), id)


@pytest.mark.clause("D14")
@pytest.mark.parametrize("id", [{}, {"id": None}])
def test_an_error_may_come_without_an_id(id: dict[str, None]) -> None:
    message = decode_message(json.dumps({**id, "error": {"code": -32700, "message": "no"}}).encode())
    assert isinstance(message, Error)
    assert message.id is None
    assert (message.error.code, message.error.message, message.error.data) == (-32700, "no", None)


@pytest.mark.parametrize(
    "error", [None, 1, [], {}, {"code": "1"}, {"code": True, "message": None}, {"code": 1.5}]
)
def test_a_broken_error_is_an_error_all_the_same(error: object) -> None:
    message = decode_message(json.dumps({"id": 1, "error": error}).encode())
    assert isinstance(message, Error)
    assert message.error.code == -32603
    assert message.error.message == "the server gave no message"
    assert message.foreign


def test_an_error_that_is_a_text_is_the_message() -> None:
    message = decode_message(b'{"error": "there is nothing at this path"}')
    assert isinstance(message, Error)
    assert (message.error.code, message.error.message) == (-32603, "there is nothing at this path")
    assert message.foreign


@pytest.mark.field("F24")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a":1}x',
        b"[]",
        b"1",
        b"null",
        b'{"method":"\xff"}',
        b'{"a":"\xff","method":"m"}',
        b'{"method":"\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_nobody_can_read_is_said_to_be_so(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_message(body)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    try:
        decode_message(body)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("data", "delay"),
    [
        ({"retryAfter": 2}, 2.0),
        ({"retryAfter": 0.5}, 0.5),
        ({"retryAfter": 0}, 0.0),
        ({"retryAfter": -1}, None),
        ({"retryAfter": 1e300}, None),
        ({"retryAfter": True}, None),
        ({"retryAfter": "2"}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_a_delay_is_a_number_of_seconds(data: object, delay: float | None) -> None:
    assert read_retry_after(data) == delay
