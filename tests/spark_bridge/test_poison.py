"""Batches that cannot be decoded: a read fails and names the first, or leaves them out and names all (onPoison)."""

import pytest

from broker.record.batch import CorruptBatch, read_header
from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from spark_bridge.reading import range_fetch
from spark_bridge.reading.arrow_decode import PlacedBatch, decode
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_fetch import ReadSettings
from spark_bridge.reading.row import STORED
from spark_bridge.reading.skipped import SkippedBatch, from_json, to_json
from spark_bridge.replay.receipt import ReplayError, Totals, WrittenFile, differences, load, prove
from spark_bridge.selection.manifest import Manifest
from spark_bridge.selection.options import OptionError, parse
from tests.poison import POISON, UNPACKED_BYTES_MAX, batch_of
from tests.spark_bridge.memory_cluster import BATCH, Cluster
from tests.spark_bridge.test_range_fetch import read, rows

SKIP = ReadSettings(skip_poison=True)
RUBBISH = batch_of(b"\xa7" * 80, claims=BATCH)
LEFT_OUT = SkippedBatch("flights", 0, 10, 19, "rubbish")
SERVERS = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


def cluster_with_poison(*bases, end=100, **more):
    cluster = Cluster(end, **more)
    cluster.poison = dict.fromkeys(bases, RUBBISH)
    return cluster


# --- reading ---------------------------------------------------------------------------------------------------------


def test_by_default_a_read_fails_and_names_topic_partition_and_offsets():
    reason = r"^t-0: the batch of offsets 30 to 39 cannot be decoded: .*onPoison=skip leaves such batches out$"
    with pytest.raises(CorruptBatch, match=reason):
        read(cluster_with_poison(30), 0, 100)


@pytest.mark.parametrize("per_fetch", [1, 2, 10])
def test_a_read_that_skips_has_every_other_row_once_and_names_what_it_left_out(per_fetch):
    skipped = []
    read_rows = read(cluster_with_poison(0, 30, 40, 90, per_fetch=per_fetch), 0, 100, SKIP, on_skipped=skipped.append)
    assert read_rows == rows(10, 30) + rows(50, 90)
    assert [(batch.topic, batch.partition, batch.base_offset, batch.last_offset) for batch in skipped] == [
        ("t", 0, base, base + 9) for base in (0, 30, 40, 90)
    ]


def test_a_range_of_nothing_else_is_read_as_empty():
    assert read(cluster_with_poison(0, 10, end=20), 3, 17, SKIP) == []


def test_after_a_lost_connection_no_batch_is_named_twice():
    skipped = []
    cluster = cluster_with_poison(10, 50, faults=[None, ConnectionResetError(), None, ConnectionResetError()])
    read(cluster, 0, 100, SKIP, on_skipped=skipped.append)
    assert [batch.base_offset for batch in skipped] == [10, 50]


def test_damage_is_an_error_though_poison_is_skipped():
    cluster = cluster_with_poison()
    cluster.poison = {0: RUBBISH[:-1] + b"\0"}
    with pytest.raises(CorruptBatch, match="CRC"):
        read(cluster, 0, 100, SKIP)


def test_a_log_full_of_poison_is_not_read_in_part(monkeypatch):
    monkeypatch.setattr(range_fetch, "SKIPPED_MAX", 3)
    with pytest.raises(CorruptBatch, match="offsets 30 to 39 .* has more than 3 such batches"):
        read(cluster_with_poison(0, 10, 20, 30), 0, 100, SKIP)


@pytest.mark.parametrize("name", POISON)
def test_a_batch_that_readers_reject_is_poison_for_spark_too_and_costs_its_group_nothing_else(name):
    good = bytes(encode_batch([BatchRecord(0, 0, None, b"v")], base_timestamp_ms=0, codec=Codec.ZSTD))
    data = POISON[name] + good
    batches = [PlacedBatch(data, at, read_header(data, at)) for at in (0, len(POISON[name]))]
    poison = []

    def on_poison(header, error):
        poison.append(header)

    within = OffsetRange("t", 0, 0, 1 << 40)
    made = list(decode(batches, within, STORED, None, UNPACKED_BYTES_MAX, on_poison=on_poison))
    assert poison == [batches[0].header] and [arrow_batch.num_rows for arrow_batch in made] == [1]


# --- options ---------------------------------------------------------------------------------------------------------


def test_poison_is_an_error_unless_the_options_say_skip():
    assert not parse(SERVERS).settings.skip_poison
    assert not parse(SERVERS | {"onPoison": "fail"}).settings.skip_poison
    assert parse(SERVERS | {"onpoison": "SKIP"}).settings.skip_poison
    with pytest.raises(OptionError, match="onPoison is fail or skip; got 'ignore'"):
        parse(SERVERS | {"onPoison": "ignore"})


def test_a_report_of_what_is_left_out_needs_a_read_that_leaves_out():
    assert parse(SERVERS | {"onPoison": "skip", "poisonReport": "/tmp/r"}).poison_report == "/tmp/r"
    with pytest.raises(OptionError, match="poisonReport"):
        parse(SERVERS | {"poisonReport": "/tmp/r"})


# --- the receipt -----------------------------------------------------------------------------------------------------


def receipt_of(*skipped):
    manifest = Manifest("c", {"flights": None}, {}, (OffsetRange("flights", 0, 0, 20),), "1")
    return prove(manifest, Totals(10, 45, "crc32c:07"), [(0, WrittenFile(10, "aa"))], skipped)


def test_a_receipt_names_each_batch_that_was_left_out_once():
    """A batch that lies in two ranges is left out by two tasks."""
    receipt = receipt_of(LEFT_OUT, LEFT_OUT)
    assert receipt.poison == (LEFT_OUT,) and load(receipt.to_json()) == receipt
    assert str(LEFT_OUT) == "flights-0: the batch of offsets 10 to 19 cannot be decoded: rubbish"


def test_a_receipt_from_before_has_no_such_batch():
    text = receipt_of().to_json()
    assert load(text.replace(' "poison": [],\n', "")) == receipt_of()


def test_a_rerun_that_leaves_out_other_batches_differs():
    """The words of the reason may change between versions, so they are not compared."""
    assert differences(receipt_of(LEFT_OUT), receipt_of()) == ["poison has other batches"]
    assert differences(receipt_of(LEFT_OUT), receipt_of(LEFT_OUT._replace(reason="other words"))) == []


def test_the_report_of_a_task_is_read_back_and_other_text_is_refused():
    assert from_json(to_json([LEFT_OUT])) == (LEFT_OUT,)
    with pytest.raises(ReplayError):
        load(receipt_of().to_json().replace('"poison": []', '"poison": [{"topic": "t"}]'))
