"""Runs of one replay side by side, without a broker."""

from concurrent.futures import ThreadPoolExecutor

from spark_bridge.output.storage import LocalStorage
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.replay.publication import Writer, run_of
from spark_bridge.selection.manifest import Manifest

MANIFEST = Manifest("c", {"flights": "t"}, {"by": "id"}, (OffsetRange("flights", 0, 2, 5),), "0.1.0")


def test_runs_that_start_at_once_do_not_remove_each_others_directories(tmp_path):
    """A run sweeps the directories of killed runs, which nobody has locked; it must leave those of starting runs."""

    def start_and_stop(_):
        with run_of(LocalStorage(tmp_path / "out"), MANIFEST, Writer.usual()):
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start_and_stop, range(200)))
    assert list(tmp_path.iterdir()) == []
