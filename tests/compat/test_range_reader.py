"""The sockets of a range reader: whole frames, or an error that names the broker."""

import socket
import subprocess
import sys

import pytest

from coordination.free_port import FreePort
from spark_bridge.reading import range_reader
from spark_bridge.reading.network import Address
from spark_bridge.reading.sockets import FRAME_BYTES_MAX, SocketConnection, SocketNetwork

BROKER = Address("broker", 9092)


@pytest.fixture
def pair():
    """Yield (our connection, the broker's socket)."""
    ours, theirs = socket.socketpair()
    ours.settimeout(0.05)
    yield SocketConnection(ours, BROKER), theirs
    ours.close()
    theirs.close()


def test_frames_come_whole_however_they_are_cut(pair):
    connection, broker = pair
    for part in (b"\0\0", b"\0\x05he", b"llo\0\0\0\x00", b"\0\0\0\x01x"):
        broker.sendall(part)
    assert [bytes(connection.receive()) for _ in range(3)] == [b"hello", b"", b"x"]


def test_a_frame_goes_out_with_its_length(pair):
    connection, broker = pair
    connection.send(b"hello")
    assert broker.recv(100) == b"\0\0\0\x05hello"


def test_a_connection_that_ends_inside_a_frame_is_an_error(pair):
    connection, broker = pair
    broker.sendall(b"\0\0\0\x05hel")
    broker.close()
    with pytest.raises(ConnectionError, match="broker:9092 closed the connection after 3 of 5 bytes"):
        connection.receive()


def test_a_broker_that_falls_silent_is_an_error(pair):
    connection, broker = pair
    broker.sendall(b"\0\0\0\x05hel")
    with pytest.raises(TimeoutError):
        connection.receive()


@pytest.mark.parametrize("size", [-1, FRAME_BYTES_MAX + 1, int.from_bytes(b"HTTP", "big")])
def test_a_length_that_is_no_frames_is_refused_before_memory_is_taken(pair, size):
    """An impossible frame length is refused before memory is allocated (DESIGN rule 4).

    An HTTP answer reads as a frame of 1.2 GB.
    """
    connection, broker = pair
    broker.sendall(size.to_bytes(4, "big", signed=True))
    with pytest.raises(ConnectionError, match=f"broker:9092 sent a frame of {size} bytes"):
        connection.receive()


def test_an_address_where_nobody_listens_is_named():
    with FreePort() as nobody:
        address = Address("127.0.0.1", nobody.number)
        with pytest.raises(ConnectionError, match=f"{address} cannot be reached"):
            SocketNetwork().connect(address)


def test_a_task_imports_nothing_of_the_servers_and_no_spark():
    """A Spark task loads neither server modules nor Spark (DESIGN section 9).

    import-linter checks the imports; this test checks the modules that they load.
    """
    code = f"import {range_reader.__name__}, sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"numpy", "pyarrow", "crc32c"} <= set(loaded)
    assert not {"twisted", "kazoo", "confluent_kafka", "pyspark", "pandas", "idgen", "kio"} & set(loaded)
