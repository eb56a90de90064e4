"""Files that cannot be read while the broker runs: their partition goes offline by name, and no other one does.

Kafka takes a whole log directory offline at the first IOException (KIP-112).
"""

import pytest

from broker.log.integrity.guard import FIRST_PASS_MS
from broker.log.storage.os_storage import OsStorage
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import FETCH, LIST_OFFSETS, WALL_MS, EngineBroker, fetch_request
from tests.broker.log.integrity.mutations import append
from tests.broker.log.integrity.test_guard import IDS, INDEX, LOG, filled, log_of, scrubbed

NEEDED_BY_A_FETCH = LOG, IDS, INDEX


def offline_lines(broker):
    return [line for line in broker.reported if "offline" in line]


def fetch_code(broker, topic="flights", offset=0):
    answer = broker.connect().ask(FETCH, 12, fetch_request(topic, offset, wants_ids=True))
    return answer.partitions[0].error_code


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("path", NEEDED_BY_A_FETCH)
def test_a_file_of_a_closed_segment_that_cannot_be_read_takes_its_partition_offline_by_name(path, clean):
    before = filled()
    before.create("others")
    append(before, "others", b"served")
    broker = before.restarted(clean=clean)
    broker.storage.failing_reads.add(path)
    assert fetch_code(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.services.logs.offline == {"flights-0": f"{path}: Input/output error"}
    assert fetch_code(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.connect().produce("flights", b"refused").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert offline_lines(broker) == [f"partition flights-0 is offline: {path}: Input/output error"]
    assert fetch_code(broker, "others") == 0


@pytest.mark.parametrize("path", NEEDED_BY_A_FETCH)
def test_a_file_that_becomes_unreadable_after_it_was_verified_does_so_too(path):
    broker = filled().restarted()
    assert fetch_code(broker) == 0
    broker.storage.failing_reads.add(path)
    assert fetch_code(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(offline_lines(broker)) == 1


@pytest.mark.parametrize("path", [LOG, IDS])
def test_so_does_a_closed_file_that_cannot_be_opened(path, tmp_path):
    """A symbolic link to itself cannot be opened, not even by root."""
    broker = EngineBroker(OsStorage(str(tmp_path)))
    broker.create("flights", segment_bytes=1024)
    for _ in range(4):
        append(broker, "flights", b"x" * 800)
    broker = broker.restarted()
    (tmp_path / path).unlink()
    (tmp_path / path).symlink_to(tmp_path / path)
    assert fetch_code(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    ((name, reason),) = broker.services.logs.offline.items()
    assert name == "flights-0" and reason.startswith(f"{tmp_path / path}: ")


def test_a_lookup_by_time_takes_a_partition_offline_whose_file_it_cannot_read():
    broker = filled().restarted()
    broker.storage.failing_reads.add(LOG)
    topics = [{"name": "flights", "partitions": [{"partition_index": 0, "timestamp": WALL_MS}]}]
    answer = broker.connect().ask(LIST_OFFSETS, 5, {"replica_id": -1, "isolation_level": 0, "topics": topics})
    assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(offline_lines(broker)) == 1


@pytest.mark.parametrize("verified", [True, False])
def test_a_lack_of_descriptors_fails_a_read_and_leaves_the_partition_online(verified):
    broker = filled().restarted()
    if verified:
        assert fetch_code(broker) == 0
    broker.storage.lacking_reads.add(LOG)
    assert fetch_code(broker) == ErrorCode.KAFKA_STORAGE_ERROR
    assert not broker.services.logs.offline and not offline_lines(broker)
    broker.storage.lacking_reads.clear()
    assert fetch_code(broker) == 0


@pytest.mark.parametrize("path", NEEDED_BY_A_FETCH)
def test_the_scrub_takes_a_partition_offline_whose_file_it_cannot_read_with_one_line(path):
    broker = filled().restarted()
    broker.storage.failing_reads.add(path)
    scrubbed(broker)
    assert offline_lines(broker) == [f"partition flights-0 is offline: {path}: Input/output error"]
    assert broker.services.logs.scrub.errors == 1


def test_the_scrub_counts_no_damage_where_descriptors_are_lacking_and_says_so_once_a_pass():
    broker = filled().restarted()
    logs = [path for path in broker.storage.files if path.startswith("flights-0/") and path.endswith(".log")]
    assert len(logs) > 3
    broker.storage.lacking_reads.update(logs)
    scrubbed(broker)
    lines = [line for line in broker.reported if "Too many open files" in line]
    assert len(lines) == 1 and lines[0].startswith("the scrub passes over files that it cannot read now")
    assert not broker.services.logs.scrub.errors and not broker.services.logs.offline
    broker.storage.lacking_reads.clear()
    broker.at(broker.now_ms + 86_400_000 + FIRST_PASS_MS)
    for _ in range(100):
        broker.at(broker.now_ms + 1_000)
    assert broker.services.logs.scrub.bytes_read == sum(s.size for s in log_of(broker).segments.all[:-1])
