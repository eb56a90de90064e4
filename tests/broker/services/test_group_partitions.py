"""The group coordinators of several partitions: leaders come and go, and no committed offset or request is lost."""

from random import Random

import pytest

from broker import steps
from broker.group import shared
from broker.group.offset_records import group_key, partition_of
from broker.group.outbox import Append
from broker.group.results import CommitRequest, GroupProtocol, JoinRequest, OffsetToCommit, SyncRequest
from broker.group.shared import STEP_EVERY_MS
from broker.log import log_appender
from broker.log.keyed_records import append_records
from broker.metadata.topic import GROUP_OFFSETS_TOPIC
from broker.record.control import Marker
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import DAY_MS, FIND_COORDINATOR, HEARTBEAT, SYNC_GROUP, EngineBroker

PARTITIONS = 3
GROUPS = [f"g{number}" for number in range(7)]
SEEDS = range(60)
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class House:
    """A broker whose partitions of `__consumer_offsets` are led and resigned by the test."""

    def __init__(self, **settings):
        self.broker = EngineBroker(offsets_topic_num_partitions=PARTITIONS, **settings)
        self.broker.create("t", 100)
        self.broker.connect().ask(FIND_COORDINATOR, 1, {"key": "g", "key_type": 0})
        self.groups = self.broker.services.coordinators.groups
        self.epochs = [0] * PARTITIONS
        self.waiting = []
        """Answers of requests that wait: one list for each, empty until the answer is there."""

    @property
    def now(self):
        return self.broker.now

    def partition_of(self, group):
        return partition_of(group, PARTITIONS)

    def log_of(self, partition):
        return self.broker.services.log_of(GROUP_OFFSETS_TOPIC, partition)

    def commit(self, group, partition, offset, producer=None):
        """Return the error of a commit; `producer` is the (id, epoch) of a transaction."""
        led = self.groups.find(group)
        if isinstance(led, ErrorCode):
            return led
        request = CommitRequest(group_id=group, offsets=(OffsetToCommit("t", partition, offset),), producer=producer)
        (error,) = led.core.commit(request, self.now)
        assert not led.settle(self.now)
        return error

    def end(self, partition, producer, commit):
        """Write a marker, as the transaction coordinator does, also into a partition that is being loaded."""
        services = self.broker.services
        log_appender.append_marker(self.log_of(partition), *producer, Marker(commit, 0), services.id_stamper, self.now)
        self.groups.transaction_ended(partition, producer[0], commit, self.now)

    def join(self, group):
        """Send a join; return the list that its answer will be in, None if the coordinator is not there."""
        led = self.groups.find(group)
        if isinstance(led, ErrorCode):
            return None
        request = JoinRequest(
            group_id=group,
            member_id="",
            instance_id=None,
            client_id="c",
            client_host="/h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=(GroupProtocol("range", b""),),
            member_id_suffix=str(len(self.waiting)),
            member_id_required=False,
        )
        pending = led.core.join(request, self.now)
        led.settle(self.now)
        if pending.result is not None:  # refused, because it came while the others sync
            return None
        return self.watch(Delayed((pending.key,), None, lambda now: pending.result, lambda now: pending.result))

    def watch(self, delayed):
        answers = []
        self.broker.services.purgatory.watch(delayed, answers.append, self.now)
        self.waiting.append(answers)
        return answers

    def lead(self, partition, epoch):
        self.groups.partitions.lead(partition, epoch, self.now)

    def resign(self, partition, epoch):
        self.groups.partitions.resign(partition, epoch, self.now)

    def tick(self):
        """Advance the clock by a slice."""
        self.broker.at(self.broker.now_ms + 10)

    def settle(self):
        while self.groups.partitions.next_deadline_ms() is not None:
            self.tick()

    def committed(self, group):
        return {
            offset.partition: offset.committed.offset
            for offset in self.groups.find(group).core.fetch(group, None)
            if offset.committed.offset >= 0
        }


