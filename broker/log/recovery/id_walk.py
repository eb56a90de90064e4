"""A walk over an id index beside the batches of its segment: recovery learns which ids are exactly whose."""

from broker.log.index.id_index import IdIndex
from broker.record.batch import BatchHeader
from broker.wire.id_entries import IdEntry


class IdWalk:
    """A walk over the id index, batch by batch, from an entry on. Batches of one write may share an entry.

    `number` counts the used-up entries, and `last_id` is the last id taken.
    """

    def __init__(self, ids: IdIndex, number: int, last_id: int) -> None:
        self._ids = ids
        self.number = number
        self.last_id = last_id
        self._entry: IdEntry | None = None
        self._offset = 0

    @property
    def begun(self) -> IdEntry | None:
        """Return the used part of an entry that is only partly used, None if every entry is used up."""
        entry = self._entry
        return entry and entry._replace(length=self._offset - entry.offset)

    def take(self, header: BatchHeader) -> bool:
        """Take the next batch's ids. Return False, and take nothing, unless they rise and are exactly the batch's."""
        offset, end = header.base_offset, header.last_offset + 1
        number, entry, last_id = self.number, self._entry, self.last_id
        if entry is not None and offset != self._offset:
            return False
        while offset < end:
            if entry is None:
                entry = self._ids.entry(number)
                if entry is None or entry.offset != offset or entry.first_id <= last_id:
                    return False
            entry_end = entry.offset + entry.length
            offset = min(entry_end, end)
            last_id = entry.first_id + offset - entry.offset - 1
            if offset == entry_end:
                number, entry = number + 1, None
        self.number, self._entry, self._offset, self.last_id = number, entry, offset, last_id
        return True
