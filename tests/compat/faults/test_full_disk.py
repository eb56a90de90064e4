"""Full disks: the server names them, refuses messages, and serves on when there is space."""

import shutil

import pytest

from broker.client.blocking import Client
from broker.client.core import EARLIEST
from broker.client.errors import BrokerError
from broker.log import checkpoint
from broker.log.storage import reserve
from broker.settings.config import BrokerConfig
from broker.wire.errors import ErrorCode
from flakelog.admin import Admin
from idgen.client.blocking import IdClient
from idgen.client.core import IdServiceError
from tests.compat.faults.small_disk import SmallDisk
from tests.compat.served_data import MESSAGES, TOPIC, assert_serves, batch_of, refused, values_in
from tests.compat.server.test_health import health
from tests.compat.server.test_metrics import read
from tests.compat.server_process import ServerProcess
from tests.patience import until


def test_a_disk_that_is_full_at_the_first_start_is_named(tmp_path):
    with SmallDisk(tmp_path / "disk", 1 << 20) as disk:
        disk.fill()
        line = refused(ServerProcess(disk.directory / "data", prefix=disk.prefix))
        assert "No space left on device" in line and str(disk.directory) in line


@pytest.mark.parametrize("killed", [False, True])
def test_a_server_that_starts_on_a_full_disk_serves_reads_and_goes_on_when_there_is_space(tmp_path, stopped, killed):
    with SmallDisk(tmp_path / "disk", 3 << 20) as disk:
        shutil.copytree(stopped, disk.root / "data")
        server = ServerProcess(disk.directory / "data", prefix=disk.prefix)
        more = []
        if killed:
            with server, Client(server.address) as client:
                more = [b"%d %s" % (number, bytes(1_000)) for number in range(100)]
                for value in more:
                    client.produce(TOPIC, 0, batch_of(value))
        disk.take(1 << 20)
        disk.fill()
        with server:
            server.wait_for_log("data is full: ")
            assert_serves(server.address)
            assert health(server, "/health/live")[0] == 200
            status, body = health(server, "/health/ready")
            assert status == 503 and not body["partitions_offline"]
            assert body["disk_full"]["usable_bytes"] < BrokerConfig().disk_full_bytes
            figures = read(server)
            assert figures["flakelog_disk_full", ()] == 1
            assert figures["flakelog_disk_full_since_timestamp_seconds", ()] > 0
            with Client(server.address) as client:
                assert not is_taken(client, batch_of(bytes(50_000))) and not is_taken(client, batch_of(b"a line"))
                disk.free()
                until(lambda: health(server, "/health/ready")[0] == 200, "readiness")
                assert is_taken(client, batch_of(b"after"))
                assert values_in(client, TOPIC)[MESSAGES:] == [*more, b"after"]
                client.create_topic("another")
            server.wait_for_log("has space again")
            assert read(server)["flakelog_disk_full", ()] == 0
            assert server.stop() == 0
        assert "fault of the broker's own" not in server.log and "Traceback" not in server.log
        with server:
            with Client(server.address) as client:
                assert values_in(client, TOPIC)[MESSAGES:] == [*more, b"after"]


def test_ids_on_a_full_disk_end_after_the_lead_with_an_error_by_name_and_go_on_when_there_is_space(tmp_path):
    lead = {"flakelog.ids.lead.ms": 1_000, "flakelog.ids.raise.interval.ms": 200, "flakelog.ids.retry.ms": 100}
    with SmallDisk(tmp_path / "disk", 1 << 20) as disk:
        with ServerProcess(disk.directory / "data", lead, prefix=disk.prefix) as server:
            with IdClient(server.ids) as ids:
                before = ids.get_id()
                disk.take(1 << 19)
                disk.fill()
                server.wait_for_log("No space left on device")

                def error_of_full_disk():
                    """Fill the disk again first: the end of a replacement under way gives a page back."""
                    disk.fill()
                    return error_of(ids)

                error = until(error_of_full_disk, "ids that end", pause_s=0.05)
                assert str(error).startswith("LeadExhausted")
                assert health(server, "/health/ready")[1]["ids_problem"] is not None
                with Client(server.address) as client:
                    assert makes_no_topic(client)
                disk.free()
                until(lambda: error_of(ids) is None, "ids that go on")
                assert ids.get_id() > before


def error_of(ids):
    try:
        ids.get_id()
    except IdServiceError as error:
        return error
    return None


@pytest.mark.parametrize("durable", ["false", "true"])
def test_a_disk_that_fills_refuses_messages_keeps_those_it_took_and_serves_on_when_there_is_space(tmp_path, durable):
    settings = {"log.flush.offset.checkpoint.interval.ms": 100, "log.segment.bytes": 1 << 20}
    with SmallDisk(tmp_path / "disk", 6 << 20) as disk:
        with ServerProcess(disk.directory / "data", settings, prefix=disk.prefix) as server:
            with Client(server.address) as client:
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
                until(lambda: is_taken(client, batch_of(b"after")), "a disk with space")
                client.create_topic("another")
                assert values_in(client, TOPIC) == [*taken, b"after"]
            assert "fault of the broker's own" not in server.log
            server.restart()
            with Client(server.address) as client:
                assert values_in(client, TOPIC) == [*taken, b"after"]


# --- the ways out that docs/operations.md names --------------------------------------------------------------------


def deletes_records(admin):
    assert admin.delete_records({(TOPIC, 0): 30}) == {(TOPIC, 0): 30}


def deletes_a_topic(admin):
    admin.delete_topic("old")


def lowers_retention(admin):
    admin.alter_topic_configs(TOPIC, {"retention.bytes": "100000"})


@pytest.mark.parametrize("others", [True, False], ids=["filled-by-others", "filled-by-messages"])
@pytest.mark.parametrize("makes_space", [deletes_records, deletes_a_topic, lowers_retention])
def test_a_disk_that_is_full_to_the_last_byte_is_left_by_deleting_messages(tmp_path, makes_space, others):
    settings = {"log.segment.bytes": 1 << 18}
    with SmallDisk(tmp_path / "disk", 6 << 20) as disk:
        with ServerProcess(disk.directory / "data", settings, prefix=disk.prefix) as server:
            with Admin(server.address) as admin, Client(server.address) as client:
                client.create_topic("old")
                for _ in range(20):
                    client.produce("old", 0, batch_of(bytes(50_000)))
                client.create_topic(TOPIC)
                until((disk.root / "data" / reserve.FILE).exists, "the reserve")
                taken = [b"%d %s" % (number, bytes(50_000)) for number in range(200)]
                while is_taken(client, batch_of(taken[0])):
                    taken.append(taken.pop(0))
                if others:
                    disk.fill()
                until(lambda: health(server, "/health/ready")[1]["disk_full"], "a full disk")
                for _ in range(20):
                    assert not is_taken(client, batch_of(b"a line"))
                makes_space(admin)
                until(lambda: is_taken(client, batch_of(b"after")), "a disk with space")
                until((disk.root / "data" / reserve.FILE).exists, "the next reserve")
                start = client.find_offset(TOPIC, 0, EARLIEST)
                assert (start == 0) == (makes_space is deletes_a_topic)
            server.kill()
            with server, Client(server.address) as client:
                assert client.find_offset(TOPIC, 0, EARLIEST) == start
                names = {topic.name for topic in client.topics()}
                assert TOPIC in names and ("old" in names) == (makes_space is not deletes_a_topic)
        assert "Traceback" not in server.log


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
