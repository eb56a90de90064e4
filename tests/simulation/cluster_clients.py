"""The clients of a simulated cluster. Each is a generator that yields requests and pauses, so that it takes time.

A client finds its brokers by asking any of them, and asks again where an answer says so or is lost.
"""

from dataclasses import dataclass
from typing import Any

from broker.record.batch import read_header, walk
from broker.record.records import BatchRecord, decode_records, encode_batch
from broker.wire import fetch, produce, tags
from broker.wire.errors import ErrorCode
from broker.wire.fetch import READ_UNCOMMITTED
from broker.wire.id_entries import read_entries
from tests.broker.engine_client import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    WALL_MS,
)
from tests.simulation.cluster_oracle import Transaction, key_of

STABLE = "stable"
"""A topic that is never deleted."""
TOPICS = (STABLE, "flights", "storms")
GROUP, TRANSACTION = 0, 1
TIMEOUT_MS = 10_000
EARLIEST = -2
"""The timestamp that stands for the start of a partition."""
TRIES = 30
NOT_SERVED = -2
"""In place of an error code: no broker has answered."""
LATER = {
    NOT_SERVED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
}
"""The errors after which a client tries again."""


@dataclass
class Ask:
    """A request of a client. The generator receives the answer, or None if it is lost."""

    broker_id: int
    api_key: int
    version: int
    fields: Any
    tags: Any = None
    partition: tuple[str, int] | None = None
    """The partition that is written or read."""


@dataclass
class Sleep:
    ms: int


