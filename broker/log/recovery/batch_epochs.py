"""The leader epochs in the headers of batches, which no CRC covers."""

from broker.log.segment import Segment
from broker.record.batch import BatchHeader, CorruptBatch, verify

EPOCHS_BEHIND_MAX = 1_000
"""Epochs that a log may be ahead of the metadata, one for each start after a crash, if an operator has put an older
metadata.json back. A good batch must not be cut for that. A higher epoch is damage."""


def fault_of(segment: Segment, position: int, header: BatchHeader, before: int, newest_epoch: int) -> str | None:
    """Return the fault in the leader epoch of the batch at a position, or None.

    `before` is the epoch of the batch before it, and `newest_epoch` the newest that the broker knows of. Epochs never
    decrease. If one rises and the next batch's is lower again, the risen one is taken for damaged.
    """
    epoch = header.leader_epoch
    if epoch < before:
        return f"leader epoch {epoch} stands after {before}"
    if epoch > newest_epoch + EPOCHS_BEHIND_MAX:
        return f"leader epoch {epoch} is not yet possible; {newest_epoch} is on"
    if epoch > before:
        after = _epoch_after(segment, position + header.size, header.last_offset + 1)
        if after is not None and after < epoch:
            return f"leader epoch {epoch} stands before {after}"
    return None


def _epoch_after(segment: Segment, position: int, offset: int) -> int | None:
    """Return the leader epoch of the batch at a position, None if no batch is there that may follow `offset`.

    Bytes that a crash has left may look like a batch, so its CRC must hold: a torn header has a wrong epoch.
    """
    following = next(segment.batches(position), None)
    if following is None or following[1].base_offset < offset:
        return None
    try:
        verify(segment.log.read(position, following[1].size), following[1])
    except CorruptBatch:
        return None
    return following[1].leader_epoch
