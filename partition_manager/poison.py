"""Poison batches as messages: a batch whose records cannot be decoded stands for one message, which is never emitted.

Its value is the whole batch as it lies in the log, so the dead letter keeps every byte.
"""

from collections.abc import Mapping, Sequence

from broker.client.records import PoisonBatch
from broker.record.batch import read_header
from partition_manager.ports import FetchedRecord

LAST_OFFSET = "flakelog-dead-last-offset"
"""Header of the message. The first offset is the message's own."""


def with_poison(
    records: Sequence[FetchedRecord], poison: Sequence[PoisonBatch], from_offset: int
) -> tuple[Sequence[FetchedRecord], Mapping[int, PoisonBatch]]:
    """Return the records and the messages of poison batches in order of offset, and the batches by their offset."""
    batches = {max(batch.base_offset, from_offset): batch for batch in poison if batch.last_offset >= from_offset}
    messages = [_message(batch, offset) for offset, batch in batches.items()]
    return sorted([*records, *messages], key=lambda record: record.offset), batches


def _message(batch: PoisonBatch, offset: int) -> FetchedRecord:
    """Return the message for a batch. Its offset is above the batch's first if the reader began in the middle."""
    id = batch.first_id if offset == batch.base_offset else None
    headers = ((LAST_OFFSET, b"%d" % batch.last_offset),)
    return FetchedRecord(offset, id, read_header(batch.data).max_timestamp, None, batch.data, headers)
