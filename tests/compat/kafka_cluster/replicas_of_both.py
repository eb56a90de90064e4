"""A cluster whose partitions have copies on brokers of ours and on a broker of Kafka 3.9.1, under our controller.

    brokers = ReplicasOfBoth(directory, zookeeper.hosts, stack)
    topic = brokers.create_copied("flights", 2, 3, 4)
    brokers.kill(2); brokers.start(2)
    brokers.await_equal(topic)                  all replicas are in sync, and their logs are equal, byte by byte
"""

import signal

from confluent_kafka.admin import NewTopic

from broker.wire.errors import ErrorCode
from tests.compat.cluster_servers import Alone, Servers
from tests.compat.kafka_cluster.admin_acts import ask, create, elect_preferred
from tests.compat.kafka_cluster.kafka_broker import KafkaBroker
from tests.compat.kafka_cluster.own_broker import own_broker
from tests.compat.kafka_cluster.zookeeper_tree import ZooKeeperTree, create_chroots
from tests.patience import until

CONTROLLER = 1
OURS = 2, 3
KAFKAS = 4
REPLICATION = {
    "flakelog.http.listener": "127.0.0.1:0",
    "auto.leader.rebalance.enable": "false",
    "log.preallocate": "false",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "zookeeper.session.timeout.ms": "10000",
}
SMALL_SEGMENTS = {"segment_bytes": "16384", "min_insync_replicas": "2"}