class Client:
    """A client that knows who leads the partitions as of its last question."""

    def __init__(self, world, name):
        self.world, self.name, self.random = world, name, world.random
        self.topics = {}
        """By name: (topic id, {partition: leader})."""
        self.controller_id = None
        self.values = 0

    def run(self):
        """Act until the world heals."""
        while not self.world.is_healing:
            yield Sleep(self.random.randint(20, 1_500))
            yield from self.act()

    def act(self):
        raise NotImplementedError

    def any_broker(self):
        return self.random.choice(list(self.world.machines))

    def new_values(self):
        values = []
        for _ in range(self.random.choice((1, 1, 3))):
            self.values += 1
            values.append(f"{self.name}.{self.values}".encode())
        self.world.oracle.sent.update(values)
        return values

    def refresh(self, *topics, creates=False):
        """Ask any broker for topics, which it makes if they do not exist and `creates` is True."""
        fields = {"topics": [{"name": topic} for topic in topics], "allow_auto_topic_creation": creates}
        answer = yield Ask(self.any_broker(), METADATA, 12, fields)
        if answer is None:
            return
        self.controller_id = answer.controller_id
        for topic in answer.topics:
            self.topics.pop(topic.name, None)
            if topic.error_code == 0:
                self.learn(topic)

    def learn(self, topic):
        """Take note of the partitions of a topic, as a broker has named them."""
        self.topics[topic.name] = topic.topic_id, {p.partition_index: p.leader_id for p in topic.partitions}

    def retry(self, attempt, *until):
        """Attempt until the answer's error, which `attempt` returns first, is not one to try again after."""
        outcome = (NOT_SERVED,)
        for _ in range(TRIES):
            outcome = yield from attempt()
            if outcome[0] not in LATER:
                break
            yield Sleep(self.random.randint(50, 1_000))
        return outcome

    def coordinator(self, kind, key):
        """Ask any broker for a coordinator; return its id, or None."""
        answer = yield Ask(self.any_broker(), FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": [key]})
        if answer is None or answer.coordinators[0].error_code:
            return None
        return answer.coordinators[0].node_id

    def ask_coordinator(self, kind, key, api_key, version, fields, code_of):
        """Ask a coordinator until it answers; return (error code, answer)."""

        def attempt():
            node_id = yield from self.coordinator(kind, key)
            answer = None if node_id is None else (yield Ask(node_id, api_key, version, fields))
            return (NOT_SERVED, None) if answer is None else (code_of(answer), answer)

        return (yield from self.retry(attempt))

    def fetch_offset(self, group):
        """Ask for the offset of a group; return (error code, offset)."""
        fields = {"group_id": group, "topics": [{"name": STABLE, "partition_indexes": [0]}], "require_stable": True}

        def code_of(answer):
            return answer.error_code or answer.topics[0].partitions[0].error_code

        code, answer = yield from self.ask_coordinator(GROUP, group, OFFSET_FETCH, 7, fields, code_of)
        return code, answer.topics[0].partitions[0].committed_offset if code == 0 else -1

    def check_offset(self, group):
        """Ask for the offset of a group, and hold the answer to what was committed. Return the error code."""
        code, offset = yield from self.fetch_offset(group)
        if code == 0:
            self.world.oracle.check_offset(group, offset)
        return code

    def leader_of(self, topic, partition):
        _, leaders = self.topics.get(topic, (None, {}))
        leader = leaders.get(partition, -1)
        return leader if leader in self.world.machines else None


class Producer(Client):
    """An idempotent producer. `id` is -1 until a broker has given it one."""

    def __init__(self, world, name):
        super().__init__(world, name)
        self.id = self.epoch = -1
        self.sequences = {}
        self.topic_ids = {}
        """By name: the topic that this producer id has written to."""
        self.is_transactional = False

    def init(self):
        answer = yield Ask(self.any_broker(), INIT_PRODUCER_ID, 4, {"transactional_id": None})
        if answer is not None and answer.error_code == 0:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
            self.topic_ids.clear()
            owner = f"{self.name} {self.values}"
            self.world.oracle.note_producer_id(self.id, owner)

    def act(self):
        if self.id < 0:
            yield from self.init()
        if self.id >= 0:
            topic = self.random.choice(TOPICS)
            yield from self.refresh(topic, creates=self.random.random() < 0.3)
            _, leaders = self.topics.get(topic, (None, {}))
            if leaders and (yield from self.send(topic, self.random.choice(list(leaders)), self.new_values())) != 0:
                self.id = -1

    def send(self, topic, partition, values, transaction=None):
        """Send values until they are acknowledged or refused; return the error code."""
        topic_id, _ = self.topics[topic]
        if self.topic_ids.setdefault(topic, topic_id) != topic_id:
            return NOT_SERVED  # made again, or an image of earlier: sequences begin anew, and so must the producer id
        sequence = self.sequences.get((topic_id, partition), 0)
        ids = {"producer_id": self.id, "producer_epoch": self.epoch, "base_sequence": sequence}
        batch = keyed_batch(values, transactional=self.is_transactional, **ids)
        name = self.name if self.is_transactional else None

        def attempt():
            leader = self.leader_of(topic, partition)
            answer = None
            if leader is not None:
                records = [(topic, partition, memoryview(batch))]
                request = produce.ProduceRequest(name, -1, 30_000, records, True)
                answer = yield Ask(leader, PRODUCE, 9, request, partition=(topic, partition))
            if answer is None or answer[0].error_code in LATER:
                yield from self.refresh(topic)
            return (NOT_SERVED, None) if answer is None else (answer[0].error_code, answer[0])

        code, result = yield from self.retry(attempt)
        key = self.world.served[self.name] if code == 0 else None
        if key is not None:
            self.world.oracle.note_acked(key, result.base_offset, values, result.runs)
            if transaction is not None:
                transaction.values.setdefault(key, set()).update(values)
        self.sequences[topic_id, partition] = sequence + len(values)
        is_other = key is not None and key != (topic_id, partition)  # the topic was made again meanwhile
        return NOT_SERVED if is_other else code


class TransactionalProducer(Producer):
    """A producer of transactions over some partitions, which also commit offsets of its group."""

    def __init__(self, world, name):
        super().__init__(world, name)
        self.is_transactional = True
        self.group = f"group of {name}"
        self.offset = 0

    def init(self):
        fields = {"transactional_id": self.name, "transaction_timeout": TIMEOUT_MS}
        code, answer = yield from self.ask(INIT_PRODUCER_ID, 4, fields, lambda answer: answer.error_code)
        if code == 0:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
            self.topic_ids.clear()
            self.world.oracle.note_producer_id(self.id, self.name)

    def ask(self, api_key, version, fields, code_of):
        return self.ask_coordinator(TRANSACTION, self.name, api_key, version, fields, code_of)

    def act(self):
        """Write a transaction; begin again with another epoch after any error but one."""
        if self.id < 0:
            yield from self.init()
        if self.id < 0:
            return
        transaction, losses = Transaction(), self.world.oracle.losses
        self.world.oracle.transactions.append(transaction)
        is_good = yield from self.write(transaction)
        is_late = self.random.random() < 0.1 and self.send_late(transaction)
        if self.random.random() < 0.1:
            yield Sleep(2 * TIMEOUT_MS)  # it is aborted meanwhile
        is_commit = is_good and not is_late and self.random.random() < 0.8
        transaction.commits = is_commit
        fields = self.fields() | {"transactional_id": self.name, "committed": is_commit}
        code, _ = yield from self.ask(END_TXN, 3, fields, lambda answer: answer.error_code)
        transaction.answered = code == 0
        if transaction.values.get(self.group):
            (offset,) = transaction.values.pop(self.group)
            if is_commit:
                is_sure = code == 0 and losses == self.world.oracle.losses
                self.world.oracle.note_offset(self.group, offset, is_sure=is_sure)
        if code or not is_good or is_late:
            self.id = -1

    def send_late(self, transaction):
        """Send one more batch, which may come after the transaction was aborted. Return False if there is no partition
        to send it to."""
        topics = {topic_id: name for name, (topic_id, _) in self.topics.items()}
        partitions = [key for key in transaction.values if key in self.sequences and key[0] in topics]
        if not partitions:
            return False
        topic_id, partition = self.random.choice(partitions)
        values, producer = self.new_values(), (self.id, self.epoch, self.sequences[topic_id, partition])
        transaction.values[topic_id, partition].update(values)
        self.world.begin(LateBatch(self, topics[topic_id], partition, values, *producer))
        return True

    def fields(self):
        return {"producer_id": self.id, "producer_epoch": self.epoch}

    def write(self, transaction):
        """Write to some partitions. Return True if all of it was acknowledged."""
        for _ in range(self.random.randint(1, 3)):
            topic = self.random.choice(TOPICS)
            yield from self.refresh(topic)
            _, leaders = self.topics.get(topic, (None, {}))
            if not leaders:
                continue
            partition = self.random.choice(list(leaders))
            if (yield from self.add(topic, partition)) != 0:
                return False
            if (yield from self.send(topic, partition, self.new_values(), transaction)) != 0:
                return False
            if self.random.random() < 0.3:
                yield Sleep(self.random.randint(10, 2_000))
        if self.random.random() < 0.3:
            return (yield from self.commit_offset(transaction)) == 0
        return True

    def add(self, topic, partition):
        fields = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": [partition]}],
        }

        def code_of(answer):
            return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

        code, _ = yield from self.ask(ADD_PARTITIONS_TO_TXN, 3, fields, code_of)
        return code

    def commit_offset(self, transaction):
        fields = self.fields() | {"transactional_id": self.name, "group_id": self.group}
        code, _ = yield from self.ask(ADD_OFFSETS_TO_TXN, 3, fields, lambda answer: answer.error_code)
        if code:
            return code
        self.offset += 1
        partitions = [{"partition_index": 0, "committed_offset": self.offset, "committed_metadata": ""}]
        fields |= {"topics": [{"name": STABLE, "partitions": partitions}]}
        code, _ = yield from self.ask_coordinator(
            GROUP, self.group, TXN_OFFSET_COMMIT, 3, fields, lambda answer: answer.topics[0].partitions[0].error_code
        )
        transaction.values[self.group] = {self.offset}
        return code


