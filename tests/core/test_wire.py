"""Messages to and from bytes: hostile input, odd ids, and heads that any id completes."""

import json
from collections.abc import Callable
from typing import Any

import mcp_types
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp_types.methods import parse_server_notification

from harken.core.events import Event, ResourceUpdated, ToolsListChanged
from harken.core.filters import Filter
from harken.core.wire import (
    ACKNOWLEDGED,
    CANCELLED,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LIST_CHANGED_HEADS,
    LISTEN,
    LISTS,
    MAX_ID_BYTES,
    MAX_ID_DIGITS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROTOCOL_VERSION,
    RESOURCE_UPDATED,
    UNSUPPORTED_VERSION,
    Inbound,
    Meta,
    RequestId,
    acknowledged_head,
    cancelled_head,
    check_version,
    decode,
    encode_error,
    encode_id,
    encode_result,
    event_head,
    peek_method,
    read_meta,
    resource_updated_head,
    result_head,
    valid_id,
)
from harken.errors import InvalidMessage, RPCError
from tests.core.frames import ODD_IDS, SUBSCRIPTION_ID, brief, check, same_id, tag

IDS = (
    st.integers()
    | st.integers(1 - 10 ** (MAX_ID_DIGITS - 1), 10**MAX_ID_DIGITS - 1)
    | st.text().filter(lambda text: len(text.encode()) <= MAX_ID_BYTES)
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
DEEP = b"[" * 100_000 + b"]" * 100_000
HUGE = b"9" * 5000
REQUEST = {"jsonrpc": b'"2.0"', "id": b"7", "method": b'"m"', "params": b"{}"}


def body(**fields: bytes | None) -> bytes:
    """A request with some of its fields replaced by other bytes; None takes a field away."""
    present = [
        b'"%b":%b' % (key.encode(), value) for key, value in (REQUEST | fields).items() if value is not None
    ]
    return b"{" + b",".join(present) + b"}"


def refused(message: bytes) -> InvalidMessage:
    with pytest.raises(InvalidMessage) as caught:
        decode(message)
    assert len(caught.value.message) < 200
    json.loads(encode_error(caught.value.id, caught.value))  # whatever came in, this can be sent
    return caught.value


# -- What comes in


def test_a_request() -> None:
    inbound = decode(body(method=b'"subscriptions/listen"', params=b'{"a":[1,{"b":null}]}'))
    assert inbound == Inbound(7, "subscriptions/listen", {"a": [1, {"b": None}]})
    assert not inbound.is_notification


@pytest.mark.clause("R23")
def test_a_message_without_an_id_is_a_notification() -> None:
    inbound = decode(body(id=None, params=None))
    assert inbound == Inbound(None, "m", None)
    assert inbound.is_notification


def test_unknown_fields_and_odd_spellings_of_json_do_no_harm() -> None:
    assert (
        decode(b' \t\r\n{ "\\u0069d" : 7 , "x":[], "method":"m\\u0000", "jsonrpc":"2.0" } ').method == "m\0"
    )
    assert decode(b'{"x":%b,' % HUGE + body()[1:]).id == 7


@pytest.mark.clause("R4")
@pytest.mark.field("F45")
@given(IDS)
@example(0)
@example("")
@example("1")
@example(10**MAX_ID_DIGITS - 1)
@example("é" * 512)
@example('\u2028\x00"\\')
def test_an_id_goes_out_as_it_came_in(id: RequestId) -> None:
    for spelled in (json.dumps(id), json.dumps(id, ensure_ascii=False)):
        echoed = decode(body(id=spelled.encode())).id
        assert echoed is not None
        assert same_id(echoed, id)
        encoded = encode_id(echoed)
        assert same_id(json.loads(encoded), id)
        assert b"\n" not in encoded
        assert b"\r" not in encoded


@pytest.mark.field("F45")
@pytest.mark.clause("D14")
@pytest.mark.parametrize(
    "id",
    [
        b"null", b"true", b"false", b"1.0", b"1.5", b"1e2", b"1E400", b"[]", b"[1]", b"{}",
        b'"' + b"a" * 1025 + b'"', b'"' + "é".encode() * 513 + b'"', b"9" * 4301, b"-" + b"9" * 4300, HUGE,
    ],
    ids=lambda id: repr(id[:12]),
)  # fmt: skip
def test_what_is_no_id_is_refused_without_one(id: bytes) -> None:
    error = refused(body(id=id))
    assert (error.code, error.id, error.answerable) == (INVALID_REQUEST, None, True)


BAD_TEXT = [
    b'"\\ud800"',
    b'"\\udc00"',
    b'"\\ud800\\ud800"',
    b'"\\ud83dx"',
    b'"\xff"',
    b'"\xc3"',
    b'"\xed\xa0\x80"',
]
BAD_TEXT += [b'"\xc0\x80"', b'"\n"', b'"\x00"', b'"\\x41"', b'"']


@pytest.mark.field("F45")
@pytest.mark.clause("D14")
@pytest.mark.parametrize("bad", BAD_TEXT)
@pytest.mark.parametrize(
    "field", ["jsonrpc", "id", "method", "params", "result", "error", "other", "key", "value"]
)
def test_a_lone_surrogate_or_bad_utf8_anywhere_is_a_parse_error_without_id(field: str, bad: bytes) -> None:
    if field == "key":
        message = b"{%b:1," % bad + body()[1:]
    elif field == "value":
        message = body(params=b'{"a":{"b":[%b]}}' % bad)
    else:
        message = body(**{field: bad})
    error = refused(message)
    assert (error.code, error.id) == (PARSE_ERROR, None)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("field", ["jsonrpc", "id", "method", "params", "result", "error", "other"])
def test_nesting_without_end_is_a_parse_error(field: str, opening: bytes) -> None:
    closing = {b"[": b"]", b'{"a":': b"}", b'[{"a":': b"}]"}[opening]
    error = refused(body(**{field: opening * 50_000 + b"1" + closing * 50_000}))
    assert error.code in {PARSE_ERROR, INVALID_PARAMS}
    assert refused(body(params=b'{"a":%b}' % DEEP)).code == PARSE_ERROR
    assert refused(DEEP).code in {PARSE_ERROR, INVALID_REQUEST}
    assert refused(DEEP[:100_000]).code in {PARSE_ERROR, INVALID_REQUEST}


@pytest.mark.parametrize(
    "message",
    [
        b"", b" ", b"{", b"}", b'{"', b'{"jsonrpc"', b'{"jsonrpc":"2.0",}', b"{}{}", body() + b"x",
        body()[:-1], b"nul", b"NaN", b"'x'", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"\x00", b"// x\n{}",
        body(params=b'{"a":NaN}'), body(params=b'{"a":-}'), body(params=b'{"a":01}'),
        body(params=b'{"a":1,}'), body(id=b"01"), body(id=b"+1"), body(id=b"0x1"),
    ],
)  # fmt: skip
def test_what_is_no_json_is_a_parse_error(message: bytes) -> None:
    error = refused(message)
    assert (error.code, error.id, error.answerable) == (PARSE_ERROR, None, True)


@pytest.mark.parametrize("message", [b"null", b"true", b"7", b'"x"', b"1.5", b"-0"])
def test_what_is_no_object_is_no_message(message: bytes) -> None:
    error = refused(message)
    assert (error.code, error.id, str(error)) == (
        INVALID_REQUEST,
        None,
        "a message must be an object (-32600)",
    )


@pytest.mark.parametrize("message", [b"[]", b" \n[" + body() + b"]", b"[1]"])
def test_a_batch_is_refused_as_such(message: bytes) -> None:
    error = refused(message)
    assert (error.code, error.id) == (INVALID_REQUEST, None)
    assert "batches" in error.message


@pytest.mark.parametrize("answer", ["result", "error"])
def test_a_response_is_refused_as_such_and_not_by_its_id(answer: str) -> None:
    error = refused(body(method=None, params=None, **{answer: b"{}"}))
    assert (error.code, error.id) == (INVALID_REQUEST, None)
    assert "response" in error.message


@pytest.mark.clause("D14")
@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"method": None}, INVALID_REQUEST, "method"),
        ({"method": b"null"}, INVALID_REQUEST, "method"),
        ({"method": b"5"}, INVALID_REQUEST, "method"),
        ({"method": b'["m"]'}, INVALID_REQUEST, "method"),
        ({"jsonrpc": None}, INVALID_REQUEST, "jsonrpc"),
        ({"jsonrpc": b'"1.0"'}, INVALID_REQUEST, "jsonrpc"),
        ({"jsonrpc": b"2.0"}, INVALID_REQUEST, "jsonrpc"),
        ({"jsonrpc": b"null"}, INVALID_REQUEST, "jsonrpc"),
        ({"params": b"null"}, INVALID_PARAMS, "params"),
        ({"params": b" null "}, INVALID_PARAMS, "params"),
        ({"params": b"[]"}, INVALID_PARAMS, "params"),
        ({"params": b'[{"a":1}]'}, INVALID_PARAMS, "params"),
        ({"params": b'"x"'}, INVALID_PARAMS, "params"),
        ({"params": b"true"}, INVALID_PARAMS, "params"),
        ({"params": b'{"a":%b}' % HUGE}, INVALID_PARAMS, "params"),
        ({"params": b'{"a":1e400}'}, INVALID_PARAMS, "params"),
    ],
)
def test_an_error_has_the_id_wherever_it_could_be_read(
    fields: dict[str, bytes], code: int, named: str
) -> None:
    error = refused(body(**fields))
    assert (error.code, error.id, error.answerable) == (code, 7, True)
    assert named in error.message


