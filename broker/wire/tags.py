"""Flakelog's only extension of the wire protocol: a tagged field (KIP-482) that a request asks for.

A client that sends `IDS` as a top-level tag of a Produce (v9 up), Fetch (v12 up) or ListOffsets (v6 up) request gets
ids in that answer. Other clients never get a private tag, so a stock client sees plain Kafka.

    request     IDS = one byte, the version of this scheme (1)
    Produce     in each partition of the answer: IDS = runs, each (first id i64, count i32), in offset order
    Fetch       in each partition of the answer that has records: IDS = the segment's base offset (i64), then raw
                entries of its id index (broker.wire.id_entries), a superset of what the records need;
                to a follower, in that of an empty log: IDS = the log's last id (i64)
    ListOffsets the broker reads the request's timestamps as ids and answers with the first offset whose id is not
                below. The answer has the tag at its top level too; an answer without the tag comes from another broker,
                which has read the ids as times
"""

import struct

IDS = 61_890
VERSION = 1
REQUEST = bytes([VERSION])
NO_ID = -1

RUN = struct.Struct(">qi")
BASE_OFFSET = struct.Struct(">q")
