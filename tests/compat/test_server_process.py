"""The server as an operator meets it: bad starts, full disks, clean stops, strangers on the port, slow readers.

Each failure gives one clear line and, if the server ends, an exit code. It damages no data, and all other clients are
still served.
"""

import hashlib
import shutil
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from broker.client.blocking import BlockingClient
from broker.client.core import LATEST
from broker.client.errors import BrokerError
from broker.log.recovery import checkpoint
from broker.record.batch import LENGTH_END, PLACE
from broker.record.records import Record, encode_batch
from broker.wire.errors import ErrorCode
from coordination.free_port import FreePort
from idgen.layout import Layout
from tests.compat.raw_connection import RawConnection, fetch_frame, fetched, frame
from tests.compat.server_process import DidNotStart, ServerProcess
from tests.compat.small_disk import SmallDisk
from tests.patience import SECONDS, until

TOPIC = "kept"
SEGMENT = "00000000000000000000.log"
MESSAGES = 50


def batch_of(*values, producer=None, sequence=-1):
    records = [Record(each, 0, None, value, ()) for each, value in enumerate(values)]
    producer_id, epoch = producer or (-1, -1)
    return encode_batch(
        records, base_timestamp_ms=1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def fill(address, topic=TOPIC, partitions=2):
    with BlockingClient(address) as client:
        client.create_topic(topic, partitions)
        for partition in range(partitions):
            for number in range(MESSAGES):
                client.produce(topic, partition, batch_of(b"message %d" % number))


def values_in(client, topic, partition=0):
    """Return every message, fetched from offset 0 on."""
    found, offset, end = [], 0, client.find_offset(topic, partition, LATEST)
    while offset < end:
        records, offset = client.fetch(topic, partition, offset)
        found += [record.value for record in records]
    return found


def assert_serves(address, topic=TOPIC, partition=0):
    with BlockingClient(address) as client:
        assert values_in(client, topic, partition)[:MESSAGES] == [b"message %d" % n for n in range(MESSAGES)]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Return a data directory after a server's clean stop; tests work on copies."""
    directory = tmp_path_factory.mktemp("stopped") / "data"
    with ServerProcess(directory) as server:
        fill(server.address)
        assert server.stop() == 0
    return directory


@pytest.fixture
def data_dir(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "data"))


def checksums(directory):
    """Return the checksum of each data file.

    The lock file and the registry are left out, because they record the last process and the holders of worker numbers.
    """
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != ".lock"]
    kept = [path for path in files if path.relative_to(directory).parts[0] != "ids"]
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def refused(server):
    """Return the single line that the server prints when it does not start."""
    with pytest.raises(DidNotStart) as caught, server:
        pass
    assert caught.value.exit_code != 0
    lines = caught.value.stderr.splitlines()
    assert len(lines) == 1, caught.value.stderr
    return lines[-1]


# --- bad starts ------------------------------------------------------------------------------------------------------


def test_a_second_server_on_a_directory_is_refused_and_the_first_serves_on(data_dir):
    with ServerProcess(data_dir) as first:
        before = checksums(data_dir)
        line = refused(ServerProcess(data_dir))
        assert "another process uses this data directory" in line and str(first.pid) in line
        assert checksums(data_dir) == before
        assert_serves(first.address)


@pytest.mark.parametrize(
    "setting, scheme", [("listeners", "PLAINTEXT://"), ("flakelog.ids.listener", ""), ("flakelog.http.listener", "")]
)
def test_a_port_in_use_is_named_and_nothing_is_changed(data_dir, setting, scheme):
    before = checksums(data_dir)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:{}".format(taken.getsockname()[1])
        line = refused(ServerProcess(data_dir, {setting: scheme + address}))
    assert f"cannot listen on {address}" in line and "in use" in line
    assert checksums(data_dir) == before
    with ServerProcess(data_dir) as server:
        assert_serves(server.address)


@pytest.mark.parametrize("name", ["metadata.json", "checkpoint"])
@pytest.mark.parametrize("damage", ["garbled", "truncated", "empty", "a directory"])
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_changed(data_dir, name, damage):
    """An unreadable file is never treated as absent, because an empty log would then replace a damaged one."""
    path = data_dir / name
    data = path.read_bytes()
    path.unlink()
    if damage == "a directory":
        path.mkdir()
    else:
        path.write_bytes({"garbled": b"\x00\xffgarbage" + data[9:], "truncated": data[:-7], "empty": b""}[damage])
    before = checksums(data_dir)
    assert name in refused(ServerProcess(data_dir))
    assert checksums(data_dir) == before


