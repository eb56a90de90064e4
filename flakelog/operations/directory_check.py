"""SHELL (files): check the data directory of a stopped server, with those of its other brokers beside it."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from broker.log.checkpoint import CheckpointDamaged
from broker.log.directory_check import DirectoryCheck
from broker.log.log_manager import LogManager
from broker.log.recovery import clean_stop, stored_checkpoint
from broker.log.storage.os_storage import OsStorage
from broker.log.storage.overlay_storage import OverlayStorage
from broker.log.storage.port import Storage, StorageError
from broker.membership import directory_life
from broker.metadata.document import FILE as METADATA
from broker.metadata.document import MetadataDamaged, decode
from broker.metadata.image import RegisteredBroker
from broker.metadata.local_metadata import FileMetadataStore, LocalMetadata
from broker.services.context import BrokerServices
from broker.services.start import open_logs
from broker.settings.config import BrokerConfig
from broker.waiting.purgatory import Purgatory

NODES = "nodes"
"""The folder with the directories of a server's other processes (flakelog.server.cluster_coordinator)."""


CLAIMS = clean_stop.FILE, directory_life.FILE
"""The files by which a start knows that a directory has all that its broker confirmed."""


class NothingToCheck(Exception):
    """A directory cannot be checked, or a server would refuse to start with it. The message names the reason."""


class OpenedDirectory(NamedTuple):
    """The data directory of one broker, and what its start has said."""

    path: Path
    check: DirectoryCheck
    notes: list[str]
    lost_checkpoint: Storage | None
    """The directory's storage, if its checkpoint is damaged or missing."""


class CheckedDirectories:
    """The directories of a server's brokers, opened, and the totals of what `damages` has read."""

    def __init__(self, opened: list[OpenedDirectory]) -> None:
        self._opened = opened

    @property
    def size(self) -> int:
        """The bytes that `damages` reads."""
        return sum(directory.check.size for directory in self._opened)

    @property
    def partitions(self) -> int:
        return sum(directory.check.partitions for directory in self._opened)

    @property
    def segments(self) -> int:
        return sum(directory.check.segments for directory in self._opened)

    @property
    def bytes(self) -> int:
        return sum(directory.check.bytes for directory in self._opened)

    @property
    def notes(self) -> list[str]:
        """The lines that a start would log, except those of partitions that `damages` names."""
        return [
            self._placed(opened, line)
            for opened in self._opened
            for line in opened.notes
            if " is offline: " not in line
        ]

    @property
    def without_checkpoint(self) -> list[Path]:
        """The directories whose checkpoint is damaged or missing."""
        return [opened.path for opened in self._opened if opened.lost_checkpoint is not None]

    def begin_checkpoints(self) -> None:
        """Begin a new checkpoint in these directories. Raise StorageError."""
        for opened in self._opened:
            if opened.lost_checkpoint is not None:
                stored_checkpoint.begin(opened.lost_checkpoint, CLAIMS)

    def damages(self, read: Callable[[int], object]) -> Iterator[str]:
        """Yield one line for each damage. `read` is called with the size of each segment that was read."""
        for opened in self._opened:
            for line in opened.check.damages(read):
                yield self._placed(opened, line)

    def _placed(self, opened: OpenedDirectory, line: str) -> str:
        """Return a line with the directory in front, unless it is the one that the caller named."""
        return line if opened is self._opened[0] else f"{opened.path}: {line}"


@contextmanager
def check_directories(data_dir: Path, *, new_checkpoint: bool = False) -> Iterator[CheckedDirectories]:
    """Open the data directory of a stopped server, and those of its other brokers, locked for the block.

    With `new_checkpoint`, open a directory whose checkpoint is damaged or missing as a start with a new one would.
    Raise NothingToCheck, without `new_checkpoint` also for such a directory.
    """
    try:
        if not any(data_dir.iterdir()):
            raise NothingToCheck(f"{data_dir} is empty: there is nothing to check; name the data directory of a server")
        others = sorted(path.parent for path in (data_dir / NODES).glob(f"*/{METADATA}"))
    except OSError as error:
        raise NothingToCheck(f"{data_dir} cannot be checked: {error.strerror}") from error
    with ExitStack() as locks:
        yield CheckedDirectories([_open(path, locks, new_checkpoint=new_checkpoint) for path in (data_dir, *others)])


def _open(path: Path, locks: ExitStack, *, new_checkpoint: bool) -> OpenedDirectory:
    """Start a broker on a storage that keeps its changes in memory. Raise NothingToCheck."""
    notes: list[str] = []
    storage = OsStorage(str(path))
    config = BrokerConfig()
    try:
        storage.lock()
        locks.callback(storage.unlock)
        overlay = OverlayStorage(storage)
        store = FileMetadataStore(overlay)
        data = store.load()
        if data is None:
            raise NothingToCheck(
                f"{path} is no data directory: it has no {METADATA} and no partitions; a server's has both"
            )
        owner = decode(data).owner_id
        own = RegisteredBroker(config.node_id if owner is None else owner, {"": ("localhost", 1)})
        local = LocalMetadata(store, own, uuid.uuid4)
        local.load()
        is_lost = new_checkpoint and _has_lost_checkpoint(overlay)
        if is_lost:
            stored_checkpoint.begin(overlay, CLAIMS)
        logs = LogManager(overlay, config, notes.append)
        purgatory = Purgatory(0, config.max_delayed_operations)
        open_logs(BrokerServices(config, local, logs, purgatory, notes.append))
    except (StorageError, MetadataDamaged, CheckpointDamaged) as error:
        raise NothingToCheck(str(error)) from error
    return OpenedDirectory(path, DirectoryCheck(logs), notes, storage if is_lost else None)


def _has_lost_checkpoint(storage: Storage) -> bool:
    try:
        stored_checkpoint.load(storage)
    except CheckpointDamaged:
        return True
    return False
