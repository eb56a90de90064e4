"""The leader epochs of a log as its last process left them, and whether they can be right.

A wrong epoch would hide records, or keep a follower from dropping records that its leader does not have. The batches
have their epochs too, so the start makes a wrong file anew from them. It forgets epochs in which no batch was written.
"""

from collections.abc import Mapping
from typing import NamedTuple

from broker.log import leader_epochs
from broker.log.checkpoint import LogPosition
from broker.log.leader_epochs import NO_EPOCH
from broker.log.storage.port import Storage


class StoredEpochs(NamedTuple):
    """The epochs. If the file of them is wrong, `fault` has the reason, and the epochs are none."""

    epochs: list[tuple[int, int]]
    fault: str | None = None


def read(
    storage: Storage, name: str, sizes: Mapping[str, int], position: LogPosition | None, log_start_offset: int
) -> StoredEpochs:
    """Return the leader epochs of the log in directory `name`, whose files have these sizes.

    `position` is the log's in the checkpoint, and `log_start_offset` its start by that. Raise StorageError.
    """
    path = f"{name}/{leader_epochs.FILE}"
    synced_epoch = NO_EPOCH if position is None else position.leader_epoch
    if leader_epochs.FILE not in sizes:
        if synced_epoch > 0:
            return StoredEpochs([], f"there is no file {path}, though epoch {synced_epoch} was synced")
        return StoredEpochs(list(leader_epochs.UNWRITTEN))
    file = storage.open(path)
    data = bytes(file.read(0, file.size))
    try:
        epochs = leader_epochs.decode(data)
    except ValueError as error:
        return StoredEpochs([], f"{path}: {error}")
    # The file is written before the checkpoint that has the start. Without a CRC, that cannot be told from damage.
    if epochs and epochs[0][1] > log_start_offset and not leader_epochs.has_crc(data):
        return StoredEpochs([], f"{path}: it begins at offset {epochs[0][1]}, and the log at {log_start_offset}")
    if position is not None and synced_epoch != NO_EPOCH and not _has_epoch(epochs, synced_epoch, position.offset - 1):
        return StoredEpochs([], f"{path}: offset {position.offset - 1} was synced in epoch {synced_epoch}: {epochs}")
    return StoredEpochs(epochs)


def _has_epoch(epochs: list[tuple[int, int]], epoch: int, offset: int) -> bool:
    """Return False if the epochs contradict that `offset` was written in `epoch`.

    Epochs that begin later do not: the records up to their start were deleted since.
    """
    stored_epoch = leader_epochs.epoch_of(epochs, offset)
    return stored_epoch == epoch if stored_epoch != NO_EPOCH else bool(epochs) and epochs[0][0] >= epoch
