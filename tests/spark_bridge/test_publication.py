"""Runs of one replay side by side, and the check of its files, without a broker."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_bridge.output.file_name import file_name
from spark_bridge.output.storage import LocalStorage, StorageError
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.replay.planning import isolation_of, keep_manifest
from spark_bridge.replay.publication import Damaged, Writer, run_of, verify
from spark_bridge.replay.receipt import Totals, WrittenFile, prove
from spark_bridge.selection.manifest import Manifest
from spark_bridge.selection.record_file import DamagedRecord

ROWS = b"the rows of a range"
MANIFEST = Manifest("c", {"flights": "t"}, {"by": "id"}, (OffsetRange("flights", 0, 2, 5),), "0.1.0")


def test_runs_that_start_at_once_do_not_remove_each_others_directories(tmp_path):
    """A run sweeps the directories of killed runs, which nobody has locked; it must leave those of starting runs."""

    def start_and_stop(_):
        with run_of(LocalStorage(tmp_path / "out"), MANIFEST, Writer.usual()):
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start_and_stop, range(200)))
    assert list(tmp_path.iterdir()) == []


def publish(out):
    with run_of(out, MANIFEST, Writer.usual()) as run:
        with run.storage.write(file_name(MANIFEST.ranges[0])) as file:
            file.write(ROWS)
        file_of_range = WrittenFile(3, hashlib.sha256(ROWS).hexdigest())
        run.publish(prove(MANIFEST, Totals(3, 9, "crc32c:05"), [(0, file_of_range)]))


@pytest.fixture
def out(tmp_path):
    """A place with a published replay."""
    out = LocalStorage(tmp_path / "out")
    publish(out)
    return out


@pytest.mark.parametrize("name", ["more.parquet", "flights-00000-1.parquet", "day=1/a.parquet", "notes.txt"])
def test_a_file_that_readers_see_and_the_replay_did_not_write_is_named(out, name):
    verify(out)
    out.create(name, b"")
    with pytest.raises(Damaged, match=f"{name} is a file that the replay did not write"):
        verify(out)


def test_a_file_is_no_place_for_a_replay(tmp_path):
    (tmp_path / "in.txt").touch()
    with pytest.raises(StorageError, match=r"in\.txt is a file; name a directory"):
        publish(LocalStorage(tmp_path / "in.txt"))


@pytest.mark.parametrize("name", ["_SUCCESS", ".more.parquet.crc", "_kept/more.parquet"])
def test_files_that_readers_skip_do_no_harm(out, name):
    out.create(name, b"")
    assert verify(out).rows == 3


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]", b'{"flakelog_receipt": 99}', b"null"])
@pytest.mark.parametrize("name", ["_receipt.json", "_manifest.json"])
def test_a_damaged_record_is_named_with_the_way_out(out, name, text):
    with out.write(name) as file:
        file.write(text)
    with pytest.raises(DamagedRecord, match=f"out/{name} is damaged.*Put it back from a copy"):
        verify(out)
    with pytest.raises(DamagedRecord, match=name):
        publish(out)


def test_a_damaged_manifest_of_a_killed_replay_is_named_with_the_way_out(tmp_path):
    out = LocalStorage(tmp_path / "out")
    keep_manifest(out, MANIFEST)
    (tmp_path / "out.manifest.json").write_text("{")
    for run in (lambda: isolation_of(out), lambda: keep_manifest(out, MANIFEST)):
        with pytest.raises(DamagedRecord, match="out.manifest.json is damaged.*move it away"):
            run()
