"""Kafka requests encoded by hand, field by field (https://kafka.apache.org/protocol).

The broker's own encoders are part of what the oracle compares, so a script must not be made with them. `Message` also
notes where the lengths and variable-length integers of a request are, because mutations aim at them.
"""

import struct
from typing import NamedTuple

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 0, 1, 2, 3, 8, 9, 10
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 18, 19, 20, 21, 22
ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
INCREMENTAL_ALTER_CONFIGS, ALTER_CLIENT_QUOTAS = 44, 49

FLEXIBLE = {
    PRODUCE: 9, FETCH: 12, LIST_OFFSETS: 6, METADATA: 9, OFFSET_COMMIT: 8, OFFSET_FETCH: 6, FIND_COORDINATOR: 3,
    API_VERSIONS: 3, CREATE_TOPICS: 5, DELETE_TOPICS: 4, DELETE_RECORDS: 2, INIT_PRODUCER_ID: 2,
    ADD_PARTITIONS_TO_TXN: 3, ADD_OFFSETS_TO_TXN: 3, END_TXN: 3, TXN_OFFSET_COMMIT: 3,
    INCREMENTAL_ALTER_CONFIGS: 1, ALTER_CLIENT_QUOTAS: 1,
}  # fmt: skip
"""The first flexible version (KIP-482) of each API."""

IDS_TAG = b"\x01\xc2\xe3\x03\x01\x01"
"""A tag section with one tag, 61890, of one byte: the private question for ids."""
LENGTH_BYTES = 4


class Frame(NamedTuple):
    """A request with its length field. The driver gets the first four fields.

    `fills` are (position, slot): bytes to be replaced by what an earlier answer gave. `seals` are the (start, end) of
    record batches whose CRC must be computed after that. `learn` is (slot, position, length, position of an error code
    or None) in the answer, which has no length field there.
    """

    data: bytes
    fills: tuple = ()
    seals: tuple = ()
    learn: tuple | None = None
    marks: tuple = ()
    """(position, size) of lengths and counts."""
    varints: tuple = ()
    """(position, size) of those among them that are variable-length integers."""
    batches: tuple = ()
    """(start, end) of the record batches."""

    @property
    def for_driver(self):
        return self[:4]

    @property
    def api_key(self):
        return int.from_bytes(self.data[4:6], "big")

    @property
    def version(self):
        return int.from_bytes(self.data[6:8], "big")

    @property
    def bytes_promised(self):
        """By how many bytes the length field says more than there are; 0 where it is honest."""
        return int.from_bytes(self.data[:LENGTH_BYTES], "big") - len(self.data) + LENGTH_BYTES


def uvarint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class Message:
    """A request in the making. The client id is bytes, or None."""

    def __init__(self, api_key, version, correlation_id, client_id, flexible=None):
        self.version = version
        self.flexible = version >= FLEXIBLE[api_key] if flexible is None else flexible
        self.out = bytearray(LENGTH_BYTES)
        self.fills, self.seals, self.marks, self.varints, self.batches = [], [], [(0, LENGTH_BYTES)], [], []
        self.out += struct.pack(">hhi", api_key, version, correlation_id & 0x7FFFFFFF)
        self.marks.append((len(self.out), 2))
        self.out += struct.pack(">h", -1 if client_id is None else len(client_id)) + (client_id or b"")
        self.tags()

    def pack(self, layout, *values):
        self.out += struct.pack(">" + layout, *values)

    def length(self, number, layout="i"):
        """A length or count: a compact one in flexible versions, where null is 0."""
        at = len(self.out)
        self.out += uvarint(number + 1) if self.flexible else struct.pack(">" + layout, number)
        self.marks.append((at, len(self.out) - at))
        if self.flexible:
            self.varints.append((at, len(self.out) - at))

    def string(self, text):
        """A nullable string, of bytes."""
        self.length(-1 if text is None else len(text), "h")
        self.out += text or b""

    def bytes(self, data):
        self.length(-1 if data is None else len(data))
        self.out += data or b""

    def slot(self, slot, size):
        """Room for what an earlier answer gives."""
        self.fills.append((len(self.out), slot))
        self.out += bytes(size)

    def topic(self, name, by_id):
        if by_id:
            self.slot(("topic", name), 16)
        else:
            self.string(name.encode())

    def batch(self, batch):
        """The records of a partition: a `Batch`, or None."""
        if batch is None:
            self.length(-1)
            return
        self.length(len(batch.data))
        start = len(self.out)
        self.out += batch.data
        if len(batch.data):
            self.batches.append((start, len(self.out)))
        if batch.slot is not None:
            self.fills.append((start + PRODUCER_AT, batch.slot))
            self.seals.append((start, len(self.out)))

    def tags(self, section=b"\0"):
        if self.flexible:
            if section != b"\0":
                self.marks.append((len(self.out), len(section)))
            self.out += section

    def frame(self, learn=None):
        self.out[:LENGTH_BYTES] = struct.pack(">i", len(self.out) - LENGTH_BYTES)
        parts = (self.fills, self.seals, self.marks, self.varints, self.batches)
        fills, seals, marks, varints, batches = map(tuple, parts)
        return Frame(bytes(self.out), fills, seals, learn, marks, varints, batches)


