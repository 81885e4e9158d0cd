"""Requests other than listens: who answers them, and what becomes of an answer that is none."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harken.core.wire import Inbound, Meta, encode_error
from harken.errors import RPCError
from harken.server.methods import Methods, Request
from tests.wire_client import CODES, PREFIX, check_error

pytestmark = pytest.mark.anyio

INFO = {"name": "n", "version": "v"}
REQUEST = Request("é", "x/y", {"a": 1}, Meta("2026-07-28", {}))


def answering(answer: Any) -> Methods:
    """Methods of which one returns, or raises, `answer`."""

    async def handler(request: Request) -> Mapping[str, object]:
        assert request is REQUEST
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]  # some answers are wrong on purpose

    return Methods({"x/y": handler}, INFO)


async def answered(methods: Methods) -> Any:
    """The response as its reader sees it."""
    answer = await methods.answer(REQUEST)
    return json.loads(encode_error("é", answer) if isinstance(answer, RPCError) else answer)


@pytest.mark.clause("A1")
async def test_a_result_is_completed_and_never_overruled() -> None:
    response = await answered(answering({"z": 1}))
    assert response == {
        "jsonrpc": "2.0",
        "id": "é",
        "result": {"z": 1, "resultType": "complete", "_meta": {PREFIX + "serverInfo": INFO}},
    }
    own = {"resultType": "input_required", "_meta": {"k": 1}}
    result = (await answered(answering(own)))["result"]
    assert result == {"resultType": "input_required", "_meta": {PREFIX + "serverInfo": INFO, "k": 1}}
    assert own == {"resultType": "input_required", "_meta": {"k": 1}}  # the handler's own is left alone


async def test_an_error_of_the_handler_goes_out_as_it_is() -> None:
    response = await answered(answering(RPCError(-32602, "no such thing", {"uri": "x://a"})))
    check_error(response)
    assert response["error"] == {"code": -32602, "message": "no such thing", "data": {"uri": "x://a"}}


@pytest.mark.clause("A5")
@pytest.mark.parametrize(
    "answer",
    [
        ValueError("a secret"),
        None,
        1,
        [1],
        {"x": object()},
        {1: {2: b"\xff"}, "x": {1j}},
        RPCError(1, "x", object()),
    ],
    ids=["raises", "None", "1", "list", "object", "complex", "data"],
)
async def test_a_handler_that_fails_is_an_internal_error(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    response = await answered(answering(answer))
    check_error(response)
    assert response["error"] == {"code": -32603, "message": "x/y failed inside the server"}
    assert "secret" not in json.dumps(response)
    assert "x/y" in caplog.text


async def test_who_is_cancelled_stays_cancelled() -> None:
    begun = asyncio.Event()

    async def waits(request: Request) -> Mapping[str, object]:
        begun.set()
        await asyncio.Event().wait()
        return {}

    task = asyncio.create_task(Methods({"x/y": waits}, INFO).answer(REQUEST))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_a_handler_waited_for_may_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    response = await answered(answering(asyncio.CancelledError()))
    assert response["error"]["code"] == -32603
    assert "cancelled" in caplog.text


@pytest.mark.clause("H6", "R22", "A5")
@pytest.mark.parametrize("method", ["tools/list", "ping", "X/Y", "", "x/y ", "a" * 9_000])
def test_a_method_that_nobody_answers_is_not_found(method: str) -> None:
    with pytest.raises(RPCError) as refusal:
        answering({}).check(Inbound(1, method, None))
    assert refusal.value.code == -32601
    assert len(refusal.value.message) < 200
    assert method not in answering({}).names


@pytest.mark.clause("A7", "A5")
@pytest.mark.parametrize("params", [None, {}, {"protocolVersion": 1}, {"protocolVersion": "2025-11-25"}])
def test_initialize_is_told_which_versions_would_do(params: dict[str, object] | None) -> None:
    with pytest.raises(RPCError) as refusal:
        answering({}).check(Inbound(1, "initialize", params))
    assert refusal.value.code == -32022
    assert "2026-07-28" in refusal.value.message
    version = (params or {}).get("protocolVersion")
    requested = version if isinstance(version, str) else ""
    assert refusal.value.data == {"supported": ["2026-07-28"], "requested": requested}


def test_a_method_with_a_handler_is_found() -> None:
    methods = answering({})
    methods.check(Inbound(1, "x/y", None))
    assert methods.names == {"x/y"}


@pytest.mark.clause("A5")
def test_no_other_error_code_stands_in_the_servers_source(project: Path) -> None:
    """Neither -32000 to -32019, nor -32002 or -32042, nor one of our own in the reserved range."""
    found: dict[int, str] = {}
    source = project / "src" / "harken"
    paths = [source / "core" / "wire.py"]
    for part in ("server", "gateway", "sources"):
        paths += sorted((source / part).rglob("*.py"))
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, int)
                and 32_000 <= node.value < 33_000
            ):
                found[-node.value] = path.name
    assert set(found) <= CODES, found
    assert len(found) >= 7
