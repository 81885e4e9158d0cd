"""Frames as a client sees them: out of their framing, read as JSON, checked against the official types."""

import json
from typing import Any

from mcp_types.methods import parse_server_notification, parse_server_result

from harken.core.subscription import LINES, SSE, Framing
from harken.core.wire import LISTEN, PROTOCOL_VERSION, RequestId

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
Message = dict[str, Any]

# With odd ids first: each must come back with its type and its value (field case F45).
ODD_IDS: list[RequestId] = [
    0, "", 1, "1", -1, 2**53 - 1, 2**53, 2**63, 2**64, -(2**64), 10**29 + 7, 10**4299, -(10**4298),
    "é€😀", 'a"b', "\\", "null", "\u2028\u2029\x85", "\x00\n\r", "a" * 1024, "é" * 512,
]  # fmt: skip


def brief(value: object) -> str:
    """The start of a value, for the name of a test."""
    return ascii(value)[:12]


def same_id(one: object, other: object) -> bool:
    """Equal in type and in value: `1` is neither `"1"` nor `True` nor `1.0`."""
    return type(one) is type(other) and one == other


def unframe(output: bytes, framing: Framing) -> list[bytes]:
    """The messages in what a subscription wrote; each stands on one line."""
    if not output:
        return []
    assert output.startswith(framing.before)
    assert output.endswith(framing.after)
    inner = output[len(framing.before) : len(output) - len(framing.after)]
    messages = inner.split(framing.after + framing.before)
    assert all(b"\n" not in message and b"\r" not in message for message in messages)
    return messages


def read(output: bytes, framing: Framing = LINES) -> list[Message]:
    """The messages in what a subscription wrote, each of them a valid one of this protocol."""
    messages = [json.loads(message) for message in unframe(output, framing)]
    for message in messages:
        check(message)
    return messages


def check(message: Message) -> None:
    """Whether `message` is one that may stand on a listen stream, by the official types."""
    assert message["jsonrpc"] == "2.0"
    if "result" in message:
        assert set(message) == {"jsonrpc", "id", "result"}
        parse_server_result(LISTEN, PROTOCOL_VERSION, message["result"])
        assert message["result"]["resultType"] == "complete"
        assert set(message["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]) == {"name", "version"}
        assert same_id(message["id"], tag(message))
    else:
        assert set(message) == {"jsonrpc", "method", "params"}  # R23: neither id nor params missing
        parse_server_notification(message["method"], PROTOCOL_VERSION, message["params"])


def tag(message: Message) -> object:
    """The subscription that a message names."""
    return message["result" if "result" in message else "params"]["_meta"][SUBSCRIPTION_ID]


def name(message: Message) -> str:
    """A message in short: the end of its method, with its URI; `result` for the end."""
    if "result" in message:
        return "result"
    short = str(message["method"]).removeprefix("notifications/")
    return f"{short} {message['params']['uri']}" if "uri" in message["params"] else short


FRAMINGS = [SSE, LINES]