class LateBatch(Client):
    """A batch of a transaction that is sent, and arrives, apart from the producer's other requests (KIP-890)."""

    def __init__(self, producer, topic, partition, values, producer_id, epoch, sequence):
        super().__init__(producer.world, f"{producer.name} {values[0].decode()} late")
        self.topic, self.partition, self.owner = topic, partition, producer.name
        self.leader = producer.leader_of(topic, partition)
        ids = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        self.batch = keyed_batch(values, **ids, transactional=True)

    def run(self):
        yield Sleep(self.random.choice((0, 300, 3_000, TIMEOUT_MS)))
        if self.leader is not None:
            records = [(self.topic, self.partition, memoryview(self.batch))]
            request = produce.ProduceRequest(self.owner, -1, 30_000, records, True)
            yield Ask(self.leader, PRODUCE, 9, request, partition=(self.topic, self.partition))
            self.world.counts["late batch"] += 1


class Reader(Client):
    """A consumer that reads a part of a partition by offset, or from an id on."""

    def act(self):
        topic = self.random.choice(TOPICS)
        yield from self.refresh(topic)
        topic_id, leaders = self.topics.get(topic, (None, {}))
        if not leaders:
            return
        partition = self.random.choice(list(leaders))
        start = self.random.choice((0, 0, self.random.randrange(20)))
        if self.random.random() < 0.3:
            yield from self.check_id(topic, partition, topic_id)
        else:
            read = yield from self.read(topic, partition, start)
            key = self.world.served.get(self.name)
            if read is not None and read[0] and key is not None:
                self.world.oracle.check_read(key, start, *read[:2])

    def check_id(self, topic, partition, topic_id):
        """Look an acknowledged id up: its record is at its offset."""
        acked = self.world.oracle.acked.get((topic_id, partition), {})
        offset = self.random.choice(list(acked)) if acked else None
        leader = self.leader_of(topic, partition)
        if offset is None or leader is None or acked[offset][1] is None:
            return
        partitions = [{"partition_index": partition, "timestamp": acked[offset][1]}]
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": partitions}]}
        answer = yield Ask(leader, LIST_OFFSETS, 7, fields, {tags.IDS: tags.REQUEST}, (topic, partition))
        if answer is None or self.world.served[self.name] != (topic_id, partition):
            return
        result = answer.topics[0].partitions[0]
        oracle, key = self.world.oracle, (topic_id, partition)
        acknowledged = oracle.acked.get(key, {}).get(offset)
        if result.error_code == 0 and acknowledged is not None and not oracle.may_be_gone(key, offset, acknowledged[0]):
            assert result.offset == offset, f"lost-write: id {acked[offset]} of offset {offset} is at {result.offset}"

    def start_of(self, topic, partition):
        """Ask for the offset at which a partition begins."""
        partitions = [{"partition_index": partition, "timestamp": EARLIEST}]
        fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": partitions}]}
        answer = yield Ask(self.leader_of(topic, partition), LIST_OFFSETS, 7, fields, partition=(topic, partition))
        return answer.topics[0].partitions[0].offset

    def read(self, topic, partition, offset, isolation=READ_UNCOMMITTED):
        """Return (records, ids by offset, answer), None without an answer."""
        leader = self.leader_of(topic, partition)
        if leader is None:
            return None
        wanted = [fetch.FetchPartition(topic, partition, offset, 1 << 20)]
        request = fetch.FetchRequest(0, 1, 1 << 20, wanted, isolation_level=isolation, wants_ids=True)
        answer = yield Ask(leader, FETCH, 12, request, partition=(topic, partition))
        if answer is None or answer.error_code or answer.partitions[0].error_code:
            return None
        return *records_of(answer.partitions[0], offset), answer


def keyed_batch(values, **fields):
    """Return a batch of values with their keys."""
    records = [BatchRecord(number, 0, key_of(value), value) for number, value in enumerate(values)]
    return encode_batch(records, base_timestamp_ms=WALL_MS, **fields)


def end_of(fetched, start):
    """Return the offset after the last batch of an answer, `start` if it has none."""
    return max([header.last_offset + 1 for _, header in walk(bytes(fetched.records))], default=start)


def records_of(fetched, start):
    """Return [(offset, value)] of the data records from `start` on, and the ids by offset."""
    data, position, records, ids = bytes(fetched.records), 0, [], {}
    while position < len(data):
        header = read_header(data, position)
        if not header.is_control:
            records += [(record.offset, record.value) for record in decode_records(data, position)]
        position += header.size
    if fetched.ids is not None:
        for entry in read_entries(bytes(fetched.ids.entries), fetched.ids.base_offset):
            ids.update((entry.offset + n, entry.first_id + n) for n in range(entry.length))
    return [record for record in records if record[0] >= start], ids
