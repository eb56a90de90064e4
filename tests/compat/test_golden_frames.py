"""The frames in tests/golden are what these clients send today: the same APIs in the same versions."""

import pytest

from tests.compat.capture_frames import SESSIONS, capture, missing
from tests.golden import frames


@pytest.mark.parametrize("client", SESSIONS)
def test_the_golden_frames_of_a_client_are_those_it_sends(client, tmp_path):
    """Where it fails: `python -m tests.compat.capture_frames`, and read what has changed."""
    if reason := missing(client):
        pytest.skip(reason)
    golden = frames.read(frames.HERE / f"{client}{frames.SUFFIX}")
    assert asked(capture(client, tmp_path)) == asked(golden)


def asked(exchanges):
    """(API key, version, whether it is answered) of each, but for heartbeats, which come when they come."""
    heartbeat = 12
    return {(e.api_key, e.version, e.answer is not None) for e in exchanges if e.api_key != heartbeat}
