"""An in-memory cluster behind the ReadClient port. It answers the core's exchanges with the server's codecs."""

from collections import Counter, deque
from typing import NamedTuple
from uuid import UUID

from broker.client.core import ClientCore, carry_out
from broker.client.errors import Unreachable
from broker.record.control import Marker, encode_marker
from broker.record.records import BatchRecord, encode_batch
from broker.wire import cold, fetch, tags
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchedPartition, FetchResponse, IdRegion
from broker.wire.id_entries import pack_entry, seed_of
from broker.wire.produce import API_KEY as PRODUCE
from spark_bridge.reading.network import Address
from tests.poison import at_offset

BOOTSTRAP = Address("bootstrap", 9092)
LEADER = Address("leader", 9093)
TOPIC_ID = UUID(int=77)
BATCH = 10
FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, DESCRIBE_CONFIGS = 1, 2, 3, 18, 32

# Kafka's documentation of its releases; 2.1 has neither topic ids nor flexible versions of these requests.
KAFKA_2_1 = {PRODUCE: (0, 7), FETCH: (0, 10), LIST_OFFSETS: (0, 4), METADATA: (0, 7), API_VERSIONS: (0, 2)}
KAFKA_3_9 = {PRODUCE: (0, 11), FETCH: (0, 17), LIST_OFFSETS: (0, 9), METADATA: (0, 12), API_VERSIONS: (0, 4)}
KAFKA_4_0 = {PRODUCE: (3, 12), FETCH: (4, 17), LIST_OFFSETS: (1, 10), METADATA: (0, 13), API_VERSIONS: (0, 4)}


class Throttle(NamedTuple):
    """A fault: an answer to a reader over its quota, without data but with a time to wait (KIP-219)."""

    ms: int


