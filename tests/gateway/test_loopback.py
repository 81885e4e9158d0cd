"""Which hosts are this machine alone."""

import pytest

from harken.gateway.loopback import is_loopback


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("Localhost.", True),
        ("127.0.0.1", True),
        ("127.255.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("localhost.evil.example", False),
        ("2130706433", False),
        ("", False),
    ],
)
def test_what_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
