"""The file `life` of a data directory, from the start of a process on (rule W1; `directory_life` decides its content).

    load       the start: read the file, and write it before the broker registers
    has_taken  an order of the controller: have the file written at the first one of each life
    lost       a log went offline: have the file say so
    back       the write has ended
    close      the stop: write what a sync of the stop has shown

On a full disk the file stays as it was if it then says less than is true: that the data is not whole, or was whole in
an earlier life. So the broker goes on, and the next order tries again. A file that would say more than is true is
removed, because a directory without the file is not whole.
"""

from collections.abc import Callable

from broker.cluster.documents import Life
from broker.log.integrity.data_directory import data_beside
from broker.log.io_jobs import RewriteOrRemove, WriteFile
from broker.log.log_manager import LogManager
from broker.log.storage.port import StorageError
from broker.log.sync_scheduler import IoJob
from broker.membership.directory_life import FILE, DirectoryLife, StoredLife, read_life

_NOT_WHOLE = (
    "the machine of this broker stopped uncleanly, so that its data may lack what it has confirmed: partitions with "
    "other replicas in sync are copied from them"
)


def note_start(logs: LogManager, boot_id: str, report: Callable[[str], None]) -> None:
    """Note in the file how a broker starts that does not replicate. A directory without the file gets none.

    The start may follow a power cut. Without the note, a clean stop would make the data whole for the next start.
    """
    if logs.storage.exists(FILE):
        LifeFile(logs, report).load(boot_id)


class LifeFile:
    """See the module. `report` takes lines for the operator."""

    def __init__(self, logs: LogManager, report: Callable[[str], None]) -> None:
        self._logs = logs
        self._report = report
        self._lives = DirectoryLife(None, boot_id="", stopped_cleanly=False)
        self._write: WriteFile | None = None
        """The write that is under way."""
        self._writing: StoredLife | None = None
        self._failed: StoredLife | None = None
        """The content that could not be written. The next order that asks goes on without it."""

    @property
    def life(self) -> Life:
        """Return what the next registration tells the controller."""
        return self._lives.life

    def registered(self) -> None:
        """Note that the controller was told of this life."""
        self._lives.registered()

    def load(self, boot_id: str) -> None:
        """Read the file, and write what it must have before the broker registers, in this thread.

        Call it once `LogManager.stopped_cleanly` is known. `boot_id` is that of this kernel, "" if the system does not
        tell. Raise StorageError if the file cannot be read.
        """
        storage = self._logs.storage
        data = None
        if storage.exists(FILE):
            file = storage.open(FILE)
            data = file.read(0, file.size)
        before, damage = read_life(data)
        if damage is not None:
            self._report(f"{damage}. This broker's data counts as that of a new directory, which may lack records")
        stopped_cleanly, has_logs = self._logs.stopped_cleanly, bool(data_beside(storage))
        self._lives = DirectoryLife(before, boot_id=boot_id, stopped_cleanly=stopped_cleanly, has_logs=has_logs)
        if before is not None and not self.life.whole:
            self._report(_NOT_WHOLE)
        begun = self._lives.begun()
        if begun is not None:
            self._write_now(begun)

    def _write_now(self, stored: StoredLife) -> None:
        """Write the file in this thread, at a start or a stop."""
        write = self._job(stored)
        try:
            write.run()
        except StorageError as error:
            self._logs.disk.failed(error)
            self._not_written(write, error)
        else:
            self._lives.written(stored)

    def _job(self, stored: StoredLife) -> WriteFile:
        says_less = stored.has_lost or not stored.is_whole
        return (RewriteOrRemove if says_less else WriteFile)(self._logs.storage, FILE, stored.encode())

    def _not_written(self, write: WriteFile, error: Exception) -> None:
        self._report(f"the state of this broker's life could not be written: {error}")
        if isinstance(write, RewriteOrRemove):
            self._lives.removed()

    def has_taken(self, broker_epoch: int) -> bool:
        """Return True if an order for this life may be carried out: the file has the life, or cannot be written.

        Otherwise have it written; ask again once the job is back.
        """
        stored = self._lives.ordered(broker_epoch)
        if stored is None:
            return True
        if self._write is None:
            failed, self._failed = self._failed, None
            if failed == stored:
                return True
            self._begin(stored)
        return False

    def _begin(self, stored: StoredLife) -> None:
        self._write, self._writing = self._job(stored), stored
        self._logs.syncs.add_job(self._write)

    def lost(self) -> None:
        """Have the file say that a log with copies went offline. The next process is not whole then."""
        self._lives.lost()
        self._mark()

    def _mark(self) -> None:
        stored = self._lives.unmarked()
        if stored is not None and self._write is None:
            self._begin(stored)

    def close(self, *, has_lost: bool) -> None:
        """At the stop, write in this thread that a log went offline. No write is under way any more."""
        if has_lost:
            self._lives.lost()
        stored = self._lives.unmarked()
        if stored is not None:
            self._write_now(stored)

    def back(self, job: IoJob, error: Exception | None) -> bool:
        """Take back a job that has ended. Return True if it was the file's."""
        if job is not self._write:
            return False
        assert self._writing is not None
        stored, self._write, self._writing = self._writing, None, None
        if error is None:
            self._lives.written(stored)
            self._mark()  # a log may have gone offline meanwhile
        else:
            self._failed = stored
            self._not_written(job, error)
        return True
