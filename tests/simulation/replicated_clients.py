"""Clients of a simulated cluster whose topics have several copies: a consumer that polls, and an administrator."""

from broker.wire import fetch
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import DELETE_RECORDS, ELECT_LEADERS, FETCH
from tests.simulation.cluster_admin import TIMEOUT_MS, Admin
from tests.simulation.cluster_clients import TOPICS, Ask, Reader, records_of


class Poller(Reader):
    """A consumer that reads each partition on from where it has come to, whoever leads it.

    As Kafka's, it names the newest leader epoch that it has heard of, so that a leader of before refuses it.
    """

    def __init__(self, world, name):
        super().__init__(world, name)
        self.epochs = {}
        """By (topic id, partition): the newest leader epoch that a broker has named."""
        self.positions = {}
        """By (topic id, partition) and the epoch of its last unclean election: the offset that it reads next."""

    def act(self):
        topic = self.random.choice(TOPICS)
        yield from self.refresh(topic)
        topic_id, leaders = self.topics.get(topic, (None, {}))
        for number in leaders:
            yield from self.poll(topic, topic_id, number)

    def learn(self, topic):
        super().learn(topic)
        for partition in topic.partitions:
            key = topic.topic_id, partition.partition_index
            self.epochs[key] = max(partition.leader_epoch, self.epochs.get(key, -1))

    def poll(self, topic, topic_id, number):
        key, leader = (topic_id, number), self.leader_of(topic, number)
        if leader is None:
            return
        losses = self.world.oracle.unclean_epochs.get(key)
        position = self.positions.get((key, losses), 0)
        wanted = [fetch.FetchPartition(topic, number, position, 1 << 20, self.epochs[key])]
        request = fetch.FetchRequest(0, 1, 1 << 20, wanted, wants_ids=True)
        answer = yield Ask(leader, FETCH, 12, request, partition=(topic, number))
        if answer is None or answer.error_code or self.world.served[self.name] != key:
            return
        if self.world.oracle.unclean_epochs.get(key) != losses:
            return
        (fetched,) = answer.partitions
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start = self.world.oracle.start_of(key)
            assert position < start, f"nonmonotonic-poll: {key} ends before {position}, which was read"
            self.positions[key, losses] = start
        elif fetched.error_code == 0:
            records, ids = records_of(fetched, position)
            self.world.oracle.check_read(key, position, records, ids)
            if records:
                self.positions[key, losses] = records[-1][0] + 1


class ReplicatedAdmin(Admin):
    """An administrator who also has leaders elected, records deleted and min.insync.replicas changed."""

    def __init__(self, world, name):
        super().__init__(world, name)
        own = "elect", "elect", "delete records", "set min isr", "set min isr"
        self.kinds = (*Admin.kinds, *own, *(("elect uncleanly",) * 3 if world.allows_unclean else ()))

    def elect(self, topic, target):
        """Ask for the preferred leaders of a topic."""
        partitions = [{"topic": topic, "partitions": list(self.topics[topic][1])}]
        fields = {"election_type": 0, "topic_partitions": partitions, "timeout": TIMEOUT_MS}
        return Ask(target, ELECT_LEADERS, 2, fields)

    def delete_records(self, topic, target):
        """Delete the records below an acknowledged one."""
        topic_id, leaders = self.topics[topic]
        oracle, partition = self.world.oracle, self.random.choice(list(leaders))
        acked, leader = oracle.acked.get((topic_id, partition)), self.leader_of(topic, partition)
        if not acked or leader is None:
            return None
        offset = self.random.choice(list(acked))
        oracle.starts[topic_id, partition] = max(offset, oracle.start_of((topic_id, partition)))
        partitions = [{"partition_index": partition, "offset": offset}]
        fields = {"topics": [{"name": topic, "partitions": partitions}], "timeout": TIMEOUT_MS}
        return Ask(leader, DELETE_RECORDS, 2, fields)

    def elect_uncleanly(self, topic, target):
        """Ask for leaders that may lack records, where no other can lead."""
        partitions = [{"topic": topic, "partitions": list(self.topics[topic][1])}]
        fields = {"election_type": 1, "topic_partitions": partitions, "timeout": TIMEOUT_MS}
        return Ask(target, ELECT_LEADERS, 2, fields)

    def set_min_isr(self, topic, target):
        self.world.changed_min_isr.add(topic)
        return self.set(topic, "min.insync.replicas", self.random.choice((1, 2)))

    def code(self, answer):
        if hasattr(answer, "replica_election_results"):
            return ErrorCode(answer.error_code).name
        topics = getattr(answer, "topics", None)
        if topics and hasattr(topics[0], "partitions") and not hasattr(topics[0], "error_code"):
            return ErrorCode(topics[0].partitions[0].error_code).name
        return super().code(answer)
