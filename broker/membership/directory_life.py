"""Whether a broker's data has all that the broker confirmed, over its lives (rule W1): the file `life`.

    start       whole = the last stop was clean, or the kernel that took the writes still runs; and no mark is left
                the file gets this kernel's boot id and, if the data is not whole, the mark: both by one write
    registered  tells the controller `whole`, and the broker epoch of the life before (`last`)
    first order of a life: the file gets the life's broker epoch and loses the mark, before the order is answered

A power cut may take what a replica confirmed, so a member of an ISR that comes back is trusted only if its data is
whole (broker.cluster.isr_members). The mark outlives a second crash: without it, a broker that restarts twice after a
power cut would say that it is whole. The first order of the controller follows its decision about this life. An empty
directory is not whole, nor is one that was copied from another kernel's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from broker.cluster.documents import Life
from broker.log import json_lines

FILE = "life"
NO_EPOCH = -1
_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredLife:
    """The content of the file. `boot_id` is that of the kernel that took the writes, "" if it is not known."""

    boot_id: str
    is_whole: bool
    broker_epoch: int = NO_EPOCH

    def encode(self) -> bytes:
        fields = {"boot_id": self.boot_id, "whole": self.is_whole, "broker_epoch": self.broker_epoch}
        return json_lines.encode([{"version": _VERSION} | fields])

    @classmethod
    def decode(cls, data: bytes) -> "StoredLife":
        """Return the content. Raise ValueError if the file is damaged, or of another version."""
        (line,) = json_lines.decode(data)
        if not isinstance(line, Mapping) or line.get("version") != _VERSION:
            raise ValueError(f"this program reads version {_VERSION}")
        boot_id, is_whole, epoch = (line.get(name) for name in ("boot_id", "whole", "broker_epoch"))
        if not isinstance(boot_id, str) or not isinstance(is_whole, bool) or not isinstance(epoch, int):
            raise ValueError("a field is missing, or of another type")
        return cls(boot_id, is_whole, epoch)


class DirectoryLife:
    """The lives of a data directory's broker, from the start of a process on.

    `before` is the content of the file, None without one, or if it is damaged. `boot_id` is that of this kernel, "" if
    the system does not tell.
    """

    def __init__(self, before: StoredLife | None, *, boot_id: str, stopped_cleanly: bool) -> None:
        is_same_kernel = before is not None and before.boot_id == boot_id != ""
        is_whole = before is not None and before.is_whole and (stopped_cleanly or is_same_kernel)
        self._present = StoredLife(boot_id, is_whole, NO_EPOCH if before is None else before.broker_epoch)
        self._on_disk = before

    @property
    def life(self) -> Life:
        """Return what the registration tells the controller."""
        return Life(whole=self._present.is_whole, last=self._present.broker_epoch)

    def begun(self) -> StoredLife | None:
        """Return what the file must have before the broker registers, None if it has that."""
        return None if self._present == self._on_disk else self._present

    def ordered(self, broker_epoch: int) -> StoredLife | None:
        """Return what the file must have before an order of this life is answered, None if it has that.

        An order of an earlier life changes nothing.
        """
        lived = replace(self._present, is_whole=True, broker_epoch=max(broker_epoch, self._present.broker_epoch))
        return None if lived == self._on_disk else lived

    def written(self, stored: StoredLife) -> None:
        """Note that the file has this on the disk."""
        self._present = self._on_disk = stored


def read_life(data: bytes | None) -> tuple[StoredLife | None, str | None]:
    """Return the content of the file, and why it is damaged; None for both without a file."""
    if data is None:
        return None, None
    try:
        return StoredLife.decode(data), None
    except ValueError as error:
        return None, f"{FILE}: {error}"
