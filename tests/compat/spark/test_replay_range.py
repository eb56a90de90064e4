"""`flakelog replay` with the options that say what is read: isolation, offsets, partitions and columns."""

import json
import uuid

import confluent_kafka
import pyarrow.parquet as pq
import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from spark_bridge.output.storage import Storage
from spark_bridge.replay.arrow_job import replay
from spark_bridge.replay.planning import make_manifest
from spark_bridge.replay.publication import MANIFEST_FILE, save_manifest
from tests.compat.stock_clients import QUIET
from tests.patience import SECONDS

T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def topic(broker):
    """Return a topic of two partitions; each has the offsets 0 to 99, whose timestamps rise by 1 ms."""
    name = f"flights-{uuid.uuid4().hex[:8]}"
    with Client(broker.address) as client:
        client.create_topic(name, partitions=2, configs={"retention.ms": "-1"})
        for partition in (0, 1):
            records = [BatchRecord(n, n, b"k", b"%d" % n) for n in range(100)]
            client.produce(name, partition, encode_batch(records, base_timestamp_ms=T0))
    return name


@pytest.fixture(scope="module")
def transactions(broker):
    """Return a topic of one partition: 10 messages aborted, 10 committed, 10 of an open transaction, 3 of none."""
    name = f"paid-{uuid.uuid4().hex[:8]}"
    with Client(broker.address) as client:
        client.create_topic(name, partitions=1)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "transactional.id": name, "linger.ms": 0} | QUIET
    )
    producer.init_transactions(SECONDS)
    for end in (producer.abort_transaction, producer.commit_transaction, None):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(name, b"%d" % number)
        producer.flush(SECONDS)
        if end is not None:
            end(SECONDS)
    with Client(broker.address) as client:
        client.produce(name, 0, encode_batch([BatchRecord(n, 0, b"k", b"v") for n in range(3)], base_timestamp_ms=T0))
    yield name
    producer.abort_transaction(SECONDS)


STABLE = 22  # the first offset of the open transaction: 20 messages and two markers come before it


def test_a_replay_has_no_message_of_an_aborted_or_open_transaction(flakelog, transactions, tmp_path):
    """As a load: read_committed, up to the last stable offset."""
    out = tmp_path / "out"
    code, stdout, errors = flakelog(f"replay {transactions} --out {out}")
    assert (code, stdout) == (0, f"10 messages in 1 file in {out}/\n"), errors
    manifest = json.loads((out / MANIFEST_FILE).read_text())
    assert (manifest["read_committed"], manifest["ranges"][0]["end"]) == (True, STABLE)
    assert pq.read_table(next(out.glob("*.parquet")))["value"].to_pylist() == [b"%d" % n for n in range(10)]
    code, stdout, _ = flakelog(f"replay {transactions} --out {tmp_path / 'all'} --isolation read_uncommitted")
    assert (code, stdout.split(" in ")[0]) == (0, "33 messages")


def test_a_range_past_the_last_stable_offset_is_refused_by_name(flakelog, transactions, tmp_path):
    for span in (f"--offsets 0:0-{STABLE + 5}", "--to-time 2100-01-01", f"--offsets 0:{STABLE + 1}-"):
        code, _, errors = flakelog(f"replay {transactions} --out {tmp_path / 'out'} {span}")
        assert code == 1 and f"{transactions}-0: the range" in errors, errors
        assert f"past the last stable offset {STABLE}, where a transaction is open" in errors
    assert list(tmp_path.iterdir()) == []
    code, stdout, _ = flakelog(f"replay {transactions} --out {tmp_path / 'out'} --offsets 0:0-{STABLE}")
    assert (code, stdout.split(" in ")[0]) == (0, "10 messages")


@pytest.mark.parametrize("killed", [False, True])
def test_a_repeated_command_keeps_the_isolation_of_its_directory(flakelog, broker, transactions, tmp_path, killed):
    """A directory of an older version has read_uncommitted in its manifest; the same command gives the same bytes."""
    out = tmp_path / "out"
    older = make_manifest({"kafka.bootstrap.servers": broker.address, "subscribe": transactions})
    assert not older.read_committed
    save_manifest(older, tmp_path / "out.manifest.json")
    if not killed:
        replay(broker.address, older, Storage.at(out))
    code, stdout, errors = flakelog(f"replay {transactions} --out {out}")
    assert (code, stdout) == (0, f"33 messages in 1 file in {out}/\n"), errors
    assert f"{out} was begun with --isolation read_uncommitted, and keeps it" in errors
    code, _, errors = flakelog(f"replay {transactions} --out {out} --isolation read_committed")
    assert code == 5 and "it reads read_uncommitted, this run read_committed" in errors


def test_a_replay_of_some_offsets_partitions_and_columns(flakelog, topic, tmp_path):
    def read(command):
        out = tmp_path / uuid.uuid4().hex
        code, _, errors = flakelog(f"replay {command} --out {out}")
        assert code == 0, errors
        tables = {path.name.split("-")[2]: pq.read_table(path) for path in sorted(out.glob("*.parquet"))}
        return {int(number): table for number, table in tables.items()}

    some = read(f"{topic} --offsets 0:5-10 --offsets 1:95- --columns offset,value")
    assert {number: table["offset"].to_pylist() for number, table in some.items()} == {
        0: [5, 6, 7, 8, 9], 1: [95, 96, 97, 98, 99],
    }  # fmt: skip
    assert some[0].schema.names == ["value", "offset"]
    assert set(read(f"--offsets {topic}:1:-3")) == {1}
    late = read(f"{topic} --partition 1 --from-time {T0 + 5}")
    assert {number: table.num_rows for number, table in late.items()} == {1: 95}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("replay T --out O --offsets 5-10", "is no range of offsets: [TOPIC:]PARTITION:FIRST-END"),
        ("replay T --out O --offsets 0:9-5", "the end lies before the first offset"),
        (f"replay T --out O --offsets 0:{'9' * 19}-", "an offset at most"),
        ("replay T --out O --offsets 0:1-2 --offsets 0:3-4", "names partition 0 of T twice"),
        ("replay T U --out O --offsets 0:1-2", "of which topic?"),
        ("replay T U --out O --offsets T:0:1-2", "differ in U"),
        ("replay T --out O --offsets 0:1-2 --partition 1", "give no --partition"),
        ("replay T --out O --offsets 0:1-2 --from-id 0", "give no --partition, --from-"),
        ("replay --manifest M --out O --from-id 0", "a manifest says what is read"),
        ("replay --manifest M --out O --isolation read_committed", "a manifest says what is read"),
    ],
)
def test_a_range_that_is_said_wrong_is_refused_with_what_would_be_right(flakelog, command, says):
    code, _, errors = flakelog(command)
    assert code == 2 and says in errors, errors
