"""Whether a broker's data has all that the broker confirmed, over its lives (rule W1): the file `life`.

    start       whole = the last stop was clean, or the kernel that took the writes still runs; and no mark is left
                the file gets this kernel's boot id and, if the data is not whole, the mark: both by one write
    registered  tells the controller `whole`, and the broker epoch of the life before (`last`)
    first order of a life: the file gets the life's broker epoch and loses the mark, before the order is answered
    lost        a log went offline, perhaps with what it confirmed: the file says so until this process has ended

A power cut may take what a replica confirmed, so a member of an ISR that comes back is trusted only if its data is
whole (broker.cluster.isr_members). The mark outlives a second crash: without it, a broker that restarts twice after a
power cut would say that it is whole. The first order of the controller follows its decision about this life. An empty
directory is not whole, nor is one that was copied from another kernel's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from broker.cluster.documents import NEW_DIRECTORY, NO_LAST_LIFE, Life
from broker.log import json_lines

FILE = "life"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredLife:
    """The content of the file. `boot_id` is that of the kernel that took the writes, "" if it is not known."""

    boot_id: str
    is_whole: bool
    broker_epoch: int = NO_LAST_LIFE
    has_lost: bool = False
    """True if a log of the process that wrote the file went offline. The data is not whole for the next process."""

    def encode(self) -> bytes:
        fields = {
            "boot_id": self.boot_id,
            "whole": self.is_whole,
            "broker_epoch": self.broker_epoch,
            "lost": self.has_lost,
        }
        return json_lines.encode([{"version": _VERSION} | fields])

    @classmethod
    def decode(cls, data: bytes) -> "StoredLife":
        """Return the content. Raise ValueError if the file is damaged, or of another version."""
        (line,) = json_lines.decode(data)
        if not isinstance(line, Mapping) or line.get("version") != _VERSION:
            raise ValueError(f"this program reads version {_VERSION}")
        boot_id, is_whole, epoch = (line.get(name) for name in ("boot_id", "whole", "broker_epoch"))
        has_lost = line.get("lost", False)
        if not isinstance(boot_id, str) or not isinstance(epoch, int):
            raise ValueError("a field is missing, or of another type")
        if not isinstance(is_whole, bool) or not isinstance(has_lost, bool):
            raise ValueError("a field is missing, or of another type")
        return cls(boot_id, is_whole, epoch, has_lost)


class DirectoryLife:
    """The lives of a data directory's broker, from the start of a process on.

    `before` is the content of the file, None without one, or if it is damaged. `boot_id` is that of this kernel, "" if
    the system does not tell. `has_logs` is True if the directory has logs, so that it is not new without the file.
    """

    def __init__(
        self, before: StoredLife | None, *, boot_id: str, stopped_cleanly: bool, has_logs: bool = True
    ) -> None:
        is_same_kernel = before is not None and before.boot_id == boot_id != ""
        was_whole = before is not None and before.is_whole and not before.has_lost
        is_whole = was_whole and (stopped_cleanly or is_same_kernel)
        self._present = StoredLife(boot_id, is_whole, NO_LAST_LIFE if before is None else before.broker_epoch)
        self._is_new = before is None and not has_logs
        """True until a registration has told it. A broker that took no order since has lost nothing of its own."""
        self._on_disk = before
        self._has_lost = False

    @property
    def life(self) -> Life:
        """Return what the registration tells the controller."""
        return Life(self._present.is_whole, NEW_DIRECTORY if self._is_new else self._present.broker_epoch)

    def registered(self) -> None:
        """Note that the controller was told of this life."""
        self._is_new = False

    def begun(self) -> StoredLife | None:
        """Return what the file must have before the broker registers, None if it has that."""
        return None if self._present == self._on_disk else self._present

    def ordered(self, broker_epoch: int) -> StoredLife | None:
        """Return what the file must have before an order of this life is answered, None if it has that.

        An order of an earlier life changes nothing.
        """
        epoch = max(broker_epoch, self._present.broker_epoch)
        lived = replace(self._present, is_whole=True, broker_epoch=epoch, has_lost=self._has_lost)
        return None if lived == self._on_disk else lived

    def lost(self) -> None:
        """Note that a log went offline: the kernel may have dropped what it could not write.

        The controller takes the replica out of the ISR once it hears of the log. If this process dies before, the next
        one must not say that it has everything. This process may: while it runs, it refuses orders for the log.
        """
        self._has_lost = True

    def unmarked(self) -> StoredLife | None:
        """Return what the file must have because a log went offline, None if it has that, or no log did."""
        if not self._has_lost or (self._on_disk is not None and self._on_disk.has_lost):
            return None
        return replace(self._present, has_lost=True)

    def written(self, stored: StoredLife) -> None:
        """Note that the file has this on the disk."""
        self._present = self._on_disk = stored

    def removed(self) -> None:
        """Note that the file could not be written, and is perhaps gone."""
        self._on_disk = None


def read_life(data: bytes | None) -> tuple[StoredLife | None, str | None]:
    """Return the content of the file, and why it is damaged; None for both without a file."""
    if data is None:
        return None, None
    try:
        return StoredLife.decode(data), None
    except ValueError as error:
        return None, f"{FILE}: {error}"