@pytest.mark.clause("R23")
@pytest.mark.parametrize(
    "fields",
    [{"jsonrpc": b'"1"'}, {"method": b"1"}, {"params": b"[]"}, {"params": b"null"}, {"params": b"[1e400]"}],
)
def test_a_broken_notification_is_not_answered(fields: dict[str, bytes]) -> None:
    error = refused(body(id=None, **fields))
    assert (error.id, error.answerable) == (None, False)


@given(st.binary() | st.text().map(str.encode))
def test_no_bytes_break_the_reader(message: bytes) -> None:
    try:
        assert isinstance(decode(message), Inbound)
    except InvalidMessage as error:
        json.loads(encode_error(error.id, error))
    peek_method(message)


@given(
    st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0") | JSON},
        optional={
            "id": st.integers() | st.text() | JSON,
            "method": st.text() | JSON,
            "params": st.dictionaries(st.text(), JSON, max_size=2) | JSON,
        }
        | dict.fromkeys(["result", "error", "x"], JSON),
    )
)
def test_no_json_breaks_the_reader(message: dict[str, Any]) -> None:
    encoded = json.dumps(message).encode()
    try:
        inbound = decode(encoded)
    except InvalidMessage:
        error = refused(encoded)
        assert error.code in {INVALID_REQUEST, INVALID_PARAMS}
        assert error.id is None or same_id(error.id, message["id"])
    else:
        assert same_id(inbound.id, message.get("id"))
        assert (inbound.method, inbound.params) == (message["method"], message.get("params"))
        assert peek_method(encoded) == inbound.method


