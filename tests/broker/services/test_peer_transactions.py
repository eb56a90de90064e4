"""Transactions over three brokers, while requests and answers between them get lost and brokers restart."""

from random import Random

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS
from tests.broker.peers import ClusterProducer, PeerCluster
from tests.broker.transactional import committed

AGAIN = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
TRIES_MAX = 50
PARTITIONS = 6


class Clients:
    """Producers whose transactions are known to have been committed or aborted."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.cluster = PeerCluster()
        self.cluster.create("flights", (1, 2, 3) * 2)
        self.producers = [ClusterProducer(self.cluster, f"payments-{number}") for number in range(4)]
        for producer in self.producers:
            assert producer.init() == 0
        self.committed = {partition: [] for partition in range(PARTITIONS)}
        self.number = 0

    def until_done(self, act):
        """Repeat a request as clients do."""
        for _ in range(TRIES_MAX):
            code = act()
            if code not in AGAIN:
                assert code == 0, code
                return
            self.cluster.later(100)
        raise AssertionError(f"still {code.name} after {TRIES_MAX} tries")

    def disturb(self):
        """Let some of the next requests or answers get lost, or restart a broker."""
        lost = self.random.choice([self.cluster.lost_requests, self.cluster.lost_answers])
        lost[self.random.choice([ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS])] = self.random.randrange(3)
        if self.random.random() < 0.1:
            self.cluster.restart(self.cluster.kill(self.random.choice(list(self.cluster.brokers))))
            for producer in self.producers:
                producer.find_coordinator()

    def transact(self):
        """Write to some partitions in a transaction of one of the producers, and end it."""
        producer, commits = self.random.choice(self.producers), self.random.random() < 0.6
        partitions = self.random.sample(range(PARTITIONS), self.random.randrange(1, PARTITIONS))
        values = {}
        for partition in partitions:
            self.number += 1
            values[partition] = b"%d" % self.number
            self.until_done(lambda at=partition: producer.add(("flights", at)))
            self.until_done(lambda at=partition: producer.send("flights", values[at], partition=at))
            self.disturb()
        self.until_done(lambda: producer.end(commits))
        if commits:
            for partition, value in values.items():
                self.committed[partition].append(value)


@pytest.mark.parametrize("seed", range(4))
def test_each_transaction_is_whole_or_not_there_at_all(seed):
    clients = Clients(seed)
    for _ in range(15):
        clients.transact()
    cluster = clients.cluster
    cluster.lost_requests.clear()
    cluster.lost_answers.clear()
    cluster.later(10_000)
    for partition in range(PARTITIONS):
        leader = cluster.leader_of("flights", partition)
        log = leader.services.log_of("flights", partition)
        assert log.last_stable_offset == log.log_end_offset
        values = committed(leader.connect(), "flights", partition)
        assert sorted(values, key=int) == clients.committed[partition]
