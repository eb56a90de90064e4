"""A transactional producer that sends bytes to an EngineBroker, one request at a time."""

from broker.record.batch import read_header
from broker.record.records import decode_records
from broker.wire import fetch, produce
from broker.wire.fetch import READ_COMMITTED
from tests.broker.engine_client import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    batch_of,
)

LOWEST = {FIND_COORDINATOR: 1, INIT_PRODUCER_ID: 0, ADD_PARTITIONS_TO_TXN: 0, PRODUCE: 3, END_TXN: 0, FETCH: 4}
LOWEST |= {ADD_OFFSETS_TO_TXN: 0, TXN_OFFSET_COMMIT: 0}
HIGHEST = {FIND_COORDINATOR: 6, INIT_PRODUCER_ID: 5, ADD_PARTITIONS_TO_TXN: 3, PRODUCE: 12, END_TXN: 4, FETCH: 12}
HIGHEST |= {ADD_OFFSETS_TO_TXN: 4, TXN_OFFSET_COMMIT: 5}


class TransactionalProducer:
    """A producer whose methods return error codes; `id` and `epoch` come from InitProducerId."""

    def __init__(self, broker, transactional_id="payments", versions=HIGHEST, timeout_ms=60_000):
        self.client = broker.connect()
        self.transactional_id = transactional_id
        self.versions = versions
        self.timeout_ms = timeout_ms
        self.id = self.epoch = -1
        self.sequences = {}
        if broker.services.metadata.topic("__transaction_state") is None:
            version = versions[FIND_COORDINATOR]
            fields = {"coordinator_keys": ["x"]} if version >= 4 else {"key": "x"}
            self.client.ask(FIND_COORDINATOR, version, {"key_type": 1} | fields)

    def init(self, keeps=False):
        fields = {"transactional_id": self.transactional_id, "transaction_timeout": self.timeout_ms}
        if keeps:
            fields |= {"producer_id": self.id, "producer_epoch": self.epoch}
        answer = self.client.ask(INIT_PRODUCER_ID, self.versions[INIT_PRODUCER_ID], fields)
        if answer.error_code == 0:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer.error_code

    def add(self, *partitions):
        topics = [{"name": topic, "partitions": [partition]} for topic, partition in partitions]
        fields = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": self.id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": topics,
        }
        answer = self.client.ask(ADD_PARTITIONS_TO_TXN, self.versions[ADD_PARTITIONS_TO_TXN], fields)
        codes = [
            result.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
        return codes if len(set(codes)) > 1 else codes[0]

    def send(self, topic, *values, partition=0, version=None, named=True):
        version = version or self.versions[PRODUCE]
        sequence = self.sequences.get((topic, partition), 0)
        batch = batch_of(
            *values, producer_id=self.id, producer_epoch=self.epoch, base_sequence=sequence, transactional=True
        )
        records = [(topic, partition, memoryview(batch))]
        transactional_id = self.transactional_id if named else None
        request = produce.ProduceRequest(transactional_id, -1, 30_000, records, False)
        (result,) = self.client.ask(PRODUCE, version, request)
        if result.error_code == 0:
            self.sequences[topic, partition] = sequence + len(values)
        return result.error_code

    def end(self, commit, version=None):
        fields = {
            "transactional_id": self.transactional_id,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "committed": commit,
        }
        answer = self.client.ask(END_TXN, version or self.versions[END_TXN], fields)
        if answer.error_code == 0 and (version or 0) >= 5:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer.error_code

    def add_offsets(self, group_id):
        fields = {
            "transactional_id": self.transactional_id,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "group_id": group_id,
        }
        return self.client.ask(ADD_OFFSETS_TO_TXN, self.versions[ADD_OFFSETS_TO_TXN], fields).error_code

    def commit_offset(self, group_id, topic, offset, partition=0, version=None, **member):
        fields = {
            "transactional_id": self.transactional_id,
            "group_id": group_id,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": partition, "committed_offset": offset, "committed_metadata": "here"}
                    ],
                }
            ],
        }
        version = self.versions[TXN_OFFSET_COMMIT] if version is None else version
        answer = self.client.ask(TXN_OFFSET_COMMIT, version, fields | member)
        return answer.topics[0].partitions[0].error_code

    def write(self, topic, *values, partition=0):
        """Add the partition and send the values."""
        assert self.add((topic, partition)) == 0
        assert self.send(topic, *values, partition=partition) == 0


def committed_request(topic, partition=0, offset=0, max_wait_ms=0):
    wanted = [fetch.FetchPartition(topic, partition, offset, 1 << 20)]
    return fetch.FetchRequest(max_wait_ms, 1, 1 << 20, wanted, isolation_level=READ_COMMITTED)


def committed_in(answer):
    """Return the values that a read_committed consumer keeps of a Fetch answer. Like clients, it skips aborted
    transactions until their marker, and all control records."""
    (partition,) = answer.partitions
    assert partition.error_code == 0, partition.error_code
    waiting = sorted(partition.aborted or (), key=lambda aborted: aborted[1])
    skipped, values, position = set(), [], 0
    data = bytes(partition.records)
    while position < len(data):
        header = read_header(data, position)
        while waiting and waiting[0][1] <= header.last_offset:
            skipped.add(waiting.pop(0)[0])
        if header.is_control:
            skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            values += [record.value for record in decode_records(data, position)]
        position += header.size
    return values


def committed(client, topic, partition=0, version=12):
    return committed_in(client.ask(FETCH, version, committed_request(topic, partition)))
