"""A cluster of real engines whose topics have three copies, and the steps that its tests share.

    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.kill_and_expire(1)
    assert cluster.consume("flights") == [b"a"]
"""

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_TOPICS, FETCH, PRODUCE, fetch_request, produce_request, values_of
from tests.broker.engine_cluster import EngineCluster

FETCHED_MS = 600
"""Within this time an idle follower has fetched once more."""


class ReplicatedCluster(EngineCluster):
    """Brokers 1 to 3. A topic has three copies, of which two must be in sync, unless the test says otherwise."""

    def __init__(self, nodes=3, **settings):
        coordinators = {"offsets_topic_num_partitions": 3, "transaction_state_log_num_partitions": 3}
        fixed = {"replication_enable": True, "default_replication_factor": 3, "replica_lag_time_max_ms": 10_000}
        super().__init__(nodes, **fixed | coordinators | settings)

    def create(self, topic, partitions=1, replicas=(1, 2, 3), **configs):
        """Create a topic with partitions on these brokers, the first of which leads all of them."""
        configs = {"min_insync_replicas": 2} | configs
        given = [{"partition_index": n, "broker_ids": list(replicas)} for n in range(partitions)]
        fields = {
            "name": topic,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": given,
            "configs": [{"name": name.replace("_", "."), "value": str(value)} for name, value in configs.items()],
        }
        request = {"topics": [fields], "timeout": 30_000, "validate_only": False}
        (answer,) = self.client(self.controller.id).ask(CREATE_TOPICS, 7, request).topics
        assert answer.error_code == 0, answer.error_message
        self.settle()

    # --- clients -------------------------------------------------------------------------------------------------

    def produce(self, topic, *values, acks=-1, partition=0, within_ms=5_000):
        """Produce to the leader; return (error, offset) once it answers."""
        client = self.leader_of(topic, partition).connect(listener="CLIENTS")
        client.send(PRODUCE, 9, produce_request(topic, *values, partition=partition, acks=acks))
        self.settle()
        deadline_ms = self.now_ms + within_ms
        while not client.received:
            assert self.now_ms < deadline_ms, "no answer"
            self.later(10)
        ((_, answer),) = client.replies()
        part = answer[0]
        return ErrorCode(part.error_code), part.base_offset

    def produce_alone(self, topic):
        """Cut both followers off from broker 1, and append a record there that only this leader has."""
        self.cut_pairs = {(2, 1), (3, 1)}
        self.later(FETCHED_MS)
        self.produce(topic, b"alone", acks=1)

    def consume(self, topic, offset=0, partition=0):
        """Return the values that a consumer of the leader sees."""
        client = self.leader_of(topic, partition).connect(listener="CLIENTS")
        answer = client.ask(FETCH, 12, fetch_request(topic, offset, partition))
        assert not answer.partitions[0].error_code, answer
        return values_of(answer)

    # --- logs ----------------------------------------------------------------------------------------------------

    def log(self, broker_id, topic, partition=0):
        return self.nodes[broker_id].broker.services.logs.get(topic, partition)

    def ends(self, topic, partition=0):
        """Return the end of each live broker's log."""
        return {node.id: self.log(node.id, topic, partition).log_end_offset for node in self._alive()}

    def high_watermarks(self, topic, partition=0):
        return {node.id: self.log(node.id, topic, partition).high_watermark for node in self._alive()}

    def isr(self, topic, partition=0):
        """Return the ISR that the controller has decided."""
        return self.controller.member.image.topic(topic).partitions[partition].isr

    def leader(self, topic, partition=0):
        return self.controller.member.image.topic(topic).partitions[partition].leader

    # --- lives ---------------------------------------------------------------------------------------------------

    def kill_and_expire(self, broker_id):
        """Kill a broker, and let its session end."""
        self.kill(broker_id)
        self.expire(broker_id)
