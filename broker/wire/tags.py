"""Everything private that Flakelog puts on the wire: one tagged field (KIP-482), asked for by the request.

A client that sends `IDS` as a top-level tag of a Produce (v9 up), Fetch (v12 up) or ListOffsets (v6 up) request gets
ids in that one answer. Who does not ask never sees a private tag, so a stock client meets stock Kafka.

    request     IDS = one byte, the version of this scheme (1)
    Produce     in each partition of the answer: IDS = runs, each (first id i64, count i32), in offset order
    Fetch       in each partition of the answer that has records: IDS = the segment's base offset (i64), then raw
                entries of its id index (broker.wire.id_entries), a superset of what the records need
    ListOffsets the request's timestamps are read as ids: the answer is the first offset whose id is not below it. The
                answer has the tag at its top level too; without it the broker is another one, and has read times
"""

import struct

IDS = 61_890
VERSION = 1
REQUEST = bytes([VERSION])

RUN = struct.Struct(">qi")
BASE_OFFSET = struct.Struct(">q")
