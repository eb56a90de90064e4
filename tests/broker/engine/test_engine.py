"""The engine as its peers see it: order of requests, waiting, back-pressure, and bytes that are no requests.

Kafka's behaviour is described in https://kafka.apache.org/protocol#protocol_network, and in KIP-511 for versions.
A peer that breaks the protocol loses its own connection, with a reason, and all other peers are served on: rule 3 of
CONTRIBUTING.md.
"""

from functools import partial
from itertools import count

import pytest

from broker.engine.engine import Engine
from broker.wire import cold
from broker.wire.errors import ErrorCode
from broker.wire.primitives import uvarint
from broker.wire.request_limits import DEFAULT_LIMITS
from flakelog.commands.command_client import PROBE
from tests.broker.engine_client import (
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
    EngineBroker,
    batch_of,
    fetch_request,
    produce_request,
    values_of,
)
from tests.broker.watched_storage import WatchedStorage, active

API_VERSIONS = 18


@pytest.fixture
def broker():
    broker = EngineBroker(WatchedStorage())
    broker.create("flights")
    return broker


@pytest.fixture
def client(broker):
    return broker.connect()


def framed(data):
    return len(data).to_bytes(4, "big") + data


def header(api_key, version, correlation_id=1):
    return api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + correlation_id.to_bytes(4, "big") + b"\xff\xff"


def is_served(client):
    """Return True if the broker still serves this client."""
    answer = client.produce("flights", b"still")
    return client.closed is None and answer.error_code == 0


# --- bytes that are no requests --------------------------------------------------------------------------------------

STRANGERS = {
    "garbage": (b"\x9f\xb3\xff\x00" * 50, "a frame of"),
    "a TLS handshake": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), "TLS"),
    "an HTTP request": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP"),
    "an HTTP post": (b"POST /ids HTTP/1.1\r\n\r\n", "HTTP"),
    "a command's probe": (PROBE + b" /- HTTP/1.0\r\n\r\n", "has not answered the command in time"),
    "an SSH greeting": (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
    "a frame too large": ((101 << 20).to_bytes(4, "big"), "socket.request.max.bytes"),
    "a negative length": (b"\xff\xff\xff\xff", "socket.request.max.bytes"),
    "a frame without a header": (framed(b"\x00\x03"), "too short for a request header"),
    "an empty frame": (framed(b""), "too short for a request header"),
    "an API nobody has": (framed(header(999, 0)), "API key 999"),
    "an old version": (framed(header(METADATA, 99)), "Metadata v99 is not served; v0 to v13 are"),
    "a body cut short": (framed(header(METADATA, 1) + b"\x00\x00\x00\x05\x00"), "Metadata"),
    "an array longer than its frame": (framed(header(METADATA, 1) + b"\x7f\xff\xff\xff"), "Metadata"),
    "a client id longer than its frame": (framed(b"\0\x03\0\0\0\0\0\x01\x7f\xff"), "client id"),
}


@pytest.mark.parametrize("data, reason", STRANGERS.values(), ids=STRANGERS)
def test_a_peer_that_does_not_speak_kafka_is_closed_with_the_reason(broker, client, data, reason):
    other = broker.connect()
    client.feed(data)
    assert client.closed is not None and reason in client.closed
    assert not client.replies()
    assert is_served(other)
    assert not broker.reported, "it is the peer's fault, not one of our own"


@pytest.mark.parametrize("data, reason", STRANGERS.values(), ids=STRANGERS)
def test_it_is_recognised_however_its_bytes_come(broker, client, data, reason):
    for byte in data:
        client.feed(bytes([byte]))
    assert client.closed is not None and reason in client.closed


def test_nothing_is_read_from_a_peer_that_was_closed(client):
    client.feed(framed(b"") + client.frame(METADATA, 1, {"topics": []})[1])
    client.feed(client.frame(METADATA, 1, {"topics": []})[1])
    assert not client.replies()


def test_requests_before_the_bad_one_are_answered(client):
    sent, data = client.frame(METADATA, 1, {"topics": []})
    client.feed(data + framed(b""))
    assert [answered for answered, _ in client.replies()] == [sent]


