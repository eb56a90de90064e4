"""An in-memory cluster behind the Network port. It answers with the server's codecs."""

from typing import NamedTuple
from uuid import UUID

from broker.record.records import Record, encode_batch
from broker.wire import cold, fetch, tags
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchedPartition, FetchResponse, IdRegion
from broker.wire.frame import read_request_header
from broker.wire.id_entries import pack_entry, seed_of
from broker.wire.primitives import I32, skip_tags
from spark_bridge.reading.network import Address
from tests.poison import at_offset

BOOTSTRAP = Address("bootstrap", 9092)
LEADER = Address("leader", 9093)
TOPIC_ID = UUID(int=77)
BATCH = 10


class Throttle(NamedTuple):
    """A fault: an answer to a reader over its quota, without data but with a time to wait (KIP-219)."""

    ms: int


class Cluster:
    """The Network port over topic "t" with two partitions, both with the same log.

    The log has batches of ten records; each record has its offset as timestamp, and ids start at 1000. Each Fetch or
    ListOffsets consumes one of `faults`: an exception is raised, an error code is answered, a Throttle delays. Without
    `ids` the cluster acts as Apache Kafka and ignores the private tag.
    """

    def __init__(self, end, start=0, faults=(), ids=True, per_fetch=2):
        self.start, self.end, self.ids, self.per_fetch = start, end, ids, per_fetch
        self.faults = list(faults)
        self.send_faults = []
        self.poison = {}  # base offset -> a batch of as many offsets, in place of the usual one
        self.topic_id = TOPIC_ID
        self.topic_error = ErrorCode.NONE
        self.leaders = {0: 1, 1: 0}
        self.down = set()
        self.connected, self.open, self.paused, self.fetched = [], 0, [], []

    def connect(self, address):
        self.connected.append(address)
        if address in self.down:
            raise ConnectionError(f"{address} refused")
        self.open += 1
        return InMemory(self)

    def pause(self, ms):
        self.paused.append(ms)

    def answer(self, frame):
        header = read_request_header(memoryview(frame))
        position = skip_tags(frame, header.body)
        answer = {1: self.fetch, 2: self.list_offsets, 3: self.metadata}[header.api_key]
        body = answer(header.version, memoryview(frame), position)
        return memoryview(I32.pack(header.correlation_id) + b"\0" + body)

    def metadata(self, version, frame, position):
        asked = cold.decode(3, version, "request", frame, position, version).newest
        assert not asked.allow_auto_topic_creation
        partitions = [{"partition_index": p, "leader_id": leader} for p, leader in self.leaders.items()]
        good = {"topic_id": self.topic_id, "partitions": partitions, "error_code": self.topic_error}
        unknown = {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        known = ("t", "__consumer_offsets")
        names = known if asked.topics is None else [each.name for each in asked.topics]
        topics = [
            {"name": name, "is_internal": name[:2] == "__"} | (good if name in known else unknown) for name in names
        ]
        brokers = [{"node_id": n, "host": a.host, "port": a.port} for n, a in enumerate((BOOTSTRAP, LEADER))]
        return cold.encode(3, version, "response", {"brokers": brokers, "cluster_id": "c", "topics": topics})

    def list_offsets(self, version, frame, position):
        message = cold.decode(2, version, "request", frame, position, version)
        (topic,) = message.newest.topics
        partitions = []
        for each in topic.partitions:
            fault = self.fault()
            offset = self.offset_of(each.timestamp, self.ids and tags.IDS in message.tags)
            partitions.append({"partition_index": each.partition_index, "error_code": fault or 0, "offset": offset})
        return cold.encode(2, version, "response", {"topics": [{"name": topic.name, "partitions": partitions}]})

    def offset_of(self, asked, as_id):
        if not as_id and asked < 0:
            return {-1: self.end, -2: self.start}[asked]
        offset = max(asked - 1000 if as_id else asked, self.start)
        return offset if offset < self.end else -1

    def fault(self):
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        return fault

    def fetch(self, version, frame, position):
        request = fetch.decode_request(version, frame, position)
        (asked,) = request.partitions
        self.fetched.append(asked.fetch_offset)
        fault = self.fault()
        if isinstance(fault, Throttle):
            return b"".join(fetch.encode_response(version, FetchResponse(throttle_ms=fault.ms)))
        answer = FetchedPartition(asked.topic, asked.partition, 0, self.end, self.end, self.start)
        if fault is not None:
            answer.error_code = fault
        elif not self.start <= asked.fetch_offset <= self.end:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            self.fill(answer, asked.fetch_offset)
            if not (self.ids and request.wants_ids):
                answer.ids = None
        return b"".join(fetch.encode_response(version, FetchResponse([answer])))

    def fill(self, answer, offset):
        first = offset - offset % BATCH
        bases = range(first, min(first + BATCH * self.per_fetch, self.end), BATCH)
        answer.records = b"".join(self.batch(base) for base in bases)
        answer.ids = IdRegion(0, b"".join(pack_entry(seed_of(0), base, BATCH, 1000 + base) for base in bases))

    def batch(self, base):
        if base in self.poison:
            return at_offset(self.poison[base], base)
        records = [Record(n, n, None, b"%d" % (base + n)) for n in range(BATCH)]
        return encode_batch(records, base_timestamp_ms=base, base_offset=base)


class InMemory:
    """The Connection port: answers in the order of the requests."""

    def __init__(self, cluster):
        self.cluster, self.sent = cluster, []

    def send(self, frame):
        if self.cluster.send_faults and (fault := self.cluster.send_faults.pop(0)):
            raise fault
        self.sent.append(frame)

    def receive(self):
        return self.cluster.answer(self.sent.pop(0))

    def close(self):
        self.cluster.open -= 1
