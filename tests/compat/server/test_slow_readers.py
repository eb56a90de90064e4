"""Answers to slow readers: they arrive whole and in order, and cost the server little memory."""

import pytest

from broker.client.blocking import Client
from broker.record.batch import BATCH_PREFIX, LENGTH_END
from tests.compat.raw_connection import RawConnection, fetch_frame, fetched
from tests.compat.served_data import TOPIC, batch_of, fill, values_in
from tests.compat.server_process import ServerProcess
from tests.patience import SECONDS


@pytest.fixture(scope="module")
def big(broker):
    """Return (topic, its log's bytes): four megabytes in batches of 300 kB."""
    log, offset = bytearray(), 0
    with Client(broker.address) as client:
        client.create_topic("big")
        for number in range(14):
            batch = batch_of(bytes([number]) * 150_000, bytes([number + 1]) * 150_000)
            client.produce("big", 0, batch)
            BATCH_PREFIX.pack_into(batch, 0, offset, len(batch) - LENGTH_END, 0)
            log += batch
            offset += 2
    return "big", bytes(log)


@pytest.mark.parametrize("receive_buffer, chunk", [(None, 1 << 20), (4096, 1 << 16), (4096, 1000)])
def test_a_large_fetch_arrives_byte_for_byte_at_any_readers_pace(broker, big, receive_buffer, chunk):
    """Regions above 128 KiB are sent with sendfile, which a small receive window interrupts over and over."""
    topic, log = big
    with RawConnection(broker.address, receive_buffer) as reader:
        for correlation_id in (1, 2):
            reader.socket.sendall(fetch_frame(correlation_id, topic, max_bytes=8 << 20))
        for correlation_id in (1, 2):
            got, body = reader.read_frame(chunk)
            assert got == correlation_id
            assert bytes(fetched(body).records) == log


def test_answers_of_all_sizes_keep_the_order_of_their_requests(broker, big):
    """Bytes, small regions (pread) and large regions (sendfile) share one queue; answers end at batch boundaries."""
    (topic, log), batch_size = big, len(big[1]) // 14
    sizes = [1, 400_000, 1 << 22, 310_000, 900_000] * 4
    with RawConnection(broker.address, 4096) as reader:
        for number, size in enumerate(sizes):
            reader.socket.sendall(fetch_frame(number, topic, offset=2 * (number % 3), max_bytes=size))
        for number, size in enumerate(sizes):
            got, body = reader.read_frame()
            start = log.index(fetched(body).records[:12].tobytes())
            whole = max(size // batch_size, 1) * batch_size
            assert (got, start) == (number, batch_size * (number % 3))
            assert bytes(fetched(body).records) == log[start : start + whole]


def test_a_reader_who_does_not_read_is_not_read_from_and_costs_little_memory(tmp_path):
    """The server stops reading from a connection with too many queued answers (rule 4 of CONTRIBUTING.md).

    The limit is flakelog.max.queued.bytes.per.connection.
    """
    limit = 1 << 20
    with ServerProcess(tmp_path / "data", {"flakelog.max.queued.bytes.per.connection": limit}) as server:
        fill(server.address)
        before_kib = server.status("VmRSS")
        with RawConnection(server.address, 4096) as slow, Client(server.address) as other:
            sent = send_until_it_blocks(slow, fetch_frame(7, TOPIC, client_id="c" * 30_000))
            assert sent < 2_000, "it takes requests though no answer is read"
            assert server.status("VmRSS") - before_kib < 32 * 1024
            assert values_in(other, TOPIC)[:1] == [b"message 0"]
            slow.socket.settimeout(SECONDS)
            for _ in range(sent):  # all requests are answered once the client reads
                assert slow.read_frame()[0] == 7


def send_until_it_blocks(slow, request, silent_seconds=1.0, most=10_000):
    """Send requests until the broker takes no more for `silent_seconds`; return how many whole requests went out."""
    slow.socket.settimeout(silent_seconds)
    sent = 0
    rest = memoryview(b"")
    try:
        while sent < most:
            rest = memoryview(request)
            while rest:
                rest = rest[slow.socket.send(rest) :]
            sent += 1
    except TimeoutError:
        pass
    return sent