@pytest.mark.parametrize("cut", [2, 4, 9, 20])
def test_half_a_frame_and_silence_ends_by_the_idle_timeout(broker, cut):
    client, other = broker.connect(), broker.connect()
    client.feed(client.frame(METADATA, 1, {"topics": [{"name": "flights"}]})[1][:cut])
    idle_ms = broker.services.config.connections_max_idle_ms
    broker.at(idle_ms // 2)
    assert is_served(other)
    broker.at(idle_ms + 2_000)
    begun = "flakelog.queued.request.ms" in client.closed  # its length is known
    assert begun or ("in the middle of a frame" in client.closed and "connections.max.idle.ms" in client.closed)
    assert begun == (cut >= 4)
    assert is_served(other)


def test_who_says_something_is_not_closed_before_the_idle_timeout_and_at_most_a_second_after_it(broker):
    began_ms, idle_ms = broker.now_ms, broker.services.config.connections_max_idle_ms
    client = broker.connect()
    broker.at(began_ms + 900)  # too early to be noted
    assert is_served(client)
    broker.at(began_ms + 900 + idle_ms)
    assert not client.closed
    broker.at(began_ms + 1_000 + idle_ms)
    assert client.closed


def test_bytes_of_a_connection_that_is_gone_are_nobodys(broker):
    client = broker.connect()
    broker.engine.closed(client.conn)
    broker.at(5_000)
    broker.engine.receive(client.conn, memoryview(bytearray(b"\0\0\0\1a")), broker.now)
    assert broker.engine.take_replies() == []


def test_a_piece_of_a_frame_that_only_makes_it_longer_leaves_nothing_to_be_looked_at(broker):
    client = broker.connect()
    request = bytearray(b"\0\x01\0\0") + bytes(1 << 16)
    receive = partial(broker.engine.receive, client.conn, now=broker.now)
    for piece in (request[:1], request[1:1000]):
        receive(memoryview(piece))
        broker.engine.execute(broker.now)
    assert not receive(memoryview(request[1000:2000])), "its length is known, and it has its own memory"
    assert receive(memoryview(request[2000:])), "it is whole, and there is something to be said to it"
    broker.engine.execute(broker.now)
    assert broker.engine.take_closes() == [client.conn]


MOST_ITEMS, MOST_PARTITIONS = DEFAULT_LIMITS.items, DEFAULT_LIMITS.partitions
HALF, ALL_TOPICS = MOST_ITEMS // 2, uvarint(MOST_PARTITIONS + 2)
TWICE_TOPICS = b"\x03" + 2 * (b"\x02g" + uvarint(HALF + 1) + b"\x01\x01\0" * HALF + b"\0") + b"\0\0"
ITEMS, PARTITIONS = "flakelog.max.request.items is 50000", "flakelog.max.request.partitions is 10000"
MANY = {
    "keys": (FIND_COORDINATOR, 4, b"\0" + uvarint(MOST_ITEMS + 2) + b"\x01" * MOST_ITEMS * 2, ITEMS),
    "topics of groups": (OFFSET_FETCH, 8, TWICE_TOPICS, ITEMS),
    "topics to produce to": (PRODUCE, 9, bytes(7) + ALL_TOPICS + b"\x02a\x01\0" * MOST_PARTITIONS, PARTITIONS),
    "topics to fetch": (FETCH, 12, bytes(25) + ALL_TOPICS + b"\x02a\x01\0" * MOST_PARTITIONS, PARTITIONS),
    "bytes": (FIND_COORDINATOR, 4, bytes(16 << 20), "flakelog.max.cold.request.bytes is 16777216"),
    "tags": (FIND_COORDINATOR, 4, b"\0\x01" + uvarint(1_001) + bytes(10_000), "1001 tagged fields"),
}


@pytest.mark.parametrize("key, version, body, reason", MANY.values(), ids=MANY)
def test_a_request_of_more_items_than_the_limit_is_not_decoded(broker, client, key, version, body, reason):
    """If each item took a single byte, a request could hold a hundred million and delay all clients for minutes."""
    client.feed(framed(header(key, version) + b"\0" + body))
    assert reason in client.closed
    is_served(broker.connect())


def test_a_connection_past_the_limit_is_closed_immediately():
    broker = EngineBroker(max_connections=2)
    first, second, third = (broker.connect() for _ in range(3))
    assert first.closed is second.closed is None
    assert third.closed == "max.connections is 2"
    broker.engine.closed(first.conn)
    assert broker.connect().closed is None


# --- versions --------------------------------------------------------------------------------------------------------


def test_an_unknown_version_of_api_versions_is_answered_in_v0_with_those_that_are(client):
    """The answer tells a newer client which version to use (KIP-511)."""
    client.feed(framed(header(API_VERSIONS, 99, correlation_id=5) + b"\0\0\0\0"))
    body = bytes(client.received[8:])
    assert int.from_bytes(client.received[4:8], "big") == 5
    answer = cold.decode(API_VERSIONS, 0, "response", body, 0, 0).newest
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys] == [(API_VERSIONS, 0, 4)]
    assert client.closed is None


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("name", ["", "a b", "-a", "a.", "a_b"])
def test_a_client_whose_software_has_no_name_is_told_so_and_nothing_else(client, version, name):
    """KIP-511 defines the syntax of the name."""
    answer = client.ask(API_VERSIONS, version, {"client_software_name": name, "client_software_version": "1"})
    assert (answer.error_code, answer.api_keys) == (ErrorCode.INVALID_REQUEST, ())