class Model:
    """Random acts, and the offsets that each group must have. A transaction's offsets count once it commits."""

    def __init__(self, seed, monkeypatch):
        self.random = Random(seed)
        monkeypatch.setattr(steps, "ITEMS_AT_ONCE", self.random.choice([2, 5, 20, 60]))
        self.house = House()
        self.expected = {group: {} for group in GROUPS}
        self.open = {}  # (producer id, partition of its groups): {(group, partition): offset}
        self.order = 0
        self.written = {}  # (group, partition): order of the write that counts

    def act(self):
        random = self.random
        acts = [self.commit] * 8 + [self.commit_in] * 3 + [self.end] * 2 + [self.join, self.lead, self.resign]
        acts += [self.repeat, self.house.tick, self.house.tick]
        random.choice(acts)()

    def commit(self):
        self.order += 1
        key = self.random.choice(GROUPS), self.random.randrange(5)
        if not self.house.commit(*key, self.order):
            self.count(key, self.order, self.order)

    def commit_in(self):
        self.order += 1
        key = self.random.choice(GROUPS), self.random.randrange(5)
        producer = self.random.randrange(2)
        if not self.house.commit(*key, self.order, (producer, 0)):
            self.open.setdefault((producer, self.house.partition_of(key[0])), {})[key] = self.order

    def end(self):
        if self.open:
            producer, partition = self.random.choice(list(self.open))
            offsets = self.open.pop((producer, partition))
            is_commit = self.random.random() < 0.7
            self.house.end(partition, (producer, 0), is_commit)
            for key, order in offsets.items() if is_commit else ():
                self.count(key, order, order)

    def count(self, key, offset, order):
        """Note a commit that took effect; one whose record is older than the last that did changes nothing."""
        if order > self.written.get(key, 0):
            self.written[key] = order
            self.expected[key[0]][key[1]] = offset

    def join(self):
        self.house.join(self.random.choice(GROUPS))

    def lead(self):
        partition = self.random.randrange(PARTITIONS)
        self.house.epochs[partition] += self.random.randrange(2)
        self.house.lead(partition, self.house.epochs[partition])

    def repeat(self):
        """Lead a partition in a new epoch. The requests that wait there go on waiting."""
        partition = self.random.randrange(PARTITIONS)
        led = self.house.groups.partitions.at(partition)
        if led is not None:
            answered = [len(answers) for answers in self.house.waiting]
            self.house.epochs[partition] += 1
            self.house.lead(partition, self.house.epochs[partition])
            assert self.house.groups.partitions.at(partition) is led
            assert [len(answers) for answers in self.house.waiting] == answered

    def resign(self):
        partition = self.random.randrange(PARTITIONS)
        epoch = self.house.epochs[partition]
        if self.random.random() < 0.3:
            before = self.house.groups.partitions.led()
            self.house.resign(partition, epoch - 1)
            assert self.house.groups.partitions.led() == before, "an older epoch takes nothing away"
        else:
            self.house.epochs[partition] = epoch + 1
            self.house.resign(partition, epoch + 1)

    def check(self):
        """Resign and lead all partitions. Every offset is there, and no request waits any more."""
        for partition in range(PARTITIONS):
            self.house.resign(partition, self.house.epochs[partition] + 1)
        self.house.settle()
        assert all(len(answers) == 1 for answers in self.house.waiting), "a request was left unanswered"
        for partition in range(PARTITIONS):
            self.house.lead(partition, self.house.epochs[partition] + 2)
        self.house.settle()
        assert {group: self.house.committed(group) for group in GROUPS} == self.expected
        assert self.house.groups._shared.groups == len(self.house.groups)


@pytest.mark.parametrize("seed", SEEDS)
def test_leaders_come_and_go_and_every_committed_offset_is_there(seed, monkeypatch):
    model = Model(seed, monkeypatch)
    for _ in range(250):
        model.act()
    model.check()


@pytest.fixture
def house(monkeypatch):
    monkeypatch.setattr(steps, "ITEMS_AT_ONCE", 4)
    return House()


def loading(house, group="g"):
    """Begin to load the group's partition again, in several slices. Return the partition."""
    for number in range(20):
        assert not house.commit(group, number, number)
    partition = house.partition_of(group)
    house.resign(partition, 0)
    house.lead(partition, 0)
    assert house.groups.find(group) == LOADING
    return partition


def test_a_heartbeat_is_answered_blindly_while_the_group_is_loaded(house):
    """Kafka's GroupCoordinator does the same, because an error would make each member join again."""
    loading(house)
    beat = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    assert house.broker.connect().ask(HEARTBEAT, 4, beat).error_code == 0


def test_a_sync_joins_again_when_the_group_is_being_loaded(house):
    """Old clients do not expect COORDINATOR_LOAD_IN_PROGRESS there."""
    loading(house)
    sync = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    sync |= {"protocol_type": "consumer", "protocol_name": "range"}
    assert house.broker.connect().ask(SYNC_GROUP, 5, sync).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_the_members_of_a_group_that_is_loaded_again_have_one_session_to_come_back(house):
    answers = house.join("g")
    house.broker.at(house.broker.now_ms + 3_000)
    (joined,) = answers
    led = house.groups.find("g")
    shares = ((joined.member_id, b"all"),)
    led.core.sync(SyncRequest(group_id="g", member_id=joined.member_id, generation=1, assignments=shares), house.now)
    led.settle(house.now)
    loading_since_ms = house.broker.now_ms
    house.resign(led.partition, 1)
    house.lead(led.partition, 2)
    house.settle()
    house.broker.at(loading_since_ms + 9_000)
    assert house.groups.describe("g").state == "Stable"
    house.broker.at(house.broker.now_ms + 2_000)
    assert house.groups.describe("g").state == "Empty"


