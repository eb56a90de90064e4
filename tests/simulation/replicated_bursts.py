"""Clients that send one request each, to a broker that a sequence names, and never try again."""

from broker.wire import produce
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    DELETE_RECORDS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
)
from tests.simulation.cluster_clients import STABLE, Ask, Client, keyed_batch

TIMEOUT_MS = 10_000


class Single(Client):
    """A client of one request. A subclass says which, and takes its answer."""

    def __init__(self, world):
        super().__init__(world, world.new_name(type(self).__name__.lower()))

    def run(self):
        request = self.request()
        if request is not None and request.broker_id in self.world.machines:
            answer = yield request
            if answer is not None:
                self.answered(answer)

    def request(self):
        raise NotImplementedError

    def answered(self, answer):
        """Take an answer that is not lost."""


class Write(Single):
    """A record for a partition, as its leader is known."""

    def __init__(self, world, partition, leader):
        super().__init__(world)
        self.partition, self.leader = partition, leader

    def request(self):
        self.written = self.new_values()
        records = [(*self.partition, memoryview(keyed_batch(self.written)))]
        request = produce.ProduceRequest(None, -1, TIMEOUT_MS, records, True)
        return Ask(self.leader, PRODUCE, 9, request, partition=tuple(self.partition))

    def answered(self, answer):
        (result,) = answer
        key = self.world.served[self.name] if result.error_code == 0 else None
        if key is not None:
            self.world.oracle.note_acked(key, result.base_offset, self.written, result.runs)


class Commit(Single):
    """An offset of a group, for its coordinator."""

    def __init__(self, world, group, coordinator, offset):
        super().__init__(world)
        self.group, self.coordinator_id, self.offset = group, coordinator, offset

    def request(self):
        self.world.oracle.note_offset(self.group, self.offset, is_sure=False)
        partitions = [{"partition_index": 0, "committed_offset": self.offset, "committed_metadata": ""}]
        fields = {"group_id": self.group, "topics": [{"name": STABLE, "partitions": partitions}]}
        fields |= {"generation_id_or_member_epoch": -1, "member_id": ""}
        return Ask(self.coordinator_id, OFFSET_COMMIT, 8, fields)

    def answered(self, answer):
        if answer.topics[0].partitions[0].error_code == 0:
            self.world.oracle.note_offset(self.group, self.offset, is_sure=True)


class OffsetQuestion(Single):
    """A question for the offset of a group."""

    def __init__(self, world, group, coordinator):
        super().__init__(world)
        self.group, self.coordinator_id = group, coordinator

    def request(self):
        fields = {"group_id": self.group, "topics": [{"name": STABLE, "partition_indexes": [0]}]}
        return Ask(self.coordinator_id, OFFSET_FETCH, 7, fields | {"require_stable": True})

    def answered(self, answer):
        partition = None if answer.error_code else answer.topics[0].partitions[0]
        if partition is not None and partition.error_code == ErrorCode.NONE:
            self.world.oracle.check_offset(self.group, partition.committed_offset)


class Setting(Single):
    """Another value of a topic's setting, which any broker takes."""

    def __init__(self, world, topic, name, value):
        super().__init__(world)
        self.topic, self.setting, self.value = topic, name, value

    def request(self):
        if self.setting == "min.insync.replicas":
            self.world.changed_min_isr.add(self.topic)
        config = {"name": self.setting, "config_operation": 0, "value": str(self.value)}
        resource = {"resource_type": 2, "resource_name": self.topic, "configs": [config]}
        live = [process.id for process in self.world.processes() if process.listens]
        fields = {"resources": [resource]}
        return Ask(self.random.choice(live), INCREMENTAL_ALTER_CONFIGS, 1, fields) if live else None


class Election(Single):
    """A request for the preferred leader of a partition."""

    def __init__(self, world, partition, controller):
        super().__init__(world)
        self.partition, self.controller_id = partition, controller

    def request(self):
        topic, partition = self.partition
        partitions = [{"topic": topic, "partitions": [partition]}]
        fields = {"election_type": 0, "topic_partitions": partitions, "timeout": TIMEOUT_MS}
        return Ask(self.controller_id, ELECT_LEADERS, 2, fields)


class Deletion(Single):
    """The deletion of all records of a partition that are committed."""

    def __init__(self, world, partition, leader, topic_id, offset):
        super().__init__(world)
        self.partition, self.leader, self.key, self.offset = partition, leader, (topic_id, partition.partition), offset

    def request(self):
        oracle, (topic, partition) = self.world.oracle, self.partition
        oracle.starts[self.key] = max(self.offset, oracle.start_of(self.key))
        partitions = [{"partition_index": partition, "offset": self.offset}]
        fields = {"topics": [{"name": topic, "partitions": partitions}], "timeout": TIMEOUT_MS}
        return Ask(self.leader, DELETE_RECORDS, 2, fields)