PRODUCER_AT = 43  # producer id and epoch in a batch: ten bytes, as they stand together in transactional requests too


class Batch(NamedTuple):
    """A record batch; the driver puts the producer id and epoch of `slot` into it."""

    data: bytes
    slot: tuple | None = None


def produce(message, topics, acks=1, timeout_ms=30_000, transactional_id=None, wants_ids=False):
    """`topics` are (name, [(partition, batch or None)])."""
    message.string(transactional_id)
    message.pack("hi", acks, timeout_ms)
    message.length(len(topics))
    for name, partitions in topics:
        message.topic(name, message.version >= 13)
        message.length(len(partitions))
        for partition, batch in partitions:
            message.pack("i", partition)
            message.batch(batch)
            message.tags()
        message.tags()
    message.tags(IDS_TAG if wants_ids else b"\0")
    return message.frame()


class Wanted(NamedTuple):
    """A partition of a Fetch."""

    topic: str
    partition: int
    offset: int
    max_bytes: int = 1 << 20
    leader_epoch: int = -1
    last_epoch: int = -1


class Session(NamedTuple):
    """The fetch session of a Fetch: `slot` holds its id, None for no session."""

    slot: tuple | None = None
    epoch: int = -1


def fetch(
    message, wanted, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, committed=False, session=Session(), forgotten=(),
    wants_ids=False, replica=-1,
):  # fmt: skip
    version = message.version
    if version < 15:
        message.pack("i", replica)
    message.pack("iiib", max_wait_ms, min_bytes, max_bytes, committed)
    learn = None
    if version >= 7:
        if session.slot is None or session.epoch == 0:
            message.pack("i", 0)
        else:
            message.slot(session.slot, 4)
        message.pack("i", session.epoch)
        if session.slot is not None and session.epoch == 0:
            tag = message.flexible
            learn = session.slot, 10 + tag, 4, 8 + tag
    message.length(len(wanted))
    for part in wanted:
        message.topic(part.topic, version >= 13)
        message.length(1)
        message.pack("i", part.partition)
        if version >= 9:
            message.pack("i", part.leader_epoch)
        message.pack("q", part.offset)
        if version >= 12:
            message.pack("i", part.last_epoch)
        if version >= 5:
            message.pack("q", -1)
        message.pack("i", part.max_bytes)
        message.tags()
        message.tags()
    if version >= 7:
        message.length(len(forgotten))
        for topic, partition in forgotten:
            message.topic(topic, version >= 13)
            message.length(1)
            message.pack("i", partition)
            message.tags()
    if version >= 11:
        message.string(b"")
    message.tags(IDS_TAG if wants_ids else b"\0")
    return message.frame(learn)


def list_offsets(message, partitions, committed=False, wants_ids=False):
    """`partitions` are (topic, partition, timestamp)."""
    version = message.version
    message.pack("i", -1)
    if version >= 2:
        message.pack("b", committed)
    message.length(len(partitions))
    for topic, partition, timestamp in partitions:
        message.string(topic.encode())
        message.length(1)
        message.pack("i", partition)
        if version >= 4:
            message.pack("i", -1)
        message.pack("q", timestamp)
        message.tags()
        message.tags()
    if version >= 10:
        message.pack("i", 5_000)
    message.tags(IDS_TAG if wants_ids else b"\0")
    return message.frame()


def metadata(message, topics, auto_create=False):
    """`topics` are names; None asks for all."""
    version = message.version
    if topics is None and version == 0:
        topics = ()
    message.length(-1 if topics is None else len(topics))
    for topic in topics or ():
        if version >= 10:
            message.out += bytes(16)
        message.string(topic.encode())
        message.tags()
    if version >= 4:
        message.pack("?", auto_create)
    if 8 <= version <= 10:
        message.pack("?", False)
    if version >= 8:
        message.pack("?", False)
    message.tags()
    return message.frame()


def api_versions(message):
    if message.version >= 3:
        message.string(b"oracle")
        message.string(b"1.0")
        message.tags()
    return message.frame()


