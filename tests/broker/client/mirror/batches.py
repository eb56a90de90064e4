"""Record batches of a source, as tests of a mirror write them."""

from broker.client.log_record import NO_IDS, RecordIds
from broker.client.mirror.source_batch import SourceBatch
from broker.record.batch import read_header, seal
from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch

TIME_MS = 1_700_000_000_000


def source_batch(base_offset=100, deltas=(0, 1, 2), codec=Codec.NONE, first=None, attributes=0, first_id=None, **more):
    """Return a batch of orders-0 whose records have these offset deltas, and the values v0, v1, ..."""
    records = [
        BatchRecord(delta, 10 * delta, b"k%d" % delta, more.get("value", b"v%d" % delta), (("h", b"%d" % delta),))
        for delta in deltas
    ]
    data = encode_batch(
        records, base_timestamp_ms=TIME_MS, base_offset=base_offset, codec=codec, producer_id=7, producer_epoch=1,
        base_sequence=50,
    )  # fmt: skip
    header = read_header(data)
    header = seal(data, header._replace(attributes=header.attributes | attributes))
    ids = NO_IDS if first_id is None else (RecordIds(1 << 31, first_id),)
    start = base_offset if first is None else first
    return SourceBatch(header.last_offset, "orders", 0, start, header, bytes(data), ids)
