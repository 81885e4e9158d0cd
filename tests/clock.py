"""An event loop whose clock jumps to the next timer instead of waiting for it: hours in an instant."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout > 0:
            self.now += timeout
            timeout = 0
        return super().select(timeout)


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its time passes only when there is nothing to do, and by as much as is needed."""

    def __init__(self) -> None:
        self.clock = _Jumping()
        super().__init__(self.clock)

    def time(self) -> float:
        """See the base class."""
        return self.clock.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run(), on such a loop."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)


def now() -> float:
    """The time of the running loop."""
    return asyncio.get_running_loop().time()
