"""Requests other than `subscriptions/listen`: who answers them, the same on both transports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from harken.core.wire import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    SERVER_INFO,
    SUPPORTED_VERSIONS,
    UNSUPPORTED_VERSION,
    Inbound,
    Meta,
    RequestId,
    encode_error,
    encode_result,
)
from harken.errors import RPCError

__all__ = ["Handler", "Methods", "Request"]

logger: logging.Logger = logging.getLogger("harken")


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose `_meta` was checked."""

    id: RequestId
    method: str
    params: Mapping[str, object]
    meta: Meta


Handler = Callable[[Request], Awaitable[Mapping[str, object]]]
"""Answers one method with a result object; raises RPCError to answer with an error."""


class Methods:
    """The methods that a hub answers itself."""

    def __init__(self, handlers: Mapping[str, Handler], server_info: Mapping[str, str]) -> None:
        self._handlers = dict(handlers)
        self._server_info = server_info

    @property
    def names(self) -> frozenset[str]:
        """The methods that are answered here."""
        return frozenset(self._handlers)

    def check(self, inbound: Inbound) -> None:
        """Raises RPCError for a method that nobody answers (clauses H6, R22 and A7)."""
        if inbound.method not in self._handlers:
            raise unknown(inbound)

    async def answer(self, request: Request) -> bytes | RPCError:
        """The encoded response, or the error to answer with."""
        try:
            return self._encode(request.id, await self._handlers[request.method](request))
        except RPCError as error:
            if _is_json(error.data):
                return error
            logger.exception("the handler of %r raised an error whose data is no JSON", request.method)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            logger.exception("something that the handler of %r waited for was cancelled", request.method)
        except Exception:
            # One broken handler must not take the channel with it.
            logger.exception("the handler of %r failed", request.method)
        return RPCError(INTERNAL_ERROR, f"{request.method} failed inside the server")

    def _encode(self, id: RequestId, answer: Mapping[str, object]) -> bytes:
        result = dict(answer)
        result.setdefault("resultType", "complete")
        meta = result.get("_meta")
        result["_meta"] = {SERVER_INFO: dict(self._server_info), **(meta if isinstance(meta, dict) else {})}
        return encode_result(id, result)


def _is_json(data: object) -> bool:
    try:
        encode_error(None, RPCError(INTERNAL_ERROR, "", data))
    except Exception:  # noqa: BLE001 - whatever a handler put there
        return False
    return True


def unknown(inbound: Inbound) -> RPCError:
    """The error for a method that this server lacks."""
    if inbound.method == "initialize":  # A7: an older client learns which versions would do
        requested = (inbound.params or {}).get("protocolVersion")
        return RPCError(
            UNSUPPORTED_VERSION,
            f"this server speaks {', '.join(SUPPORTED_VERSIONS)} only, which has no initialize",
            {
                "supported": list(SUPPORTED_VERSIONS),
                "requested": requested if isinstance(requested, str) else "",
            },
        )
    return RPCError(METHOD_NOT_FOUND, f"method {inbound.method[:64]!r} is not found")