@pytest.mark.parametrize(
    ("message", "method"),
    [
        (body(method=b'"subscriptions/listen"'), LISTEN),
        (body(method=b'"\\u006d"', id=b"null", jsonrpc=None, params=b"[]"), "m"),
        (body(method=None), None),
        (body(method=b"null"), None),
        (body(method=b"5"), None),
        (body(method=b'"\\ud800"'), None),
        (b"[" + body() + b"]", None),
        (b"", None),
        (b"\xff", None),
        (DEEP, None),
        (body(params=DEEP), None),
        (body(method=DEEP), None),
    ],
)
def test_peeking_at_the_method(message: bytes, method: str | None) -> None:
    assert peek_method(message) == method


@pytest.mark.parametrize("id", ODD_IDS, ids=brief)
def test_integers_and_strings_within_the_caps_are_ids(id: RequestId) -> None:
    assert valid_id(id)


@pytest.mark.parametrize("id", [None, True, False, 1.0, b"1", [], {}, "a" * 1025, "é" * 513], ids=brief)
def test_nothing_else_is_an_id(id: object) -> None:
    assert not valid_id(id)


def test_an_integer_that_python_would_not_write_is_no_id() -> None:
    for bound in (10**MAX_ID_DIGITS, -(10**MAX_ID_DIGITS)):
        assert not valid_id(bound)
        assert valid_id(bound - (1 if bound > 0 else -1))


# -- The request's own _meta

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
META: dict[str, object] = {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {"x": {}}}


