"""The exit codes are a contract."""

from harken.cli.exits import EXIT_OF, Exit
from harken.core.demux import Ending


def test_the_codes() -> None:
    codes = {code.name: code.value for code in Exit}
    assert codes == {
        "ENDED": 0,
        "INTERNAL": 1,
        "USAGE": 2,
        "REFUSED": 3,
        "LOST": 4,
        "TIMEOUT": 5,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }


def test_every_ending_has_its_code() -> None:
    assert set(EXIT_OF) == set(Ending)
    assert {ending for ending, code in EXIT_OF.items() if code is Exit.ENDED} == {
        Ending.COMPLETED,
        Ending.CANCELLED_BY_SERVER,
        Ending.NOTHING_HONORED,
        Ending.CLOSED,
    }
