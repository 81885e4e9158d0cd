"""The words for what a watch is doing."""

from harken.client.status import WatchState, WatchStatus


def test_the_states_are_their_words() -> None:
    assert [str(state) for state in WatchState] == ["connecting", "live", "backing_off", "refused", "closed"]


def test_a_state_may_have_no_reason() -> None:
    status = WatchStatus(WatchState("live"))
    assert status == WatchStatus(WatchState.LIVE, reason=None, delay=None, error=None)
