"""The exception tree is as its docstring draws it, and each error carries what it says."""

import re

import pytest

from harken import errors
from harken.errors import HarkenError, InvalidFilter, InvalidMessage, InvalidURI, Refused, RPCError


def drawn() -> dict[str, tuple[str, ...]]:
    """Each class in the docstring's drawing → the names of its bases."""
    assert errors.__doc__ is not None
    bases: dict[str, tuple[str, ...]] = {}
    parents: list[str] = []
    for line in errors.__doc__.splitlines():
        if match := re.match(r"    ((?:│   |    )*)(?:[├└]── )?([A-Z]\w+)(?: \((\w+)\))?(?: {2}|$)", line):
            depth = len(match[1]) // 4 + ("── " in line)
            parent = parents[depth - 1] if depth else "Exception"
            parents[depth:] = [match[2]]
            bases[match[2]] = (parent, match[3]) if match[3] else (parent,)
    return bases


def test_the_tree_is_as_drawn() -> None:
    real = {
        name: tuple(base.__name__ for base in kind.__bases__)
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert drawn() == real


def test_all_is_exact() -> None:
    assert sorted(errors.__all__, key=str.lower) == sorted(drawn(), key=str.lower)


def test_an_rpc_error_names_its_code() -> None:
    error = RPCError(-32603, "no room", {"reason": "server_full"})
    assert (error.code, error.message, error.data) == (-32603, "no room", {"reason": "server_full"})
    assert str(error) == "no room (-32603)"
    assert RPCError(-32601, "unknown").data is None


def test_an_invalid_message_says_whether_and_to_whom_to_answer() -> None:
    error = InvalidMessage(-32700, "not JSON")
    assert (error.id, error.answerable, error.data) == (None, True, None)
    broken = InvalidMessage(-32602, "no object", id="7", answerable=False)
    assert (broken.id, broken.answerable) == ("7", False)


def test_a_refusal_carries_what_the_transport_said() -> None:
    refused = Refused(-32603, "busy", {"reason": "quota"}, status=429, retry_after=5.0)
    assert (refused.code, refused.data, refused.status, refused.retry_after) == (
        -32603,
        {"reason": "quota"},
        429,
        5.0,
    )
    assert (Refused(-32601, "unknown").status, Refused(-32601, "unknown").retry_after) == (None, None)


@pytest.mark.parametrize("kind", [InvalidURI, InvalidFilter])
def test_bad_values_are_value_errors_too(kind: type[HarkenError]) -> None:
    with pytest.raises(ValueError, match="x"):
        raise kind("x")