@pytest.mark.clause("R24")
def test_meta_says_who_speaks_and_the_client_info_is_optional() -> None:
    assert read_meta({"_meta": META}) == Meta("2026-07-28", {"x": {}})
    client = {"name": "c", "version": "1"}
    assert read_meta({"_meta": META | {CLIENT_KEY: client}}).client_info == client


@pytest.mark.clause("H7", "T8")
@pytest.mark.parametrize(
    ("params", "named"),
    [
        (None, "_meta"),
        ({}, "_meta"),
        ({"_meta": None}, "_meta"),
        ({"_meta": []}, "_meta"),
        ({"_meta": {}}, VERSION_KEY),
        ({"_meta": {CAPABILITIES_KEY: {}}}, VERSION_KEY),
        ({"_meta": META | {VERSION_KEY: None}}, VERSION_KEY),
        ({"_meta": META | {VERSION_KEY: 20260728}}, VERSION_KEY),
        ({"_meta": {VERSION_KEY: "2026-07-28"}}, CAPABILITIES_KEY),
        ({"_meta": META | {CAPABILITIES_KEY: None}}, CAPABILITIES_KEY),
        ({"_meta": META | {CAPABILITIES_KEY: []}}, CAPABILITIES_KEY),
        ({"_meta": META | {CLIENT_KEY: "me"}}, CLIENT_KEY),
    ],
)
def test_what_is_missing_from_meta_is_named(params: dict[str, object] | None, named: str) -> None:
    with pytest.raises(RPCError, match=named) as caught:
        read_meta(params)
    assert caught.value.code == INVALID_PARAMS


@pytest.mark.clause("H5", "T8")
@pytest.mark.parametrize("version", ["2025-11-25", "", "2026-07-28 ", "DRAFT-2026", "x" * 100_000])
def test_an_unknown_version_is_refused_with_those_that_we_speak(version: str) -> None:
    with pytest.raises(RPCError) as caught:
        check_version(version)
    assert caught.value.code == UNSUPPORTED_VERSION
    assert caught.value.data == {"supported": ["2026-07-28"], "requested": version}
    assert len(caught.value.message) < 200


def test_our_own_version_passes() -> None:
    check_version(PROTOCOL_VERSION)
    assert PROTOCOL_VERSION == mcp_types.LATEST_PROTOCOL_VERSION == "2026-07-28"


@pytest.mark.clause("A5")
def test_the_codes_are_the_official_ones() -> None:
    assert (PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR) == (
        mcp_types.PARSE_ERROR,
        mcp_types.INVALID_REQUEST,
        mcp_types.METHOD_NOT_FOUND,
        mcp_types.INVALID_PARAMS,
        mcp_types.INTERNAL_ERROR,
    )
    assert (HEADER_MISMATCH, UNSUPPORTED_VERSION) == (
        mcp_types.HEADER_MISMATCH,
        mcp_types.UNSUPPORTED_PROTOCOL_VERSION,
    )


# -- What goes out


@pytest.mark.field("F45")
@pytest.mark.parametrize("id", ODD_IDS, ids=brief)
def test_responses_echo_the_id(id: RequestId) -> None:
    result = json.loads(encode_result(id, {"a": [1, None, "é"]}))
    assert result == {"jsonrpc": "2.0", "id": id, "result": {"a": [1, None, "é"]}}
    error = json.loads(encode_error(id, RPCError(-32601, 'no "x"', {"k": [1]})))
    assert error == {
        "jsonrpc": "2.0",
        "id": id,
        "error": {"code": -32601, "message": 'no "x"', "data": {"k": [1]}},
    }
    assert same_id(result["id"], id)
    assert same_id(error["id"], id)
    mcp_types.JSONRPCError.model_validate(error)


@pytest.mark.clause("D14")
def test_an_error_to_nobody_has_no_id_at_all() -> None:
    error = json.loads(encode_error(None, RPCError(PARSE_ERROR, "not JSON")))
    assert error == {"jsonrpc": "2.0", "error": {"code": PARSE_ERROR, "message": "not JSON"}}


def complete(head: bytes, id: RequestId) -> dict[str, Any]:
    """A head with the id and the three braces that every tail is."""
    message: dict[str, Any] = json.loads(head + encode_id(id) + b"}}}")
    return message


