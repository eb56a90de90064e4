"""A disk that becomes read-only, as ext4 does after an error with `errors=remount-ro`.

Kafka takes the whole log directory offline at the first failed write (KIP-112).
"""

import errno
import os

import pytest

from broker.log.storage.os_storage import OsStorage
from broker.log.storage.port import StorageError
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import FETCH, EngineBroker, fetch_request

REASON = "the disk of /memory is read-only since a write failed ("
PARTITIONS = 4


CONFIGS = {}, {"flakelog_durable_acks": "true"}, {"flush_messages": 1}


@pytest.fixture(params=CONFIGS, ids=["plain", "durable", "flush"])
def broker(request):
    broker = EngineBroker()
    broker.create("flights", PARTITIONS, **request.param)
    for partition in range(PARTITIONS):
        assert broker.connect().produce("flights", b"kept", partition=partition).error_code == 0
    return broker


def test_the_first_write_that_fails_takes_all_partitions_offline_with_one_line(broker):
    broker.storage.is_read_only = True
    client = broker.connect()
    assert client.produce("flights", b"lost").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.at(broker.now_ms + 1_000)
    offline = broker.services.logs.offline
    assert sorted(offline) == [f"flights-{partition}" for partition in range(PARTITIONS)]
    assert len(set(offline.values())) == 1 and offline["flights-1"].startswith(REASON)
    (line,) = [line for line in broker.reported if "offline" in line]
    assert line.startswith(REASON)
    assert line.endswith("Its 4 partitions are offline until a start finds the disk writable")
    for partition in range(PARTITIONS):
        assert client.produce("flights", b"no", partition=partition).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        answer = client.ask(FETCH, 12, fetch_request("flights", 0, partition))
        assert answer.partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_checkpoint_that_cannot_be_written_does_so_before_any_client_writes(broker):
    assert broker.connect().produce("flights", b"not in the checkpoint").error_code == 0
    broker.storage.is_read_only = True
    broker.at(broker.now_ms + 70_000)
    broker.at(broker.now_ms + 1_000)
    assert len(broker.services.logs.offline) == PARTITIONS
    assert len([line for line in broker.reported if "are offline" in line]) == 1


def test_a_start_on_the_mended_disk_serves_all_that_was_acknowledged(broker):
    broker.storage.is_read_only = True
    broker.connect().produce("flights", b"lost")
    broker.storage.is_read_only = False
    after = broker.restarted(clean=False)
    assert not after.services.logs.offline and after.services.logs.disk.read_only is None
    for partition in range(PARTITIONS):
        assert after.connect().fetch("flights", partition=partition)[0] == b"kept"
        assert after.connect().produce("flights", b"again", partition=partition).error_code == 0


def test_a_server_stops_on_a_read_only_disk_and_leaves_no_note_of_a_clean_stop(broker):
    broker.storage.is_read_only = True
    broker.connect().produce("flights", b"lost")
    broker.services.close()
    assert ".stopped-cleanly" not in broker.storage.files


def test_an_error_of_one_file_leaves_the_other_partitions_online(broker):
    broker.storage.failing_syncs.add(f"flights-0/{0:020d}.log")
    broker.connect().produce("flights", b"more")
    broker.services.logs.syncs.start_round()
    broker.pump()
    broker.at(broker.now_ms + 1_000)
    assert list(broker.services.logs.offline) == ["flights-0"] and broker.services.logs.disk.read_only is None


def test_a_write_that_the_system_refuses_because_the_file_system_is_read_only_says_so(tmp_path, monkeypatch):
    file = OsStorage(str(tmp_path)).open("file", create=True)

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(StorageError, match="Read-only file system") as refused:
        file.append(b"a")
    assert refused.value.is_read_only and not refused.value.full
