"""Request headers, and replies as lists of bytes and file regions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader

from broker.log.storage.memory_storage import MemoryStorage
from broker.wire.errors import WireError
from broker.wire.frame import FileRegion, read_request_header, request_header, size_of


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("client_id", [None, "", "librdkafka", "ü" * 100])
def test_a_header_comes_back_and_is_kafkas(flexible, client_id):
    """The client id has two bytes of length in request headers v1 and v2 (KIP-482)."""
    data = request_header(18, 3, -7, client_id, flexible)
    header = read_request_header(memoryview(data + b"body"))
    assert header[:4] == (18, 3, -7, client_id)
    assert header.body == len(data) - flexible, "the tags are the body's reader's business"
    read, size = entity_reader(HeaderV2 if flexible else HeaderV1)(data, 0)
    assert (read.request_api_key, read.request_api_version, read.correlation_id) == (18, 3, -7)
    assert (read.client_id, size) == (client_id, len(data))


def test_a_header_cut_at_any_byte_is_a_wire_error():
    data = request_header(0, 9, 1, "client", False)
    for size in range(len(data)):
        with pytest.raises(WireError):
            read_request_header(memoryview(data[:size]))


@given(st.binary(max_size=40))
def test_garbage_is_a_header_or_a_wire_error(data):
    try:
        header = read_request_header(memoryview(data))
    except WireError as error:
        assert str(error)
    else:
        assert 10 <= header.body <= len(data)


def test_a_client_id_that_is_not_utf8_closes_nobodys_connection():
    """The client id is shown to people and decides nothing."""
    data = request_header(0, 9, 1, "abc", False)[:-3] + b"\xff\xfe\xfd"
    assert read_request_header(memoryview(data)).client_id == "\ufffd" * 3


def test_the_size_of_a_reply_counts_its_regions():
    file = MemoryStorage().open("log", create=True)
    assert size_of([b"abc", bytearray(5), FileRegion(file, 100, 1 << 30)]) == 8 + (1 << 30)
