"""Ids of partitions with three copies, whose leaders change between brokers with different clocks (rules I1 to I7).

In each partition ids rise strictly, no id comes twice in the whole cluster, and a reader gets the ids that the producer
was told.
"""

from contextlib import ExitStack

import pytest
from confluent_kafka.admin import NewTopic

from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.errors import BrokerError, Unreachable
from broker.wire.errors import ErrorCode
from idgen.layout import Layout
from tests.compat.faults.own_clock import OwnClock
from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedServers
from tests.compat.faults.replicated_loads import Librdkafka, NumbersLoad, OwnClient
from tests.compat.faults.rounds import ID_ROUNDS, rounds
from tests.compat.served_data import batch_of
from tests.patience import MS, SECONDS, until

HOUR_MS = 3_600_000
NEAR_MS = {1: -400, 2: 0, 3: 400}
"""How far the clock of each broker is ahead of the machine's: the ids of a leader may run ahead by 500 ms."""
FAR_MS = {1: 5_000, 2: 0, 3: 10_000}
"""Clocks so far apart that a partition waits for the clock of its new leader."""

FAST, ALLOWED, REFUSING = NUMBERS
"""The leader whose clock is ahead, a broker that may give ids ahead of its clock, and one that may not."""
AHEAD = "flakelog.ids.log.max.ahead.ms"


@pytest.fixture(
    scope="module",
    params=[pytest.param(NEAR_MS, id="near"), pytest.param(FAR_MS, id="far", marks=pytest.mark.soak)],
)
def cluster(request, tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        chroot = f"{zookeeper.hosts}/replicated-ids-{request.param_index}"
        directory = tmp_path_factory.mktemp("brokers")
        clocks = {number: OwnClock(directory / f"clock-{number}", ms) for number, ms in request.param.items()}
        allowed = {ALLOWED: {AHEAD: str(2 * HOUR_MS)}}
        yield ReplicatedServers(directory, chroot, stack, clocks=clocks, own_settings=allowed)


@pytest.fixture(scope="module")
def given():
    """Return the set of all ids that the brokers of this module gave."""
    return set()


@pytest.mark.parametrize("turn", rounds(ID_ROUNDS))
def test_ids_rise_and_never_repeat_over_three_changes_of_leader(cluster, given, turn):
    cluster.place_evenly()
    loads = [NumbersLoad(cluster, kind(cluster.bootstrap)) for kind in (OwnClient, Librdkafka)]
    for number in NUMBERS:
        led = {at for at, leader in cluster.leaders(loads[0].topic).items() if leader == number}
        assert led, f"broker {number} leads nothing, so its end changes no leader"
        if turn % 2:
            assert cluster[number].stop() == 0
        else:
            cluster.kill(number)
        for load in loads:
            load.await_more()
        after = cluster.leaders(loads[0].topic)
        assert all(after[at] not in (number, -1) for at in led)
        cluster.start(number)
        cluster.await_in_sync()
    for load in loads:
        load.stop()
    ids = [id for load in loads for id in load.check()]
    assert len(set(ids)) == len(ids) and given.isdisjoint(ids), "an id came twice"
    given.update(ids)


# --- clocks an hour apart, last because a clock never goes back -------------------------------------------------------

WAITS, GOES_ON, BESIDE, OTHER = PARTITIONS_OF_FOUR = range(4)
"""Partitions of a topic. The first two lose their leader, whose clock was ahead; the others are led by the new leaders.
"""
ASSIGNMENT = [[1, 3, 2], [1, 2, 3], [2, 3, 1], [3, 2, 1]]


class Writer:
    """Write records to a topic one by one. `told` has the ids that the brokers told, by partition."""

    def __init__(self, client, topic):
        self._client, self._topic = client, topic
        self.told = {partition: [] for partition in PARTITIONS_OF_FOUR}

    def write(self, partition):
        """Write a record, also if the leader changes meanwhile. Return the time in its id, Unix ms."""
        core = self._client.core
        result = self._client.retry(lambda: core.produce(self._topic, partition, batch_of(b"x")), timeout_ms=MS)
        self.told[partition] += [first + step for first, number in result.runs for step in range(number)]
        return Layout().unpack(self.told[partition][-1]).time_ms

    def refusal(self, partition):
        """Try to write a record; return the reason why it has no id yet, and None while the leader changes."""
        try:
            self._client.produce(self._topic, partition, batch_of(b"refused"))
        except BrokerError as error:
            return str(error) if error.code is ErrorCode.REQUEST_TIMED_OUT else None
        except Unreachable:
            return None
        raise AssertionError("it was written")


def read_ids(servers, topic, number):
    """Return the ids of the first `number` records that a reader of a topic gets, by partition."""
    ids = {partition: [] for partition in PARTITIONS_OF_FOUR}
    with Consumer(servers, [topic]) as consumer:
        while sum(map(len, ids.values())) < number:
            for record in consumer.poll(timeout_ms=MS):
                ids[record.partition].append(record.id)
    return ids


def test_a_partition_waits_for_the_clock_of_its_new_leader_and_no_other_waits(cluster, given):
    new = NewTopic("waits", len(ASSIGNMENT), replica_assignment=ASSIGNMENT)
    cluster.admin.create_topics([new])["waits"].result(SECONDS)
    cluster.await_leaders("waits")
    cluster.await_in_sync()
    with Client(cluster.bootstrap) as client:
        writer = Writer(client, "waits")
        usual_ms = max(map(writer.write, PARTITIONS_OF_FOUR))
        cluster.clocks[FAST].set(HOUR_MS)
        for partition in (WAITS, GOES_ON):
            until(lambda: writer.write(partition) > usual_ms + HOUR_MS // 2, "the step of the clock")
        mark = cluster[REFUSING].mark()
        assert cluster[FAST].stop() == 0
        leaders = {WAITS: REFUSING, GOES_ON: ALLOWED, BESIDE: ALLOWED, OTHER: REFUSING}
        until(lambda: cluster.leaders("waits") == leaders, "new leaders")

        reason = until(lambda: writer.refusal(WAITS), "the refusal")
        assert "ahead of the broker's clock" in reason
        for _ in range(3):
            assert writer.write(GOES_ON) > usual_ms + HOUR_MS // 2
            assert max(writer.write(BESIDE), writer.write(OTHER)) < usual_ms + HOUR_MS // 2
        line = cluster[REFUSING].wait_for_log("1 partitions refuse messages", mark)
        assert f"waits-{WAITS}" in line and AHEAD in line

        cluster.clocks[REFUSING].set(HOUR_MS)
        for partition in PARTITIONS_OF_FOUR:
            writer.write(partition)
    cluster.start(FAST)
    cluster.await_level()
    told = [id for ids in writer.told.values() for id in ids]
    assert read_ids(cluster.bootstrap, "waits", len(told)) == writer.told
    assert all(ids == sorted(ids) for ids in writer.told.values()), "ids rise in each partition"
    assert len(set(told)) == len(told) and given.isdisjoint(told), "an id came twice"
