"""Full disks: the server names them, refuses messages, and serves on when there is space."""

import shutil

import pytest

from broker.client.blocking import BlockingClient
from broker.client.errors import BrokerError
from broker.log.recovery import checkpoint
from broker.wire.errors import ErrorCode
from tests.compat.served_data import TOPIC, assert_serves, batch_of, checksums, refused, values_in
from tests.compat.server_process import ServerProcess
from tests.compat.small_disk import SmallDisk
from tests.patience import until


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
