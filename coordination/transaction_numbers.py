"""SHELL (files): the numbers of a directory's transactions, which rise for ever.

    <directory>/transactions    "<reserved> <last> <boot id>", in place

A number may outlive its node: a broker keeps the number of its own ephemeral node on its own disk, and compares it with
later ones. So no number may come twice, also after a power cut. A sync for each number would double the cost of an
ephemeral node. Instead, many numbers are reserved with one sync, and `last` is written without one: a process
that is killed loses nothing that it has written, because the kernel keeps it. After a start of another kernel (proc(5),
/proc/sys/kernel/random/boot_id) `last` may be an old one, and the numbers go on above those that were reserved. Where
the system has no boot id, each number is synced. The line fits in one sector of a disk, so a power cut leaves the old
line or the new one. The caller holds the directory's lock.
"""

import os
from pathlib import Path

from coordination.packed_nodes import write_durably
from coordination.port import CoordinatorUnavailable

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
RESERVED = 10_000


class TransactionNumbers:
    """The numbers of the transactions in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "transactions"
        self._new = directory / ".transactions.new"
        self._boot_id = _boot_id()

    def next(self) -> int:
        """Return a number that is higher than each one before."""
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            write_durably(self._file, self._new, self._line(RESERVED, 1))
            return 1
        reserved, last = self._parse(text)
        number = last + 1
        fits = number <= reserved
        self._write(self._line(reserved if fits else last + RESERVED, number), durable=not (fits and self._boot_id))
        return number

    def _parse(self, text: str) -> tuple[int, int]:
        """Return the reserved number and the last one that may have been returned."""
        try:
            reserved, last, *boot_id = text.strip().split(" ", 2)
            same_kernel = [self._boot_id] == boot_id or not self._boot_id
            return int(reserved), int(last) if same_kernel else int(reserved)
        except ValueError:
            raise CoordinatorUnavailable(f"{self._file} is damaged: {text[:60]!r}") from None

    def _write(self, line: bytes, *, durable: bool) -> None:
        fd = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(fd, line, 0)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)

    def _line(self, reserved: int, last: int) -> bytes:
        return f"{reserved:020} {last:020} {self._boot_id}\n".encode()


def _boot_id() -> str:
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""