@pytest.mark.parametrize("version", range(5))
def test_api_versions_says_what_is_served(client, version):
    """The range of Produce begins at 0, because older librdkafka otherwise turns compression off (KAFKA-18659)."""
    named = {"client_software_name": "test", "client_software_version": "1"} if version >= 3 else {}
    ranges = {
        api.api_key: (api.min_version, api.max_version)
        for api in client.ask(API_VERSIONS, version, named).api_keys
    }
    assert ranges[PRODUCE] == (0, 13) and ranges[FETCH] == (4, 18) and ranges[11] == (0, 9)


# --- batches ---------------------------------------------------------------------------------------------------------


def produced(client, batch):
    return client.ask(PRODUCE, 9, produce_request("flights", batch=batch))[0]


def test_a_batch_with_a_wrong_crc_is_corrupt_and_not_in_the_log(client):
    batch = batch_of(b"a")
    batch[-1] ^= 1
    result = produced(client, batch)
    assert result.error_code == ErrorCode.CORRUPT_MESSAGE and "CRC" in result.message
    assert client.fetch("flights") == []


@pytest.mark.parametrize("size", [0, 20, 60, 65])
def test_a_truncated_batch_is_refused_and_not_in_the_log(client, size):
    result = produced(client, batch_of(b"a")[:size])
    assert result.error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert client.fetch("flights") == []


def test_a_bad_batch_without_acks_can_only_be_told_by_closing(broker, client):
    """Kafka closes the connection too, because with acks=0 no answer can carry the error."""
    batch = batch_of(b"a")
    batch[-1] ^= 1
    client.send(PRODUCE, 9, produce_request("flights", batch=batch, acks=0))
    assert "acks=0" in client.closed


# --- frames ----------------------------------------------------------------------------------------------------------


def conversation(client):
    """Return requests of several APIs as [(correlation id, bytes)]."""
    frames = [
        (API_VERSIONS, 3, {"client_software_name": "test", "client_software_version": "1"}),
        (METADATA, 12, {"topics": [{"name": "flights"}], "allow_auto_topic_creation": False}),
        (PRODUCE, 9, produce_request("flights", b"one", b"two")),
        (PRODUCE, 7, produce_request("flights", b"x" * 5_000)),
        (LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": [
            {"name": "flights", "partitions": [{"partition_index": 0, "timestamp": -1}]}]}),
        (FETCH, 12, fetch_request("flights")),
        (FETCH, 4, fetch_request("flights", 2)),
    ]  # fmt: skip
    return [client.frame(*request) for request in frames]


def made():
    broker = EngineBroker()
    broker.create("flights")
    return broker.connect()


def test_bytes_one_by_one_are_answered_as_bytes_together():
    """TCP may cut a stream anywhere, so every decoder is fed byte by byte."""
    together, one_by_one = made(), made()
    together.feed(b"".join(data for _, data in conversation(together)))
    for _, data in conversation(one_by_one):
        for byte in data:
            one_by_one.feed(bytes([byte]))
    assert one_by_one.received == together.received and together.received
    answers = dict(together.replies())
    assert values_of(answers[6]) == [b"one", b"two", b"x" * 5_000]


@pytest.mark.parametrize("size", [3, 7, 64, 1_000])
def test_frames_may_be_cut_anywhere(size):
    whole, cut = made(), made()
    whole.feed(b"".join(data for _, data in conversation(whole)))
    stream = b"".join(data for _, data in conversation(cut))
    for start in range(0, len(stream), size):
        cut.feed(stream[start : start + size])
    assert cut.received == whole.received


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_an_append(broker, client):
    client.send(FETCH, 12, fetch_request("flights", max_wait_ms=500))
    assert not client.replies()
    broker.connect().produce("flights", b"late")
    ((_, answer),) = client.replies()
    assert values_of(answer) == [b"late"]


