"""Fetch through the wire (https://kafka.apache.org/protocol#The_Messages_Fetch)."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import FETCH, EngineBroker, fetch_request


@pytest.fixture
def client():
    broker = EngineBroker()
    broker.create("flights")
    client = broker.connect()
    client.produce("flights", b"a")
    return client


@pytest.mark.parametrize("offset", [-1, -(2**63), 2, 2**63 - 1])
def test_an_offset_that_is_not_there_is_out_of_range(client, offset):
    (partition,) = client.ask(FETCH, 12, fetch_request("flights", offset)).partitions
    assert partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("max_bytes", [0, -1, 1])
def test_a_first_batch_larger_than_the_limit_comes_whole(client, max_bytes):
    """KIP-74: a consumer with a small limit goes on."""
    assert client.fetch("flights", max_bytes=max_bytes) == [b"a"]
