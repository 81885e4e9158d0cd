"""What a hub's options may be: a wrong one is an error where the hub is built, not a surprise at night."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any

from harken.core.events import Kind
from harken.core.wire import CANCELLED, LISTEN

__all__ = ["check_choice", "check_flag", "check_handlers", "check_kinds", "check_seconds", "check_text"]


def check_seconds(name: str, value: object, *, zero: bool = False, none: bool = False) -> None:
    """Raises TypeError or ValueError unless `value` is a duration; `zero` and `none` may be allowed."""
    if value is None and none:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if not isfinite(value) or value < 0 or (value == 0 and not zero):
        least = "at least 0" if zero else "above 0"
        raise ValueError(f"{name} must be {least} seconds and finite, not {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raises TypeError unless `value` is a boolean."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def check_text(name: str, value: object) -> None:
    """Raises TypeError or ValueError unless `value` is a string that can be sent."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} holds half of a surrogate pair: {value!r}") from error


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raises ValueError unless `value` is one of the `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def check_kinds(name: str, kinds: Collection[Kind | str] | None) -> frozenset[Kind] | None:
    """The kinds, None for None. Raises TypeError or ValueError unless each is one of the filter's keys."""
    if kinds is None:
        return None
    # A lone string is a collection of strings too.
    if isinstance(kinds, str) or not isinstance(kinds, Collection):
        raise TypeError(f"{name} must be a list of {', '.join(Kind)}, not {kinds!r}")
    for kind in kinds:
        check_choice(f"each of {name}", kind, tuple(Kind))
    return frozenset(map(Kind, kinds))


def check_handlers(methods: Mapping[Any, object]) -> None:
    """Raises TypeError or ValueError unless each is a handler of a method that the hub doesn't answer."""
    for method, handler in methods.items():
        if not isinstance(method, str) or not callable(handler):
            raise TypeError(f"methods must map names to async functions, not {method!r} to {handler!r}")
        if method in {LISTEN, CANCELLED}:
            raise ValueError(f"{method} is the hub's own; it takes no handler")
