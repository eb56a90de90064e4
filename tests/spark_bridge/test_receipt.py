"""The receipt of a replay, and its check against the manifest."""

import json
from dataclasses import replace

import pytest

from spark_bridge.output.file_name import file_name
from spark_bridge.output.row_sum import combine
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.skipped import SkippedBatch
from spark_bridge.replay.receipt import Receipt, ReplayError, Totals, WrittenFile, differences, load, prove, prove_files
from spark_bridge.selection.manifest import Manifest

RANGES = (OffsetRange("flights", 0, 2, 5), OffsetRange("flights", 1, 0, 4))
MANIFEST = Manifest("c", {"flights": "t"}, {"by": "id"}, RANGES, "0.1.0")
WRITTEN = [(1, WrittenFile(4, "bb")), (0, WrittenFile(3, "aa"))]
TOTALS = Totals(rows=7, offset_sum=2 + 3 + 4 + 0 + 1 + 2 + 3, checksum="crc32c:05")


def test_each_range_has_its_file():
    receipt = prove(MANIFEST, TOTALS, WRITTEN)
    assert receipt.files == {file_name(RANGES[0]): WrittenFile(3, "aa"), file_name(RANGES[1]): WrittenFile(4, "bb")}
    assert (receipt.rows, receipt.manifest_sha256) == (7, MANIFEST.sha256)


def test_a_files_name_is_that_of_its_range():
    """A rerun writes to the same name: output path = f(manifest hash, partition, range)."""
    assert file_name(RANGES[0]) == "flights-00000-00000000000000000002-00000000000000000005.parquet"
    assert sorted(map(file_name, RANGES)) == list(map(file_name, sorted(RANGES)))


def test_it_comes_back_as_it_was_written():
    receipt = prove(MANIFEST, TOTALS, WRITTEN)
    assert load(receipt.to_json()) == receipt


@pytest.mark.parametrize("indexes", [[0], [0, 0], [0, 1, 2], [1, 1], []])
def test_tasks_that_are_not_one_for_each_range_are_refused(indexes):
    with pytest.raises(ReplayError, match="without a shuffle"):
        prove(MANIFEST, TOTALS, [(index, WrittenFile(1, "aa")) for index in indexes])


def test_more_rows_than_offsets_were_read_twice():
    with pytest.raises(ReplayError, match="8 rows were read from 7 offsets"):
        prove(MANIFEST, TOTALS._replace(rows=8), WRITTEN)


def test_as_many_rows_as_offsets_must_be_those_offsets():
    """A row read twice in place of another is detected, though the count is the same."""
    with pytest.raises(ReplayError, match="add up to 16, those of the manifest to 15"):
        prove(MANIFEST, TOTALS._replace(offset_sum=16), WRITTEN)


def test_fewer_rows_than_offsets_can_be():
    """Fewer rows than offsets are valid, because transaction markers and compaction leave offsets without records.

    The readers checked completeness by position.
    """
    assert prove(MANIFEST, TOTALS._replace(rows=6, offset_sum=11), WRITTEN).rows == 6


def test_two_replays_are_compared_in_words():
    receipt = prove(MANIFEST, TOTALS, WRITTEN)
    name = file_name(RANGES[0])
    other = replace(receipt, checksum="crc32c:09", files={**receipt.files, name: WrittenFile(3, "cc")})
    assert differences(receipt, receipt) == []
    assert differences(receipt, other) == ["checksum crc32c:05 before, crc32c:09 now", f"{name} has other content"]


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"flakelog_receipt": 3, "files": {}}'])
def test_what_is_no_receipt_is_refused(text):
    with pytest.raises(ReplayError, match="no receipt"):
        load(text)


def test_a_receipt_of_nothing_is_one_too():
    nothing = replace(MANIFEST, ranges=())
    assert prove_files(nothing, {}) == Receipt(nothing.sha256, 0, 0, combine([]), {})


def test_a_receipt_of_format_1_is_read_and_its_checksum_is_of_another_kind():
    """Spark added up the checksums of format 1. Its files can still be compared with those of a rerun."""
    receipt = prove(MANIFEST, TOTALS, WRITTEN)
    old = json.loads(receipt.to_json()) | {"flakelog_receipt": 1, "checksum": -5}
    loaded = load(json.dumps(old))
    assert loaded.checksum == "xxhash64:-5"
    assert differences(loaded, receipt) == []
    assert differences(loaded, replace(loaded, checksum="xxhash64:6")) == [
        "checksum xxhash64:-5 before, xxhash64:6 now"
    ]


def test_batches_that_were_left_out_count_with_their_offsets():
    batches = (SkippedBatch("flights", 0, 2, 4, "no records"), SkippedBatch("flights", 1, 0, 0, "no records"))
    assert prove(MANIFEST, TOTALS._replace(rows=3, offset_sum=6), WRITTEN, batches).poison_offsets == 4