def test_a_registry_that_cannot_be_used_is_named(data_dir):
    shutil.rmtree(data_dir / "ids")
    (data_dir / "ids").write_text("a file where a directory belongs")
    before = checksums(data_dir)
    assert str(data_dir / "ids") in refused(ServerProcess(data_dir))
    assert checksums(data_dir) == before


def test_a_partition_that_cannot_be_read_is_offline_by_name_and_the_others_are_served(data_dir):
    path = data_dir / f"{TOPIC}-1" / SEGMENT
    path.unlink()
    path.mkdir()
    with ServerProcess(data_dir) as server:
        assert f"no file {TOPIC}-1/{SEGMENT}" in server.wait_for_log(f"partition {TOPIC}-1 is offline")
        assert_serves(server.address, TOPIC, 0)
        with BlockingClient(server.address) as client, pytest.raises(BrokerError) as caught:
            client.fetch(TOPIC, 1, 0)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_log_shorter_than_what_was_synced_is_offline_by_name(data_dir):
    """Damage below the checkpoint is never cut away (DESIGN section 5)."""
    path = data_dir / f"{TOPIC}-1" / SEGMENT
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    before = checksums(data_dir / f"{TOPIC}-1")
    with ServerProcess(data_dir) as server:
        assert SEGMENT in server.wait_for_log(f"partition {TOPIC}-1 is offline")
        assert_serves(server.address, TOPIC, 0)
        assert server.stop() == 0
    assert checksums(data_dir / f"{TOPIC}-1") == before


@pytest.mark.parametrize("assignment, wanted", [("log.segment.byte=1", "log.segment.bytes"), ("num.partitions=0", "1")])
def test_an_unknown_or_impossible_setting_is_refused_with_what_would_be_right(tmp_path, assignment, wanted):
    name, _, value = assignment.partition("=")
    line = refused(ServerProcess(tmp_path / "data", {name: value}))
    assert name in line and wanted in line
    assert not (tmp_path / "data").exists()


# --- full disks ------------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_at_the_first_start_is_named(tmp_path):
    with SmallDisk(tmp_path / "disk", 1 << 20) as disk:
        disk.fill()
        line = refused(ServerProcess(disk.directory / "data", prefix=disk.prefix))
        assert "No space left on device" in line and str(disk.directory) in line


def test_a_disk_that_is_full_at_a_later_start_damages_nothing(tmp_path, stopped):
    with SmallDisk(tmp_path / "disk", 1 << 20) as disk:
        shutil.copytree(stopped, disk.root / "data")
        before = checksums(disk.root / "data")
        disk.fill()
        line = refused(ServerProcess(disk.directory / "data", prefix=disk.prefix))
        assert "No space left on device" in line
        assert checksums(disk.root / "data") == before
        disk.free()
        with ServerProcess(disk.directory / "data", prefix=disk.prefix) as server:
            assert_serves(server.address)


@pytest.mark.parametrize("durable", ["false", "true"])
def test_a_disk_that_fills_refuses_messages_keeps_those_it_took_and_serves_on_when_there_is_space(tmp_path, durable):
    settings = {"log.flush.offset.checkpoint.interval.ms": 100, "log.segment.bytes": 1 << 20}
    with SmallDisk(tmp_path / "disk", 6 << 20) as disk:
        with ServerProcess(disk.directory / "data", settings, prefix=disk.prefix) as server:
            with BlockingClient(server.address) as client:
                client.create_topic(TOPIC, 1, {"flakelog.durable.acks": durable})
                disk.take(1 << 20)
                producer = client.run(client.core.init_producer_id())
                taken = []
                produce_until_refused(client, producer, 50_000, taken)
                mark = server.mark()

                def refuses_all():
                    """Return False if a running checkpoint or a truncated journal has given space back meanwhile."""
                    for size in (50_000, 1_000, 1):  # the log's last page still takes some small messages
                        produce_until_refused(client, producer, size, taken)
                    disk.fill()
                    number = len(taken)
                    for _ in range(3):
                        produce_until_refused(client, producer, 50_000, taken)
                    return len(taken) == number and makes_no_topic(client)

                def has_met_checkpoint():
                    """Return True if a checkpoint failed, or if space was given back for one with all messages."""
                    said = "the checkpoint could not be written" in server.log_since(mark)
                    return said or checkpointed(disk) == len(taken)

                until(lambda: refuses_all() and has_met_checkpoint(), "a disk that stays full, for the checkpoint too")
                assert values_in(client, TOPIC) == taken
                disk.free()
                assert is_taken(client, batch_of(b"after"))
                client.create_topic("another")
                assert values_in(client, TOPIC) == [*taken, b"after"]
            assert "fault of the broker's own" not in server.log
            server.restart()
            with BlockingClient(server.address) as client:
                assert values_in(client, TOPIC) == [*taken, b"after"]