def find_coordinator(message, key, kind):
    if message.version >= 4:
        message.pack("b", kind)
        message.length(1)
        message.string(key)
    else:
        message.string(key)
        if message.version >= 1:
            message.pack("b", kind)
    message.tags()
    return message.frame()


def init_producer_id(message, slot, transactional_id=None, timeout_ms=60_000):
    """The answer's producer id and epoch go to `slot`."""
    message.string(transactional_id)
    message.pack("i", timeout_ms)
    if message.version >= 3:
        message.pack("qh", -1, -1)
    message.tags()
    tag = message.flexible
    return message.frame((slot, 10 + tag, 10, 8 + tag))


def add_partitions_to_txn(message, transactional_id, producer, partitions):
    """`producer` is the slot of a producer id and epoch."""
    message.string(transactional_id)
    message.slot(producer, 10)
    message.length(len(partitions))
    for topic, partition in partitions:
        message.string(topic.encode())
        message.length(1)
        message.pack("i", partition)
        message.tags()
    message.tags()
    return message.frame()


def add_offsets_to_txn(message, transactional_id, producer, group):
    message.string(transactional_id)
    message.slot(producer, 10)
    message.string(group)
    message.tags()
    return message.frame()


def txn_offset_commit(message, transactional_id, producer, group, topic_partition, offset):
    message.string(transactional_id)
    message.string(group)
    message.slot(producer, 10)
    if message.version >= 3:
        message.pack("i", -1)
        message.string(b"")
        message.string(None)
    _committed(message, topic_partition, offset, message.version >= 2)
    message.tags()
    return message.frame()


def _committed(message, topic_partition, offset, with_epoch, by_id=False):
    topic, partition = topic_partition
    message.length(1)
    message.topic(topic, by_id)
    message.length(1)
    message.pack("iq", partition, offset)
    if with_epoch:
        message.pack("i", -1)
    message.string(b"note")
    message.tags()
    message.tags()


def end_txn(message, transactional_id, producer, commit):
    message.string(transactional_id)
    message.slot(producer, 10)
    message.pack("?", commit)
    message.tags()
    return message.frame()


def offset_commit(message, group, topic_partition, offset):
    """A commit of one partition by a client that is no member of the group."""
    version = message.version
    message.string(group)
    message.pack("i", -1)
    message.string(b"")
    if version >= 7:
        message.string(None)
    if version <= 4:
        message.pack("q", -1)
    _committed(message, topic_partition, offset, version >= 6, version >= 10)
    message.tags()
    return message.frame()


def offset_fetch(message, group, topic_partition):
    version = message.version
    topic, partition = topic_partition
    if version >= 8:
        message.length(1)
    message.string(group)
    if version >= 9:
        message.string(None)
        message.pack("i", -1)
    message.length(1)
    message.topic(topic, version >= 10)
    message.length(1)
    message.pack("i", partition)
    message.tags()
    if version >= 8:
        message.tags()
    if version >= 7:
        message.pack("?", False)
    message.tags()
    return message.frame()


def delete_records(message, topic, partition, offset):
    message.length(1)
    message.string(topic.encode())
    message.length(1)
    message.pack("iq", partition, offset)
    message.tags()
    message.tags()
    message.pack("i", 5_000)
    message.tags()
    return message.frame()


def create_topic(message, name, partitions, configs=()):
    message.length(1)
    message.string(name.encode())
    message.pack("ih", partitions, 1)
    message.length(0)
    message.length(len(configs))
    for key, value in configs:
        message.string(key)
        message.string(value)
        message.tags()
    message.tags()
    message.pack("i?", 5_000, False)
    message.tags()
    return message.frame()


def delete_topic(message, name):
    if message.version >= 6:
        message.length(1)
        message.string(name.encode())
        message.out += bytes(16)
        message.tags()
    else:
        message.length(1)
        message.string(name.encode())
    message.pack("i", 5_000)
    message.tags()
    return message.frame()


def alter_topic(message, topic, key, value):
    """Set a topic's property."""
    message.length(1)
    message.pack("b", 2)
    message.string(topic.encode())
    message.length(1)
    message.string(key)
    message.pack("b", 0)
    message.string(value)
    message.tags()
    message.tags()
    message.pack("?", False)
    message.tags()
    return message.frame()


def alter_quota(message, key, value):
    """Give all clients a quota; None takes it away."""
    message.length(1)
    message.length(1)
    message.string(b"client-id")
    message.string(None)
    message.tags()
    message.length(1)
    message.string(key)
    message.pack("d?", value or 0, value is None)
    message.tags()
    message.tags()
    message.pack("?", False)
    message.tags()
    return message.frame()