def test_a_fetch_waits_until_there_are_enough_bytes(broker, client):
    client.send(FETCH, 12, fetch_request("flights", max_wait_ms=500, min_bytes=100))
    producer = broker.connect()
    producer.produce("flights", b"a")
    assert not client.replies()
    producer.produce("flights", b"b")
    ((_, answer),) = client.replies()
    assert values_of(answer) == [b"a", b"b"]


def test_a_fetch_is_answered_with_what_there_is_when_its_time_is_over(broker, client):
    client.send(FETCH, 12, fetch_request("flights", max_wait_ms=500))
    broker.at(broker.now_ms + 499)
    assert not client.replies()
    broker.at(broker.now_ms + 1)
    ((_, answer),) = client.replies()
    assert values_of(answer) == []


def test_pipelined_requests_are_answered_in_order_though_the_first_waits(broker, client):
    waiting = client.send(FETCH, 12, fetch_request("flights", max_wait_ms=5_000))
    ready = client.send(METADATA, 1, {"topics": []})
    assert not client.replies()
    broker.connect().produce("flights", b"now")
    assert [answered for answered, _ in client.replies()] == [waiting, ready]


def test_a_produce_that_ends_the_wait_before_it_is_answered_after_it(broker, client):
    frames = [
        client.frame(FETCH, 12, fetch_request("flights", max_wait_ms=5_000)),
        client.frame(PRODUCE, 9, produce_request("flights", b"mine")),
        client.frame(METADATA, 1, {"topics": []}),
    ]
    client.feed(b"".join(data for _, data in frames))
    assert [answered for answered, _ in client.replies()] == [sent for sent, _ in frames]


def test_nobody_waits_for_a_peer_that_has_gone(broker, client):
    client.send(FETCH, 12, fetch_request("flights", max_wait_ms=5_000))
    broker.engine.closed(client.conn)
    assert len(broker.services.purgatory) == 0


# --- back-pressure ---------------------------------------------------------------------------------------------------


def test_past_the_most_requests_in_flight_reading_stops_and_goes_on_when_one_is_answered():
    """Rule 4 of CONTRIBUTING.md requires back-pressure and forbids unbounded queues."""
    broker = EngineBroker(max_inflight_requests=2)
    broker.create("flights", 3)
    client = broker.connect()
    sent = [client.frame(FETCH, 12, fetch_request("flights", partition=n, max_wait_ms=1_000)) for n in range(3)]
    sent.append(client.frame(METADATA, 1, {"topics": []}))
    client.feed(b"".join(data for _, data in sent))
    assert not client.conn.readable and len(broker.services.purgatory) == 2
    producer = broker.connect()
    producer.produce("flights", b"0", partition=0)
    assert [answered for answered, _ in client.replies()] == [sent[0][0]]
    assert len(broker.services.purgatory) == 2, "the third has been read"
    assert not client.conn.readable
    producer.produce("flights", b"1", partition=1)
    producer.produce("flights", b"2", partition=2)
    assert [answered for answered, _ in client.replies()] == [correlation_id for correlation_id, _ in sent[1:]]
    assert client.conn.readable


def test_a_reader_that_leaves_its_answers_is_not_read_from_until_it_drains():
    broker = EngineBroker(max_queued_bytes=1 << 16)
    broker.create("flights")
    broker.connect().produce("flights", b"x" * 40_000)
    slow = broker.connect(drains=False)
    sent = [slow.frame(FETCH, 12, fetch_request("flights")) for _ in range(4)]
    slow.feed(b"".join(data for _, data in sent))
    assert [answered for answered, _ in slow.replies()] == [correlation_id for correlation_id, _ in sent[:2]]
    assert not slow.conn.readable
    slow.drain()
    assert [answered for answered, _ in slow.replies()] == [correlation_id for correlation_id, _ in sent[2:]]
    slow.drain()
    assert slow.conn.readable and slow.conn.queued_bytes == 0