def produce_until_refused(client, producer, size, taken):
    """Produce messages until one is refused, at most two hundred, and append the acknowledged ones to `taken`.

    A disk that takes more small messages has been given space back, which large messages fill sooner. The producer is
    idempotent, so that its state is part of each checkpoint.
    """
    for number in range(len(taken), len(taken) + 200):
        value = b"%d %s" % (number, bytes(size))
        if not is_taken(client, batch_of(value, producer=producer, sequence=number)):
            return
        taken.append(value)


def is_taken(client, batch):
    """Return True if the batch was acknowledged, False if the disk is full.

    While a worker thread still undoes an earlier refused append, retry, as every producer does.
    """

    def answered():
        try:
            client.produce(TOPIC, 0, batch)
        except BrokerError as error:
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
            return None if "is being undone; try again" in str(error) else "refused"
        return "taken"

    return until(answered, "the end of what is undone") == "taken"


def checkpointed(disk):
    """Return how many messages the checkpoint on the disk covers."""
    path, log = disk.root / "data" / checkpoint.FILE, f"{TOPIC}-0"
    positions = checkpoint.decode(path.read_bytes()) if path.exists() else {}
    return positions[log].offset if log in positions else 0


def makes_no_topic(client):
    try:
        client.create_topic("too-many")
    except BrokerError as error:
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        return True
    client.delete_topic("too-many")
    return False


# --- stopping --------------------------------------------------------------------------------------------------------


def garble_first_batch(data_dir):
    """Invert a byte in the first batch of the log, so that the CRC of this batch is wrong."""
    path = data_dir / f"{TOPIC}-0" / SEGMENT
    data = bytearray(path.read_bytes())
    data[65] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_after_a_clean_stop_no_batch_is_read_at_the_next_start(tmp_path, number):
    with ServerProcess(tmp_path / "data") as server:
        fill(server.address)
        assert server.stop(number) == 0
        garble_first_batch(tmp_path / "data")
        mark = server.mark()
        server.start()
        with BlockingClient(server.address) as client:
            assert client.find_offset(TOPIC, 0, LATEST) == MESSAGES
        assert server.log_since(mark).splitlines() == [server.log_since(mark).splitlines()[0]]  # `ready:` alone
        assert "Traceback" not in server.log


def test_after_a_kill_every_batch_past_the_checkpoint_is_read(tmp_path):
    """After a kill the server reads every batch past the checkpoint, and so finds the same damage."""
    with ServerProcess(tmp_path / "data") as server:
        fill(server.address)
        server.kill()
        garble_first_batch(tmp_path / "data")
        server.start()
        assert "ends at offset 0" in server.wait_for_log(f"partition {TOPIC}-0 recovered")


# --- strangers -------------------------------------------------------------------------------------------------------

STRANGERS = {
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), "a TLS handshake"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "an HTTP request"),
    "an SSH greeting": (b"SSH-2.0-OpenSSH_9.6\r\n", "an SSH greeting"),
    "garbage": (bytes(range(255, 0, -1)), "bytes"),
    "zeros": (bytes(1024), "bytes"),
    "an oversized frame": (b"\x7f\xff\xff\xff", "socket.request.max.bytes"),
    "an unknown API": (frame(9999, 0, 1, b""), "API key 9999"),
    "an unknown version": (frame(1, 99, 1, b""), "v99"),
    "a Fetch cut short": (fetch_frame(1, TOPIC)[:3] + b"\x14" + fetch_frame(1, TOPIC)[4:24], "Fetch"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_what_is_not_kafka_is_named_with_its_peer_and_the_others_are_served_on(broker, kind):
    data, reason = STRANGERS[kind]
    with BlockingClient(broker.address) as bystander, RawConnection(broker.address) as stranger:
        bystander.topics()
        stranger.socket.sendall(data)
        line = broker.wait_for_log(f"connection of {stranger.name} closed")
        assert reason in line
        stranger.read_to_end()
        assert bystander.topics() is not None


def test_a_client_set_up_for_sasl_is_refused_as_by_kafka_and_the_operator_is_told(broker):
    told = []
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "a"}
    sasl |= {"sasl.password": "b", "error_cb": told.append, "log_level": 0}
    producer = Producer({"bootstrap.servers": broker.address} | sasl)
    until(lambda: [producer.poll(0.05)] and told)
    assert told[0].code() == KafkaError._AUTHENTICATION and "current SASL state" in told[0].str()
    assert "security.protocol=PLAINTEXT" in broker.wait_for_log("it asks for SASL")


