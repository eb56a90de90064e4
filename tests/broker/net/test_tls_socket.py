"""A socket of TLS in memory: every byte arrives once and in order, however the network and the caller cut them."""

import ssl
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.net.tls_socket import (
    ANSWERS_BYTES,
    BLOCKED_BYTES,
    FEED_BYTES,
    FIRST_BYTES,
    MIXED_BYTES,
    RECEIVE_BYTES,
    SILENT_BYTES,
    WRITE_BYTES,
    TlsSocket,
)
from broker.security.tls_endpoint import RECORD_BYTES
from tests.broker.net.polled_server import Socket
from tests.broker.net.tls_pair import CONTEXT, VERSIONS, TlsClient, TlsPair, client_context
from tests.broker.net.tls_records import ClientRecords, logged_context

SIZES = st.one_of(
    st.integers(1, 300),
    st.sampled_from([RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, FEED_BYTES, WRITE_BYTES, WRITE_BYTES + 1]),
    st.integers(1, 300_000),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["client writes", "arrives", "read", "queue", "send", "room", "client reads"]), SIZES),
    max_size=40,
)


def numbered(start, size):
    """Return bytes of a stream from a position on, in which neighbours differ."""
    return bytes((start + at) * 31 % 251 for at in range(min(size, 251))) * (size // 251 + 1)


class Model:
    """A caller with a queue of bytes, as each transport has one. It acts on events only, and on `has_more`."""

    def __init__(self, version):
        self.pair = TlsPair(version)
        self.pair.socket.room_bytes = 0
        self.queue = bytearray()
        self.requests, self.answers = bytearray(), bytearray()
        self.received, self.delivered = bytearray(), bytearray()

    def take(self, step, size):
        pair = self.pair
        if step == "client writes":
            data = numbered(len(self.requests), size)[:size]
            self.requests += data
            pair.client.write(data)
        elif step == "arrives":
            pair.client.deliver(size)
        elif step == "read":
            self.read(size)
        elif step == "queue":
            data = numbered(len(self.answers), size)[:size]
            self.answers += data
            self.queue += data
        elif step == "send":
            self.send()
        elif step == "room":
            pair.socket.room_bytes = size
        else:
            self.delivered += pair.client.read()

    def read(self, size):
        """Read as a transport does: after an event of the socket, and while bytes are left that have no event."""
        if self.pair.socket.incoming or self.pair.server.has_more:
            data = self.pair.receive(size)
            assert data != b"" and len(data or b"") <= size
            self.received += data or b""
            assert self.requests.startswith(self.received)

    def send(self):
        """Send once; return False if the socket had no room."""
        if not self.queue:
            return True
        try:
            sent = self.pair.server.send(memoryview(bytes(self.queue)))
        except BlockingIOError:
            return False
        assert 0 < sent <= len(self.queue)
        del self.queue[:sent]
        return True

    def finish(self):
        """Give room and buffers until no event is left."""
        self.pair.client.deliver()
        while self.pair.socket.incoming or self.pair.server.has_more:
            self.read(100_000)
        self.pair.socket.room_bytes = None
        while self.queue:
            assert self.send()
        self.delivered += self.pair.client.read()


@pytest.mark.parametrize("version", VERSIONS)
@given(steps=STEPS)
def test_each_byte_arrives_once_and_in_order_and_none_stands_still(version, steps):
    model = Model(version)
    for step, size in steps:
        model.take(step, size)
    model.finish()
    assert model.received == model.requests and model.delivered == model.answers


# --- reading ---------------------------------------------------------------------------------------------------------


def grown(pair):
    """Let a pair receive and send bytes until its pieces are as large as they get."""
    for _ in range(10):
        pair.client.write(b"a" * FEED_BYTES)
        pair.server.send(b"a" * pair.server.send_bytes)
    pair.client.deliver()
    pair.receive_all()
    assert len(pair.client.read()) >= WRITE_BYTES
    return pair


def test_one_read_takes_many_records():
    pair = grown(TlsPair())
    for number in range(100):
        pair.client.write(bytes([number]) * 1_000)
    pair.client.deliver()
    assert pair.receive() == b"".join(bytes([number]) * 1_000 for number in range(100))
    assert not pair.server.has_more and pair.receive() is None


def test_bytes_for_which_a_buffer_has_no_room_need_no_event():
    pair = TlsPair()
    pair.client.write(b"a" * 10)
    pair.client.write(b"b" * 10)
    pair.client.deliver()
    assert pair.receive(15) == b"a" * 10 + b"b" * 5
    assert pair.server.has_more and not pair.socket.incoming
    assert pair.receive() == b"b" * 5 and not pair.server.has_more


def test_a_part_of_a_record_is_no_byte():
    pair = TlsPair()
    pair.client.write(b"a" * 100)
    while len(pair.client.wire) > 1:
        pair.client.deliver(1)
        assert pair.receive() is None and not pair.server.has_more
    pair.client.deliver()
    assert pair.receive() == b"a" * 100


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 5_000, 100_000])
def test_a_peer_that_ends_right_behind_its_bytes_is_read_and_then_at_its_end(version, size):
    pair = TlsPair(version)
    pair.client.write(b"a" * size)
    pair.client.end()
    pair.client.deliver()
    reads = pair.receive_all()
    assert b"".join(reads) == b"a" * size
    assert reads[-1] == b"" and not pair.server.has_more, "no event of the socket tells of the end"