class Cluster:
    """The ReadClient port over `topics` with two partitions each, all with the same log.

    The log has batches of ten records; each record has its offset as timestamp, and ids start at 1000. Each Fetch or
    ListOffsets of a partition consumes one of `faults`: an OSError ends the connection, an error code is answered, a
    Throttle delays. Without `ids` the cluster acts as Apache Kafka and ignores the private tag. Batches whose base
    offsets are in `aborted` are aborted transactions, with nine records and a marker each. A transaction is open since
    `open_from`. `policies` has the cleanup.policy of topics; the others may not be described. Compaction removed all
    batches from `removed_from` on.
    """

    def __init__(
        self, end, start=0, faults=(), ids=True, per_fetch=2, topics=("t",), versions=KAFKA_4_0, value=b"%d".__mod__
    ):
        self.core = ClientCore([BOOTSTRAP, LEADER])
        self.start, self.end, self.ids, self.per_fetch = start, end, ids, per_fetch
        self.faults = list(faults)
        self.send_faults = []
        self.poison = {}  # base offset -> a batch of as many offsets, in place of the usual one
        self.aborted = ()
        self.open_from = None
        self.policies = {}
        self.removed_from = None
        self.topics = topics
        self.value = value
        self.versions = versions
        self.topic_id = TOPIC_ID
        self.topic_error = ErrorCode.NONE
        self.leaders = {0: 1, 1: 0}
        self.down = set()
        self.connected, self.paused, self.fetched, self.fetched_bytes = [], [], [], 0
        self.requests = Counter()
        self.asked_versions = {}
        self.connections = {}

    # --- the ReadClient port ------------------------------------------------------------------------------------------

    def run(self, steps):
        return carry_out(steps, self.ask)

    def ask(self, exchange):
        self.give_up(exchange.address)
        self.send(exchange)
        return self.receive(exchange.address)

    def send(self, exchange):
        address = exchange.address
        if address not in self.connections:
            self.connected.append(address)
            if address in self.down:
                raise self.unreachable(address, f"{address} refused")
            self.connections[address] = deque()
        if exchange.api_key == FETCH and self.send_faults and (fault := self.send_faults.pop(0)):
            raise self.unreachable(address, repr(fault))
        self.connections[address].append(exchange)

    def receive(self, address):
        if address not in self.connections:
            raise self.unreachable(address, "the connection is closed")
        try:
            return memoryview(self.answer(self.connections[address].popleft()))
        except OSError as error:
            raise self.unreachable(address, repr(error)) from error

    def unreachable(self, address, reason):
        self.connections.pop(address, None)
        self.core.forget(address)
        return Unreachable(str(address), reason)

    def give_up(self, address):
        if self.connections.get(address):
            del self.connections[address]

    def pause(self, ms):
        self.paused.append(ms)

    def close(self):
        self.connections.clear()

    # --- answers ------------------------------------------------------------------------------------------------------

    def answer(self, exchange):
        answers = {
            API_VERSIONS: self.api_versions, FETCH: self.fetch, LIST_OFFSETS: self.list_offsets,
            METADATA: self.metadata, DESCRIBE_CONFIGS: self.describe_configs,
        }  # fmt: skip
        name = answers[exchange.api_key].__name__
        self.requests[name] += 1
        self.asked_versions[name] = exchange.version
        return answers[exchange.api_key](exchange.version, memoryview(exchange.body))

    def api_versions(self, version, body):
        keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in self.versions.items()]
        if version > self.versions[API_VERSIONS][1]:
            return cold.encode(API_VERSIONS, 0, "response", {"error_code": 35, "api_keys": keys[-1:]})
        return cold.encode(API_VERSIONS, version, "response", {"error_code": 0, "api_keys": keys})

    def metadata(self, version, body):
        request = cold.decode(METADATA, version, "request", body, 0, version).newest
        assert not request.allow_auto_topic_creation
        partitions = [{"partition_index": p, "leader_id": leader} for p, leader in self.leaders.items()]
        good = {"topic_id": self.topic_id, "partitions": partitions, "error_code": self.topic_error}
        unknown = {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        existing = (*self.topics, "__consumer_offsets")
        names = existing if request.topics is None else [topic.name for topic in request.topics]
        topics = [
            {"name": name, "is_internal": name[:2] == "__"} | (good if name in existing else unknown) for name in names
        ]
        brokers = [{"node_id": n, "host": a.host, "port": a.port} for n, a in enumerate((BOOTSTRAP, LEADER))]
        return cold.encode(METADATA, version, "response", {"brokers": brokers, "cluster_id": "c", "topics": topics})

    def describe_configs(self, version, body):
        request = cold.decode(DESCRIBE_CONFIGS, version, "request", body, 0, version).newest
        results = []
        for resource in request.resources:
            policy = self.policies.get(resource.resource_name)
            result = {"resource_type": resource.resource_type, "resource_name": resource.resource_name, "configs": []}
            if policy is None:
                result["error_code"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            else:
                result["configs"] = [{"name": name, "value": policy} for name in resource.configuration_keys]
            results.append(result)
        return cold.encode(DESCRIBE_CONFIGS, version, "response", {"results": results})

    def list_offsets(self, version, body):
        message = cold.decode(LIST_OFFSETS, version, "request", body, 0, version)
        by_id = self.ids and tags.IDS in message.tags
        topics = []
        for topic in message.newest.topics:
            partitions = []
            for partition in topic.partitions:
                fault = self.fault()
                offset = self.offset_of(partition.timestamp, by_id, message.newest.isolation_level)
                index = partition.partition_index
                partitions.append({"partition_index": index, "error_code": fault or 0, "offset": offset})
            topics.append({"name": topic.name, "partitions": partitions})
        tagged = {tags.IDS: tags.REQUEST} if by_id else None
        return cold.encode(LIST_OFFSETS, version, "response", {"topics": topics}, tagged)

    def offset_of(self, timestamp, as_id, isolation):
        if not as_id and timestamp < 0:
            return {-1: self.stable if isolation else self.end, -2: self.start}[timestamp]
        offset = max(timestamp - 1000 if as_id else timestamp, self.start)
        return offset if offset < self.end else -1

    @property
    def stable(self):
        return self.end if self.open_from is None else self.open_from

    def fault(self):
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        return fault

    def fetch(self, version, body):
        request = fetch.decode_request(version, body, 0)
        (partition,) = request.partitions
        self.fetched.append(partition.fetch_offset)
        fault = self.fault()
        if fault is None and version >= fetch.TOPIC_IDS and partition.topic != self.topic_id:
            fault = ErrorCode.UNKNOWN_TOPIC_ID
        if isinstance(fault, Throttle):
            return b"".join(fetch.encode_response(version, FetchResponse(throttle_ms=fault.ms)))
        answer = FetchedPartition(partition.topic, partition.partition, 0, self.end, self.stable, self.start)
        if fault is not None:
            answer.error_code = fault
        elif not self.start <= partition.fetch_offset <= self.end:
            # As Kafka answers: without the bounds of the log.
            answer = FetchedPartition(partition.topic, partition.partition, ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            self.fill(answer, partition, self.stable if request.isolation_level else self.end)
            if request.isolation_level:
                answer.aborted = tuple((base, base) for base in self.aborted)
            if not (self.ids and request.wants_ids):
                answer.ids = None
        self.fetched_bytes += len(answer.records)
        return b"".join(fetch.encode_response(version, FetchResponse([answer])))

    def fill(self, answer, partition, end):
        """Fill in whole batches, the last cut at the size that is asked for, unless it is the first (KIP-74)."""
        first = partition.fetch_offset - partition.fetch_offset % BATCH
        bases = range(first, min(first + BATCH * self.per_fetch, end), BATCH)
        if self.removed_from is not None:
            bases = [base for base in bases if base < self.removed_from]
        batches = [bytes(self.batch(base)) for base in bases]
        if batches:
            answer.records = b"".join(batches)[: max(partition.max_bytes, len(batches[0]))]
        answer.ids = IdRegion(0, b"".join(pack_entry(seed_of(0), base, BATCH, 1000 + base) for base in bases))

    def batch(self, base):
        if base in self.poison:
            return at_offset(self.poison[base], base)
        records = [BatchRecord(n, n, None, self.value(base + n)) for n in range(BATCH)]
        if base in self.aborted:
            marker = encode_marker(base, 0, Marker(False, 0), base)
            more = {"producer_id": base, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
            batch = encode_batch(records[:-1], base_timestamp_ms=base, base_offset=base, **more)
            return batch + at_offset(marker, base + BATCH - 1)
        return encode_batch(records, base_timestamp_ms=base, base_offset=base)
