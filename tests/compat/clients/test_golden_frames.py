"""The frames in tests/golden match those that the clients send today: the same APIs in the same versions."""

import pytest

from tests.compat.clients.capture_frames import SESSIONS, capture, missing
from tests.golden import frames


@pytest.mark.parametrize("client", SESSIONS)
def test_the_golden_frames_of_a_client_are_those_it_sends(client, tmp_path):
    """A client sends the same API versions as in its golden file.

    If this fails, run `python -m tests.compat.clients.capture_frames` and review the changes.
    """
    if reason := missing(client):
        pytest.skip(reason)
    golden = frames.read(frames.HERE / f"{client}{frames.SUFFIX}")
    assert kinds_of(capture(client, tmp_path)) == kinds_of(golden)


def kinds_of(exchanges):
    """Return (API key, version, answered) of all exchanges except heartbeats, which come at unpredictable times."""
    heartbeat = 12
    return {(e.api_key, e.version, e.answer is not None) for e in exchanges if e.api_key != heartbeat}
