"""The checkpoint of a data directory, as a start finds it, and a new one for a directory that has lost its own.

Without a checkpoint, a start cannot tell damage to synced records from the end that a crash has left, and it would cut
a log at either. So a missing checkpoint is never taken for an empty one.
"""

from collections.abc import Iterable

from broker.log import checkpoint
from broker.log.checkpoint import CheckpointDamaged, LogPosition
from broker.log.integrity.data_directory import NAMED_MAX, data_beside
from broker.log.storage.port import Storage
from coordination.listing import listed


def load(storage: Storage) -> dict[str, LogPosition] | None:
    """Return the positions of a directory's checkpoint, None in an empty directory.

    Raise CheckpointDamaged, also if only the checkpoint is missing, or StorageError.
    """
    if storage.exists(checkpoint.FILE):
        file = storage.open(checkpoint.FILE)
        try:
            return checkpoint.decode(file.read(0, file.size))
        except CheckpointDamaged as error:
            raise CheckpointDamaged(f"{storage.location}/{error}. {checkpoint.REMEDY}") from None
    if data := data_beside(storage):
        missing = f"{storage.location}/{checkpoint.FILE} is missing beside data: {listed(data, NAMED_MAX)}"
        raise CheckpointDamaged(f"{missing}. {checkpoint.REMEDY}")
    return None


def begin(storage: Storage, claims: Iterable[str]) -> None:
    """Replace a checkpoint that is damaged or missing. The next start reads each log, and cuts it at the first damage.

    `claims` are files that say that the directory has all that its broker confirmed. The start may cut some of that, so
    these files are removed first. Raise StorageError.
    """
    for file in claims:
        storage.remove(file)
    storage.sync_directory("")
    storage.replace(checkpoint.FILE, checkpoint.encode({}))
