"""Read the files of a broker: the batches of each partition, and the ids of their offsets.

The readers are written by hand, because the oracle compares the readers of the trees too.
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

from tests.oracle.batches import CRC_COVERS_FROM, HEADER_BYTES, LENGTH_END, field_of

LOG, IDS = ".log", ".idindex"
ID_ENTRY = struct.Struct(">IIqI")
PLACE_BYTES = 16  # base offset, length and leader epoch: what the broker writes into a producer's batch


class Stored(NamedTuple):
    """A batch in a log."""

    base_offset: int
    data: bytes

    @property
    def end_offset(self):
        return self.base_offset + field_of(self.data, "last_offset_delta") + 1

    @property
    def content(self):
        """The batch without its place in the log."""
        return self.data[PLACE_BYTES:]


class Partition(NamedTuple):
    """All segments of one partition."""

    batches: list
    runs: list
    """(first offset, number of offsets, first id) in the order of the files."""

    def ids(self):
        """{offset: id}."""
        return {
            first_offset + n: first_id + n for first_offset, number, first_id in self.runs for n in range(number)
        }


def partitions(files):
    """{name of the directory: Partition}."""
    by_name = {}
    for path, data in sorted(files.items()):
        name, _, file = path.rpartition("/")
        if name and file.endswith(LOG):
            by_name.setdefault(name, Partition([], [])).batches.extend(batches_of(path, data))
        elif name and file.endswith(IDS):
            base_offset = int(file.removesuffix(IDS))
            by_name.setdefault(name, Partition([], [])).runs.extend(_runs(base_offset, data))
    return by_name


def batches_of(path, data):
    at = 0
    while at + HEADER_BYTES <= len(data):
        size = LENGTH_END + field_of(data, "batch_length", at)
        if size < HEADER_BYTES or at + size > len(data):
            break
        batch = data[at : at + size]
        assert crc32c(batch[CRC_COVERS_FROM:]) == field_of(batch, "crc"), f"{path}: the CRC at byte {at} does not hold"
        yield Stored(field_of(batch, "base_offset"), batch)
        at += size
    assert not any(data[at:]), f"{path}: {len(data) - at} bytes behind byte {at} are no batch"


def _runs(base_offset, data):
    for at in range(0, len(data) - ID_ENTRY.size + 1, ID_ENTRY.size):
        relative_offset, number, first_id, _ = ID_ENTRY.unpack_from(data, at)
        if number:
            yield base_offset + relative_offset, number, first_id


def check(by_name):
    """Assert the invariants of logs: offsets rise, each offset has an id, ids rise with the offsets, and no id is there
    twice."""
    owners = {}
    for name, partition in by_name.items():
        ids = partition.ids()
        before = None
        for batch in partition.batches:
            if before is not None:
                assert batch.base_offset >= before.end_offset, f"{name}: offset {batch.base_offset} is there twice"
            before = batch
            for offset in range(batch.base_offset, batch.end_offset):
                assert offset in ids, f"{name}: offset {offset} has no id"
        last_id = -1
        for offset in sorted(ids):
            assert ids[offset] > last_id, f"{name}: the id of offset {offset} is not above the one before"
            last_id = ids[offset]
            assert last_id not in owners, f"id {last_id} is at {owners[last_id]} and at {name} {offset}"
            owners[last_id] = f"{name} {offset}"
