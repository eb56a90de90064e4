"""A mirror between Flakelog and Apache Kafka 4.3, in both directions."""

import pytest

from broker.client.blocking import Client
from broker.client.producer import Producer
from tests.compat.mirror.mirror_process import MirrorProcess, has_all, records_of

pytestmark = pytest.mark.soak
RECORDS = 2_000


@pytest.fixture
def kafka_client(kafka):
    with Client(kafka) as client:
        yield client


def fill(servers, topic):
    """Send committed and aborted transactions, with each codec."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        with Producer(servers, compression=codec, transactional_id=f"{topic}-{codec}") as producer:
            for is_committed in (True, False, True):
                producer.begin()
                for number in range(RECORDS // 10):
                    value = f"{codec} {number} {is_committed}"
                    producer.send(topic, value, str(number), headers={"h": value})
                producer.flush()  # so that an abort has something to abort
                producer.commit() if is_committed else producer.abort()


@pytest.mark.parametrize("options", ((), ("--two-way", "--source-id")), ids=("whole", "edited"))
@pytest.mark.parametrize("direction", ("to Kafka", "from Kafka"))
def test_records_go_between_flakelog_and_apache_kafka(
    kafka, kafka_client, source, source_client, topic, tmp_path, direction, options
):
    ours, theirs = (source.bootstrap_servers, source_client), (kafka, kafka_client)
    (origin, origin_client), (copy, copy_client) = (ours, theirs) if direction == "to Kafka" else (theirs, ours)
    origin_client.create_topic(topic, 3, {"retention.ms": "86400000"})
    fill(origin, topic)
    mirror = MirrorProcess(
        origin, copy, "--topics", topic, "--name", topic, *options, output=tmp_path / "mirror.log"
    )
    with mirror:
        has_all(copy_client, topic, RECORDS)
    assert without_added(records_of(copy, topic, RECORDS)) == without_added(records_of(origin, topic, RECORDS))


def without_added(partitions):
    """Return records without the headers that a mirror adds."""
    added = {"flakelog-clusters", "flakelog-source-id"}
    return {
        number: [(*record[:3], [header for header in record[3] if header[0] not in added]) for record in records]
        for number, records in partitions.items()
    }