def test_a_connection_that_ends_without_a_word_is_at_its_end():
    pair = TlsPair()
    pair.client.write(b"a")
    pair.client.deliver()
    pair.socket.incoming.append(b"")
    assert pair.receive() == b"a" and pair.receive() == b""


def test_a_forged_record_is_an_error_whose_alert_reaches_the_peer():
    pair = TlsPair()
    pair.client.write(b"a" * 100)
    pair.client.wire[50] ^= 1
    pair.client.deliver()
    with pytest.raises(ssl.SSLError):
        pair.receive()
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        pair.client.read()


def test_a_read_without_room_is_refused():
    """It would return nothing for ever, while bytes are left."""
    pair = TlsPair()
    pair.client.write(b"a")
    pair.client.deliver()
    with pytest.raises(AssertionError, match="without room"):
        pair.receive(0)


def test_the_bytes_before_a_forged_record_come_before_its_error():
    pair = TlsPair()
    pair.client.write(b"a" * 100)
    good = len(pair.client.wire)
    pair.client.write(b"b" * 100)
    pair.client.wire[good + 50] ^= 1
    pair.client.deliver()
    assert pair.receive() == b"a" * 100
    assert pair.server.has_more, "no event of the socket tells of the error"
    for _ in range(2):
        with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
            pair.receive()


def test_the_pieces_before_a_forged_record_come_before_its_error():
    pair = grown(TlsPair())
    pair.client.write(b"a" * 100_000)
    good = len(pair.client.wire)
    pair.client.write(b"b" * 100)
    pair.client.wire[good + 50] ^= 1
    pair.client.deliver()
    received = b""
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        while True:
            received += pair.receive()
    assert received == b"a" * 100_000


def test_a_read_of_large_records_feeds_openssl_in_pieces(monkeypatch):
    """A MemoryBIO keeps the largest size that it once had, for each of thousands of connections."""
    largest = []

    class Watched(deque):
        """The received bytes of a socket; each read notes what OpenSSL has not decrypted yet."""

        def popleft(self):
            largest.append(pair.server._endpoint.incoming.pending)
            return super().popleft()

    pair = TlsPair()
    pair.socket.incoming = Watched()
    for _ in range(20):
        pair.client.write(b"a" * 100_000)
        pair.client.deliver()
    received = 0
    while received < 2_000_000:
        received += len(pair.receive(100) or b"") + len(pair.receive(40_000) or b"")
    assert max(largest) <= 2 * RECORD_BYTES


# --- records without plain bytes -------------------------------------------------------------------------------------


def flooding_pair(is_grown=False):
    """Return a pair and the records that its client can forge."""
    context, directory = logged_context()
    pair = TlsPair(context=context)
    records = ClientRecords(pair.client, directory)
    if is_grown:
        pair.socket.incoming.append(b"".join(records.data(b"a" * RECORD_BYTES) for _ in range(20)))
        pair.receive_all()
    return pair, records


def unread_bytes(pair):
    """Return how many bytes the server has not received yet."""
    return sum(map(len, pair.socket.incoming))


@pytest.mark.parametrize("is_requested", [False, True])
def test_one_read_takes_few_key_updates(is_requested):
    """A KeyUpdate costs the CPU 25 to 70 us, and a peer can send it before its login (RFC 8446, section 4.6.3)."""
    pair, records = flooding_pair()
    pair.socket.incoming.append(records.key_updates(100_000, is_requested))
    before = unread_bytes(pair)
    assert pair.receive() is None and unread_bytes(pair) == before - FIRST_BYTES


def test_a_peer_that_sends_only_key_updates_is_given_up():
    pair, records = flooding_pair()
    pair.socket.incoming.append(records.key_updates(100_000))
    before = unread_bytes(pair)
    with pytest.raises(ConnectionAbortedError, match="32768 bytes of TLS without a byte of a request"):
        while pair.receive() is None:
            pass
    assert unread_bytes(pair) == before - SILENT_BYTES
    assert "32768 bytes of TLS" in pair.server.refusal