def test_a_timer_of_a_partition_that_resigned_writes_nothing(house):
    house.join("g")
    partition = house.partition_of("g")
    end = house.log_of(partition).log_end_offset
    house.resign(partition, 1)
    house.broker.at(house.broker.now_ms + 100_000)
    assert house.log_of(partition).log_end_offset == end


def test_a_marker_ends_what_its_own_partition_keeps(house):
    groups = [next(group for group in GROUPS if house.partition_of(group) == partition) for partition in (0, 1)]
    for group in groups:
        assert not house.commit(group, 0, 20, producer=(1, 0))
    house.end(1, (1, 0), commit=True)
    assert [house.committed(group) for group in groups] == [{}, {0: 20}]


def test_the_limit_on_groups_counts_those_of_all_partitions():
    """flakelog.groups.max; groups of a partition that resigned make room."""
    house = House(groups_max=2)
    first, second, third = (
        next(group for group in GROUPS if house.partition_of(group) == partition) for partition in range(PARTITIONS)
    )
    assert not house.commit(first, 0, 1) and not house.commit(second, 0, 1)
    assert house.commit(third, 0, 1) == ErrorCode.POLICY_VIOLATION
    house.resign(house.partition_of(first), 1)
    house.settle()
    assert not house.commit(third, 0, 1)


def test_all_partitions_together_expire_no_more_offsets_in_a_step_than_one(monkeypatch):
    monkeypatch.setattr(shared, "EXPIRATIONS_PER_STEP", 4)
    house = House()
    for group in GROUPS:
        for partition in range(3):
            assert not house.commit(group, partition, 1)
    before = end = sum(house.log_of(partition).log_end_offset for partition in range(PARTITIONS))
    house.groups.forget_topics({"t"}.__contains__, house.now)
    while house.groups.offsets_number:
        written = sum(house.log_of(partition).log_end_offset for partition in range(PARTITIONS))
        assert written - end <= 4
        end = written
        house.groups.tick(house.now)
        house.broker.now_ms += STEP_EVERY_MS
    assert end - before <= 3 * len(GROUPS)


def test_offsets_of_a_topic_that_is_deleted_during_the_load_are_dropped(house):
    loading(house)
    house.broker.delete("t")
    house.settle()
    assert house.committed("g") == {}


def test_no_offset_expires_while_a_later_record_of_it_is_still_to_be_loaded(monkeypatch):
    monkeypatch.setattr(steps, "ITEMS_AT_ONCE", 4)
    house = House(offsets_retention_check_interval_ms=20)
    assert not house.commit("g", 0, 1)
    house.broker.now_ms += 6 * DAY_MS
    for number in range(1, 60):
        assert not house.commit("g", number, 1)
    assert not house.commit("g", 0, 2)
    house.broker.now_ms += 2 * DAY_MS  # the first offset is older than offsets.retention.minutes, the second is not
    partition = house.partition_of("g")
    house.resign(partition, 1)
    house.lead(partition, 2)
    assert house.groups.find("g") == LOADING
    house.settle()
    assert house.committed("g")[0] == 2


def test_a_damaged_partition_sets_no_timers_and_counts_no_groups(house):
    assert not house.commit("g", 0, 1)
    partition = house.partition_of("g")
    record = Append(group_key("x"), b"\xff\xff\xff", "x")
    append_records(house.log_of(partition), [record], house.broker.services.id_stamper, house.now)
    house.broker.now_ms += 8 * DAY_MS
    house.resign(partition, 1)
    house.lead(partition, 2)
    house.settle()
    assert house.groups.find("g") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert house.groups._shared.groups == 0
    house.broker.at(house.broker.now_ms + 1_300_000)
    following = house.groups.next_deadline_ms()
    assert following is None or following > house.broker.now_ms + 1_000


def test_a_broker_without_groups_has_nothing_to_do_before_the_next_look_for_what_has_expired():
    house = House(offsets_retention_check_interval_ms=600_000)
    wheel = house.groups._shared.wheel
    house.broker.at(house.broker.now_ms + 100_000)
    rung = [alarm for alarm in wheel.advance(house.broker.now_ms + 400_000)]
    assert rung == []
