"""Fetch through the wire (https://kafka.apache.org/protocol#The_Messages_Fetch)."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import FETCH, EngineBroker, fetch_request, values_of


@pytest.fixture
def client():
    broker = EngineBroker()
    broker.create("flights")
    client = broker.connect()
    client.produce("flights", b"a")
    return client


@pytest.mark.parametrize("session_id, epoch", [(0, -1), (0, 0), (77, -1), (77, 0)])
def test_a_request_that_begins_or_ends_a_session_is_answered_in_full(client, session_id, epoch):
    """KIP-227: epoch 0 asks for a new session, -1 for none; a session named beside it is to be closed."""
    request = fetch_request("flights")._replace(session_id=session_id, session_epoch=epoch)
    answer = client.ask(FETCH, 12, request)
    assert (answer.error_code, answer.session_id, values_of(answer)) == (0, 0, [b"a"])


@pytest.mark.parametrize("session_id", [0, 77])
def test_a_request_that_goes_on_with_a_session_is_refused(client, session_id):
    """It names only the partitions that changed: answered as a full one it would leave the others out for ever."""
    request = fetch_request("flights")._replace(session_id=session_id, session_epoch=5)
    answer = client.ask(FETCH, 12, request)
    assert (answer.error_code, answer.partitions) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


@pytest.mark.parametrize("offset", [-1, -(2**63), 2, 2**63 - 1])
def test_an_offset_that_is_not_there_is_out_of_range(client, offset):
    (partition,) = client.ask(FETCH, 12, fetch_request("flights", offset)).partitions
    assert partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("max_bytes", [0, -1, 1])
def test_a_first_batch_larger_than_the_limit_comes_whole(client, max_bytes):
    """KIP-74: a consumer with a small limit goes on."""
    assert client.fetch("flights", max_bytes=max_bytes) == [b"a"]