def test_silence_is_closed_after_connections_max_idle_ms(tmp_path):
    begun = b"", b"\x00", b"\x00\x00\x01\x00\x00\x01"  # the last is half a frame
    with ServerProcess(tmp_path / "data", {"connections.max.idle.ms": 4_000}) as server, ExitStack() as stack:
        silent = [stack.enter_context(RawConnection(server.address)) for _ in begun]
        for connection, data in zip(silent, begun):
            connection.socket.sendall(data)
        for connection, data in zip(silent, begun):
            assert connection.read_to_end() == b""
            line = server.wait_for_log(f"connection of {connection.name} closed")
            assert "connections.max.idle.ms" in line
            assert ("in the middle of a frame" in line) == bool(data)
        with BlockingClient(server.address) as client:
            client.topics()


def test_one_connection_more_than_max_connections_is_closed_and_the_others_stay(tmp_path):
    with ServerProcess(tmp_path / "data", {"max.connections": 2}) as server:
        with BlockingClient(server.address) as first, BlockingClient(server.address) as second:
            assert first.topics() == second.topics()
            with RawConnection(server.address) as third:
                assert third.read_to_end() == b""
                assert "max.connections is 2" in server.wait_for_log(f"connection of {third.name} closed")
            assert first.topics() == second.topics()


# --- readers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def big(broker):
    """Return (topic, its log's bytes): four megabytes in batches of 300 kB."""
    log, offset = bytearray(), 0
    with BlockingClient(broker.address) as client:
        client.create_topic("big")
        for number in range(14):
            batch = batch_of(bytes([number]) * 150_000, bytes([number + 1]) * 150_000)
            client.produce("big", 0, batch)
            PLACE.pack_into(batch, 0, offset, len(batch) - LENGTH_END, 0)
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
    """The server stops reading from a connection with too many queued answers (DESIGN's fourth rule).

    The limit is flakelog.max.queued.bytes.per.connection.
    """
    limit = 1 << 20
    with ServerProcess(tmp_path / "data", {"flakelog.max.queued.bytes.per.connection": limit}) as server:
        fill(server.address)
        before_kib = server.status("VmRSS")
        with RawConnection(server.address, 4096) as slow, BlockingClient(server.address) as other:
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


# --- other ways to run it --------------------------------------------------------------------------------------------


def test_it_listens_on_ipv6(tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with ServerProcess(tmp_path / "data", {"listeners": "PLAINTEXT://[::1]:0"}) as server:
        assert server.address.startswith("[::1]:")
        fill(server.address)
        assert_serves(server.address)
        with RawConnection(server.address) as stranger:
            stranger.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            server.wait_for_log("connection of [::1]:")


def test_over_zookeeper_two_servers_stamp_with_numbers_of_their_own(tmp_path, zookeeper):
    where = f"{zookeeper.hosts}/server-process"
    one, two = [ServerProcess(tmp_path / name, zookeeper=where) for name in ("one", "two")]
    with one, two:
        workers = []
        for server in (one, two):
            assert f"ids unique in zookeeper {where}" in server.log
            fill(server.address)
            with BlockingClient(server.address) as client:
                records, _ = client.fetch(TOPIC, 0, 0)
            workers.append({Layout().unpack(record.id).worker_number for record in records})
        assert len(workers[0]) == len(workers[1]) == 1 and workers[0] != workers[1]
        assert one.stop() == 0


def test_without_its_zookeeper_it_says_so(tmp_path):
    with FreePort() as nobody:
        line = refused(ServerProcess(tmp_path / "data", {"flakelog.start.timeout.ms": 1_000}, zookeeper=nobody.address))
    assert f"no ZooKeeper answered at {nobody.address} in 1000 ms" in line