URIS = st.text() | st.sampled_from(["x://a", "x:%41", 'x:"', "x:\\", "x:%b%s{}", "x:\u2028\n"])


@pytest.mark.clause("R4", "R10", "R23")
@given(URIS, IDS)
@example("x:%b", "%b")
def test_an_update_carries_any_uri_as_it_is_spelled_and_any_id(uri: str, id: RequestId) -> None:
    head = resource_updated_head(uri)
    message = complete(head, id)
    check(message)
    assert message["method"] == RESOURCE_UPDATED == "notifications/resources/updated"
    assert message["params"]["uri"] == uri
    assert same_id(tag(message), id)
    assert b"\n" not in head
    assert event_head(ResourceUpdated(uri)) == head


@pytest.mark.clause("R4", "R23")
@pytest.mark.field("F12", "F45")
@pytest.mark.parametrize("id", ODD_IDS, ids=brief)
@pytest.mark.parametrize(
    ("method", "event"),
    [
        pytest.param("notifications/tools/list_changed", 0, marks=pytest.mark.clause("R7")),
        pytest.param("notifications/prompts/list_changed", 1, marks=pytest.mark.clause("R8")),
        pytest.param("notifications/resources/list_changed", 2, marks=pytest.mark.clause("R9")),
    ],
)
def test_a_list_change_has_an_object_for_params_with_the_id_alone(
    method: str, event: int, id: RequestId
) -> None:
    said: Event = list(LISTS.values())[event]
    assert event_head(said) == LIST_CHANGED_HEADS[type(said)]
    message = complete(event_head(said), id)
    check(message)
    assert message == {"jsonrpc": "2.0", "method": method, "params": {"_meta": {SUBSCRIPTION_ID: id}}}
    assert same_id(tag(message), id)


def test_each_method_says_its_own_event() -> None:
    for method, event in LISTS.items():
        assert complete(event_head(event), 1)["method"] == method
        parse_server_notification(method, PROTOCOL_VERSION, {})
    assert LISTS["notifications/tools/list_changed"] == ToolsListChanged()


@pytest.mark.clause("R3", "R4")
@pytest.mark.parametrize("id", ODD_IDS, ids=brief)
def test_the_acknowledgment_carries_the_honoured_filter_and_the_id(id: RequestId) -> None:
    honored = Filter(tools_list_changed=True, resource_subscriptions=("X://É", "x:%62"))
    message = complete(acknowledged_head(honored), id)
    check(message)
    assert message["method"] == ACKNOWLEDGED == "notifications/subscriptions/acknowledged"
    assert message["params"]["notifications"] == {
        "toolsListChanged": True,
        "resourceSubscriptions": ["X://É", "x:%62"],
    }
    assert same_id(tag(message), id)
    assert complete(acknowledged_head(Filter()), id)["params"]["notifications"] == {}


@pytest.mark.clause("R14")
@pytest.mark.parametrize("id", ODD_IDS, ids=brief)
def test_the_result_is_complete_and_names_the_subscription_and_the_server(id: RequestId) -> None:
    for name in ("harken", 'é"\\%b'):
        message = complete(result_head(encode_id(id), {"name": name, "version": "1"}), id)
        check(message)
        assert message["result"] == {
            "resultType": "complete",
            "_meta": {
                "io.modelcontextprotocol/serverInfo": {"name": name, "version": "1"},
                SUBSCRIPTION_ID: id,
            },
        }
        assert same_id(message["id"], id)


@pytest.mark.clause("R27")
@pytest.mark.parametrize("id", ODD_IDS, ids=brief)
def test_a_servers_cancel_names_the_listen_request(id: RequestId) -> None:
    message = complete(cancelled_head(encode_id(id)), id)
    check(message)
    assert message["method"] == CANCELLED == "notifications/cancelled"
    assert same_id(message["params"]["requestId"], id)
    assert same_id(tag(message), id)


@pytest.mark.parametrize(
    "encode", [encode_id, lambda id: encode_result(id, {}), lambda id: encode_error(id, RPCError(1, "x"))]
)
def test_the_longest_id_can_always_be_written(encode: Callable[[RequestId], bytes]) -> None:
    assert len(encode(10**MAX_ID_DIGITS - 1)) >= MAX_ID_DIGITS
    assert len(encode("\x00" * MAX_ID_BYTES)) >= 6 * MAX_ID_BYTES