def test_key_updates_behind_large_requests_end_the_read():
    pair, records = flooding_pair(is_grown=True)
    pair.socket.incoming.append(records.data(b"a" * 16_000) + records.key_updates(20_000) + records.key_updates(90_000))
    before = unread_bytes(pair)
    assert pair.receive() == b"a" * 16_000 and unread_bytes(pair) == before - FEED_BYTES
    assert pair.receive() is None and unread_bytes(pair) >= before - 2 * FEED_BYTES


@pytest.mark.parametrize("gap", [4_000, 31_000])
def test_one_read_takes_fewer_key_updates_of_a_peer_that_sends_bytes_between_them(gap):
    """A byte now and then keeps the connection, so each of its reads has to be short."""
    pair, records = flooding_pair(is_grown=True)
    for _ in range(3):
        pair.socket.incoming.append(records.key_updates(gap) + records.data(b"a"))
    received = b""
    while b"a" not in received:
        received += pair.receive() or b""
    while (before := unread_bytes(pair)) > 0:
        received += pair.receive() or b""
        assert unread_bytes(pair) >= before - MIXED_BYTES
    assert received == b"aaa" and not pair.server.refusal


def test_pieces_grow_again_once_a_peer_sends_requests():
    pair, records = flooding_pair()
    pair.socket.incoming.append(records.key_updates(2_000) + records.data(b"a"))
    pair.receive_all()
    pair.socket.incoming.append(b"".join(records.data(b"a" * RECORD_BYTES) for _ in range(20)))
    pair.receive_all()
    pair.socket.incoming.append(b"".join(records.data(b"a" * RECORD_BYTES) for _ in range(20)))
    assert len(pair.receive()) > 2 * FEED_BYTES


def test_requests_between_key_updates_arrive_and_keep_the_connection():
    pair, records = flooding_pair()
    for _ in range(5):
        pair.socket.incoming.append(records.key_updates(20_000) + records.data(b"request"))
    assert b"".join(pair.receive_all()) == b"request" * 5 and not pair.server.refusal


def test_records_that_are_almost_all_padding_keep_the_connection():
    """RFC 8446, section 5.4: a client may hide the length of its requests."""
    pair, records = flooding_pair()
    for _ in range(20):
        pair.socket.incoming.append(records.data(b"request", padding=16_000))
    assert b"".join(pair.receive_all()) == b"request" * 20


@pytest.mark.parametrize("version", VERSIONS)
def test_one_read_takes_few_records_of_one_byte(version):
    """Thousands of them would delay the other connections."""
    pair = TlsPair(version)
    for _ in range(2_000):
        pair.client.write(b"a")
    pair.client.deliver()
    reads = pair.receive_all()
    assert b"".join(reads) == b"a" * 2_000 and max(map(len, reads)) <= FIRST_BYTES / 20


def test_one_read_of_large_records_takes_many_pieces():
    pair = grown(TlsPair())
    pair.client.write(b"a" * (2 * RECEIVE_BYTES))
    pair.client.deliver()
    assert RECEIVE_BYTES - 2 * RECORD_BYTES < len(pair.receive()) <= RECEIVE_BYTES


def test_a_peer_that_reads_no_answers_to_its_key_updates_is_given_up():
    """Each answer is 27 bytes, and the socket takes none of them."""
    pair, records = flooding_pair()
    pair.socket.room_bytes = 0
    with pytest.raises(ConnectionAbortedError, match="key updates wait for it, and the most is 16384"):
        for _ in range(20):
            pair.socket.incoming.append(records.key_updates(2_000, is_requested=True) + records.data(b"a"))
            assert len(pair.server._unsent) + pair.server._endpoint.outgoing.pending <= ANSWERS_BYTES
            assert b"".join(pair.receive_all()) == b"a"
    assert "wait for it" in pair.server.refusal


def test_answers_to_key_updates_behind_a_blocked_answer_are_counted_without_it():
    pair, records = flooding_pair()
    pair.socket.room_bytes = 0
    with pytest.raises(BlockingIOError):
        pair.server.send(b"a" * BLOCKED_BYTES)
    pair.socket.incoming.append(records.key_updates(3_000, is_requested=True) + records.data(b"a"))
    assert b"".join(pair.receive_all()) == b"a"
    for _ in range(4):
        pair.socket.incoming.append(records.key_updates(3_000, is_requested=True) + records.data(b"a"))
        assert b"".join(pair.receive_all()) == b"a"
    pair.socket.incoming.append(records.key_updates(3_000, is_requested=True) + records.data(b"a"))
    with pytest.raises(ConnectionAbortedError, match="key updates wait"):
        pair.receive_all()