def test_answers_behind_one_that_waits_take_room_too():
    """They are in memory as well, so a peer with a waiting fetch must not gather an unbounded number of them."""
    broker = EngineBroker(max_queued_bytes=1 << 16)
    broker.create("flights")
    broker.connect().produce("flights", b"x" * 40_000)
    client = broker.connect()
    sent = [client.frame(FETCH, 12, fetch_request("flights", offset=1, max_wait_ms=1_000))]
    sent += [client.frame(FETCH, 12, fetch_request("flights")) for _ in range(5)]
    client.feed(b"".join(data for _, data in sent))
    assert not client.conn.readable and len(client.conn.slots) == 3
    broker.at(broker.now_ms + 1_000)
    assert [answered for answered, _ in client.replies()] == [correlation_id for correlation_id, _ in sent]
    assert client.conn.readable and client.conn.queued_bytes == 0


@pytest.mark.parametrize("max_inflight", [1, 2])
def test_a_connection_is_read_on_after_a_request_that_has_no_answer_where_others_repeat(max_inflight):
    """A request with acks=0 differs from the previous one, and no answer is sent that makes room for the next one."""
    broker = EngineBroker(max_inflight_requests=max_inflight)
    broker.create("flights")
    client = broker.connect()
    client.produce("flights", b"first")
    _, silent = client.frame(PRODUCE, 9, produce_request("flights", b"silent", acks=0))
    correlation_id, metadata = client.frame(METADATA, 9, {"topics": []})
    client.feed(silent + metadata)
    assert [answered for answered, _ in client.replies()] == [correlation_id]
    assert client.fetch("flights") == [b"first", b"silent"]


@pytest.mark.parametrize("acks", [0, 1])
def test_what_came_before_bytes_that_are_no_request_is_done_where_requests_repeat(broker, client, acks):
    client.produce("flights", b"first")
    _, frame = client.frame(PRODUCE, 9, produce_request("flights", b"second", acks=acks))
    client.feed(frame + b"\x7f\xff\xff\xff")
    assert "a frame of 2147483647 bytes" in client.closed
    assert broker.connect().fetch("flights") == [b"first", b"second"]


def test_a_fault_of_our_own_closes_the_connection_it_happened_on_and_is_reported(broker, client):
    """No other error may cross the engine (rule 3 of CONTRIBUTING.md)."""
    other = broker.connect()
    client.produce("flights", b"a")
    broker.storage.read_faults[active(broker, "flights")] = ZeroDivisionError()
    client.send(FETCH, 12, fetch_request("flights"))
    assert client.closed == "a fault of the broker's own; see the log"
    assert "ZeroDivisionError" in broker.reported[0]
    assert is_served(other)


@pytest.mark.parametrize("ended_by", ["an append", "its deadline"])
def test_a_fault_in_an_answer_that_waited_closes_who_waited_and_nobody_else(broker, client, ended_by):
    """The fault occurs while another peer's request is handled, or in `tick`; neither may suffer from it."""
    other, producer = broker.connect(), broker.connect()
    broker.create("trains")
    producer.produce("flights", b"a")
    client.send(FETCH, 12, fetch_request("flights", max_wait_ms=1_000, min_bytes=100))
    other.send(FETCH, 12, fetch_request("trains", max_wait_ms=1_000))
    assert client.replies() == []
    broker.storage.read_faults[active(broker, "flights")] = ZeroDivisionError()
    if ended_by == "an append":
        assert producer.produce("flights", b"a").error_code == 0
    broker.at(broker.now_ms + 1_000)
    assert client.closed == "a fault of the broker's own; see the log"
    assert "ZeroDivisionError" in broker.reported[0] and client.conn.peer in broker.reported[0]
    assert [len(answer.partitions) for _, answer in other.replies()] == [1]
    assert producer.closed is None and len(broker.services.purgatory) == 0


def test_bytes_that_come_while_a_backlog_waits_are_kept():
    """A connection with a backlog waits while others have requests; the receive buffer is used again meanwhile."""
    clock = count(0, 1_000_000)  # each look at the clock takes a millisecond, so every request seems expensive
    broker = EngineBroker(engine=lambda services: Engine(services, lambda: next(clock)))
    flooder, polite = broker.connect(), broker.connect()
    correlation_ids = []

    def flood(number):
        frames = [flooder.frame(METADATA, 12, {"topics": []}) for _ in range(number)]
        correlation_ids.extend(correlation_id for correlation_id, _ in frames)
        flooder.feed(b"".join(data for _, data in frames))

    with broker.turn():
        for _ in range(5):
            flood(20)
            polite.send(METADATA, 12, {"topics": []})
            broker.execute()
    assert [correlation_id for correlation_id, _ in flooder.replies()] == correlation_ids
    assert len(polite.replies()) == 5
