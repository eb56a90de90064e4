"""The lines for the operator about damage in the journal of an earlier process."""

from collections.abc import Collection, Iterator, Sequence

from broker.log.journal import Entry, FoundJournal
from broker.log.journal_format import DAMAGED
from broker.log.partition_log import PartitionLog
from coordination.listing import listed

_NAMED_MAX = 3
"""Stretches of damaged bytes that the line of a file names; a bad disk may leave thousands."""


def lines(journal: FoundJournal, logs: Collection[PartitionLog]) -> Iterator[str]:
    """Yield a line for each damaged file, and one for each of these open logs that lost messages by a gap."""
    if not journal.damages:
        return
    names = {(log.topic_id, log.partition): log.name for log in logs}
    for name, damages in journal.damages.items():
        bytes_ = [f"from byte {damage.start} to {damage.end}" for damage in damages[:_NAMED_MAX]]
        more = f" and at {len(damages) - _NAMED_MAX} more places" if len(damages) > _NAMED_MAX else ""
        partitions = sorted({names[damage.key] for damage in damages if damage.key in names})
        seem = f" Batches there seem to be of {listed(partitions, _NAMED_MAX)}." if partitions else ""
        yield (
            f"{name} is damaged {', '.join(bytes_)}{more}: these bytes were on the disk before the crash, and cannot "
            f"be read.{seem} The file is kept as {name}{DAMAGED}"
        )
    for log in logs:
        yield from gap_line(log, journal.entries(log.topic_id, log.partition))


def gap_line(log: PartitionLog, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield a line if a log ends before the last of its entries in a damaged journal, because batches between are
    missing."""
    past = [entry for entry in entries if entry.header.base_offset >= log.log_end_offset]
    if past:
        name = past[0].file.path.rpartition("/")[2]
        yield (
            f"partition {log.name} ends at offset {log.log_end_offset}, which the damaged journal lacks; its batches "
            f"from offset {past[0].header.base_offset} to {past[-1].header.last_offset} are only in {name}{DAMAGED}"
        )