# --- writing ---------------------------------------------------------------------------------------------------------


def test_many_records_leave_in_one_call():
    pair = grown(TlsPair())
    before = pair.socket.sends
    assert pair.server.send(b"a" * WRITE_BYTES) == WRITE_BYTES and pair.socket.sends == before + 1
    assert pair.client.read() == b"a" * WRITE_BYTES


def test_bytes_count_as_sent_once_their_ciphertext_has_left():
    pair = grown(TlsPair())
    pair.socket.room_bytes = 1_000
    data = b"a" * 50_000
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            pair.server.send(data)
        assert pair.server.is_blocked
    pair.socket.room_bytes = None
    assert pair.server.send(data + b"b") == len(data) and not pair.server.is_blocked
    assert pair.server.send(b"b") == 1
    assert pair.client.read() == data + b"b"


@pytest.mark.parametrize("is_grown", [False, True])
def test_a_slow_reader_has_little_ciphertext_again_once_it_was_blocked(is_grown):
    """Ten thousand of them would fill the memory, and no other limit counts ciphertext."""
    pair = grown(TlsPair()) if is_grown else TlsPair()
    data = b"a" * 1_000_000
    for _ in range(2):
        pair.socket.room_bytes = 0
        with pytest.raises(BlockingIOError):
            pair.server.send(data)
        pair.socket.room_bytes = None
        pair.server.flush()
    pair.socket.room_bytes = 0
    with pytest.raises(BlockingIOError):
        pair.server.send(data)
    assert len(pair.server._unsent) < BLOCKED_BYTES + 1_000


def test_more_is_encrypted_at_once_while_the_socket_takes_all():
    pair = TlsPair()
    sizes = [pair.server.send(b"a" * 1_000_000) for _ in range(10)]
    assert sizes == [*range(BLOCKED_BYTES, WRITE_BYTES, RECORD_BYTES), *[WRITE_BYTES] * 4]
    assert pair.client.read() == b"a" * sum(sizes)


def test_the_end_is_told_behind_all_bytes():
    pair = TlsPair()
    pair.server.send(b"a" * 100)
    pair.server.say_end()
    assert pair.client.read() == b"a" * 100
    assert pair.client.tls.read(1) == b"", "close_notify"


# --- handshakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_handshake_may_come_byte_by_byte_and_have_room_for_one(version):
    socket = Socket()
    server, client = TlsSocket(socket, CONTEXT), TlsClient(socket, client_context(version))
    socket.room_bytes, wants = 0, set()
    for _ in range(20_000):
        if client.shake_hands() and not client.wire and server_is_done(server, wants):
            break
        client.deliver(1)
        socket.room_bytes += 1
        server_is_done(server, wants)
    assert wants == {ssl.SSLWantReadError, ssl.SSLWantWriteError}
    socket.room_bytes = None
    server.send(b"hello")
    assert client.read() == b"hello"


def server_is_done(server, wants):
    try:
        server.do_handshake()
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
        wants.add(type(error))
        return False
    return True


def test_requests_right_behind_a_handshake_need_no_event():
    pair = TlsPair.__new__(TlsPair)
    pair.socket = Socket()
    pair.server, pair.client = TlsSocket(pair.socket, CONTEXT), TlsClient(pair.socket)
    pair.client.shake_hands()
    pair.client.deliver()
    assert not pair.step()
    assert pair.client.shake_hands()
    pair.client.write(b"request")
    pair.client.deliver()
    assert pair.step() and pair.server.has_more
    assert pair.receive() == b"request"


def test_the_alert_of_a_failed_handshake_reaches_the_peer():
    socket = Socket()
    context = ssl.create_default_context()
    context.set_ciphers("ECDHE-RSA-AES128-SHA")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    server, client = TlsSocket(socket, CONTEXT), TlsClient(socket, context)
    client.shake_hands()
    client.deliver()
    with pytest.raises(ssl.SSLError):
        server.do_handshake()
    with pytest.raises(ssl.SSLError, match="ALERT_HANDSHAKE_FAILURE"):
        client.shake_hands()


def test_a_peer_that_ends_in_the_handshake_is_an_unexpected_end():
    socket = Socket()
    server = TlsSocket(socket, CONTEXT)
    socket.incoming.append(b"")
    with pytest.raises(ssl.SSLEOFError):
        server.do_handshake()