class ReplicasOfBoth(Servers):
    """Brokers 1 to 3 are ours, and broker 4 is Kafka's. Broker 1 is the controller, and has copies of no topic.

    `more` are arguments of the ServerProcess of each of ours.
    """

    def __init__(self, directory, zookeeper, stack, **more):
        create_chroots(zookeeper, directory.name)
        zookeeper = f"{zookeeper}/{directory.name}"
        self.servers = {}
        self.tree = stack.enter_context(ZooKeeperTree(zookeeper))
        for broker_id in (CONTROLLER, *OURS):
            settings = REPLICATION | ({"zookeeper.session.timeout.ms": "60000"} if broker_id == CONTROLLER else {})
            broker = own_broker(directory / str(broker_id), broker_id, zookeeper, settings, **more)
            self.servers[broker_id] = stack.enter_context(broker)
        broker = KafkaBroker(directory / str(KAFKAS), KAFKAS, zookeeper, {"zookeeper.session.timeout.ms": "10000"})
        self.servers[KAFKAS] = stack.enter_context(broker)
        until(lambda: len(self.brokers) == len(self.servers), "all brokers in the metadata")
        assert self.tree.data("/controller")["brokerid"] == CONTROLLER

    # --- topics --------------------------------------------------------------------------------------------------

    def create_copied(self, topic, *replicas, **settings):
        """Create a topic of one partition with these replicas, and wait until all are in sync."""
        api, version, fields = create(topic, replicas[0], **SMALL_SEGMENTS | settings)
        fields["topics"][0]["assignments"][0]["broker_ids"] = list(replicas)
        assert ask(self[CONTROLLER].address, api, version, fields) == set()
        self.await_in_sync(topic)
        return topic

    def new_topic(self, topic, partitions):
        """Return a topic whose partitions brokers of ours lead in turn, with copies on all but the controller."""
        assignment = [[*OURS, KAFKAS] if number % 2 else [*OURS[::-1], KAFKAS] for number in range(partitions)]
        config = {"min.insync.replicas": "2"}
        return NewTopic(topic, partitions, replica_assignment=assignment, config=config)

    def state(self, topic, partition=0):
        """Return the JSON of a partition's state."""
        return self.tree.data(f"/brokers/topics/{topic}/partitions/{partition}/state")

    def replicas(self, topic, partition=0):
        return self.tree.data(f"/brokers/topics/{topic}")["partitions"][str(partition)]

    def leader(self, topic, partition=0):
        return self.state(topic, partition)["leader"]

    def await_leader(self, topic, broker_id, partition=0):
        until(lambda: self.leader(topic, partition) == broker_id, f"broker {broker_id} leads {topic}-{partition}")

    def await_in_sync(self, topic, partition=0):
        until(lambda: self.is_in_sync(topic, partition), f"all replicas of {topic}-{partition} in sync")

    def is_in_sync(self, topic, partition=0):
        if f"/brokers/topics/{topic}/partitions/{partition}/state" not in self.tree.read():
            return False
        return sorted(self.state(topic, partition)["isr"]) == sorted(self.replicas(topic, partition))

    def await_isr_at(self, broker_id, topic, isr):
        """Wait until a broker names this ISR of partition 0 to clients."""
        broker = Alone(self[broker_id])
        until(lambda: broker.topics[topic].partitions[0].isrs == isr, f"the ISR {isr} at broker {broker_id}")

    def await_leader_at(self, broker_id, topic, leader):
        """Wait until a broker names this leader of partition 0 to clients, so that it has taken the order."""
        broker = Alone(self[broker_id])
        until(lambda: broker.leaders(topic)[0] == leader, f"the leader {leader} at broker {broker_id}")

    def elect_preferred(self, topic):
        """Let the first replica of each partition lead. A broker that is paused hears of it later."""
        partitions = sorted(map(int, self.tree.data(f"/brokers/topics/{topic}")["partitions"]))
        errors = ask(self[CONTROLLER].address, *elect_preferred(topic, partitions))
        assert errors <= {ErrorCode.ELECTION_NOT_NEEDED}, errors
        for partition in partitions:
            self.await_leader(topic, self.replicas(topic, partition)[0], partition)

    # --- logs ----------------------------------------------------------------------------------------------------

    def await_equal(self, topic, partition=0):
        """Wait until all replicas are in sync with equal logs, byte by byte, and return the bytes."""
        self.await_in_sync(topic, partition)
        replicas = self.replicas(topic, partition)
        self.await_equal_at(topic, *replicas, partition=partition)
        return self.log_bytes(topic, replicas[0], partition)

    def await_equal_at(self, topic, *broker_ids, partition=0):
        """Wait until the logs of these brokers are equal."""

        def are_equal():
            return len({self.log_bytes(topic, number, partition) for number in broker_ids}) == 1

        until(are_equal, f"equal logs of {topic}-{partition}")

    def log_bytes(self, topic, broker_id, partition=0):
        """Return what the segments of a log have, in order. Segments may begin at other offsets on each broker."""
        directory = self[broker_id].directory_of(f"{topic}-{partition}")
        try:
            return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
        except FileNotFoundError:  # a truncation has removed a segment meanwhile
            return self.log_bytes(topic, broker_id, partition)

    def kafkas_truncations(self, topic):
        """Return how often Kafka's broker has cut its log of a topic."""
        lines = self[KAFKAS].log.splitlines()
        return sum(f"UnifiedLog partition={topic}-0" in line and "] Truncating to offset" in line for line in lines)

    # --- brokers -------------------------------------------------------------------------------------------------

    def kill(self, *broker_ids):
        for broker_id in broker_ids:
            self[broker_id].kill()

    def await_gone(self, broker_id):
        """Wait until the session of a broker is over."""
        until(lambda: str(broker_id) not in self.tree.children("/brokers/ids"), f"the end of broker {broker_id}")

    def start(self, *broker_ids):
        """Start brokers that were killed. A broker of Kafka starts only when its last session is over."""
        for broker_id in broker_ids:
            self.await_gone(broker_id)
            self[broker_id].start()

    def pause(self, broker_id):
        self[broker_id].send_signal(signal.SIGSTOP)

    def resume(self, broker_id):
        self[broker_id].send_signal(signal.SIGCONT)

    def check_logs(self):
        """Check that our servers logged no unexpected exception."""
        for broker_id in (CONTROLLER, *OURS):
            log = self[broker_id].log
            assert "a fault of" not in log and "Traceback" not in log, log
