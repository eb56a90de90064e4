"""The led partitions of a coordinator's topic: loading and unloading in slices, and who is found meanwhile."""

from typing import NamedTuple

import pytest

from broker import steps
from broker.group.offset_records import partition_of
from broker.log.keyed_records import Replayed, append_records
from broker.now import Now
from broker.services.coordinator_partitions import SLICE_EVERY_MS, CoordinatorPartitions, PartitionCoordinator
from broker.services.coordinator_topic import CoordinatorTopic
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import EngineBroker

TOPIC = "__numbers"
PARTITIONS = 3
ITEMS = 4
"""The items of a slice."""


class BadNumber(ValueError):
    pass


class NumberRecord(NamedTuple):
    key: bytes
    value: bytes | None


class Numbers(PartitionCoordinator):
    """Keeps a number by name, and counts the slices of its unload."""

    bad_record = BadNumber

    def __init__(self, partition, leader_epoch, now):
        super().__init__(partition, leader_epoch)
        self.numbers = {}
        self.loaded_ms = self.unloaded_ms = None
        self.prepared = set()

    def replay(self, entry):
        if isinstance(entry, Replayed):
            if not entry.value.isdigit():
                raise BadNumber(f"{entry.value!r} is no number")
            self.numbers[entry.key.decode()] = int(entry.value)

    def prepare(self, pace, now):
        for name in list(self.numbers):
            self.prepared.add(name)
            if pace.is_over():
                now = yield
        return now

    def loaded(self, now):
        self.loaded_ms = now.ms

    def unload(self, pace, now):
        for _ in self.numbers:
            if pace.is_over():
                now = yield
        self.unloaded_ms = now.ms


class House:
    """The partitions of one topic, and the clock."""

    def __init__(self, monkeypatch, **properties):
        monkeypatch.setattr(steps, "ITEMS_AT_ONCE", ITEMS)
        self.broker = EngineBroker()
        self.ports = self.broker.services.coordinator_ports()
        self.topic = CoordinatorTopic(self.ports, TOPIC, PARTITIONS, {}, "numbers")
        self.broker.create(TOPIC, PARTITIONS, **properties)
        self.partitions = CoordinatorPartitions(self.topic, self.ports, Numbers)
        self.names = [next(n for n in map(str, range(99)) if partition_of(n, PARTITIONS) == p) for p in range(3)]
        self.ms = 5_000

    @property
    def now(self):
        return Now(self.ms, 1_700_000_000_000 + self.ms)

    def append(self, partition, numbers):
        records = [NumberRecord(name.encode(), str(number).encode()) for name, number in numbers.items()]
        log = self.broker.services.log_of(TOPIC, partition)
        for record in records:
            append_records(log, [record], self.ports.id_stamper, self.now)
        return log

    def lead(self, partition, epoch=0):
        self.partitions.lead(partition, epoch, self.now)

    def resign(self, partition, epoch=0):
        self.partitions.resign(partition, epoch, self.now)

    def find(self, partition):
        return self.partitions.find(self.names[partition])

    def tick(self):
        """Run the next slice when it is due."""
        self.ms = max(self.ms, self.partitions.next_deadline_ms())
        self.partitions.tick(self.now)

    def settle(self):
        while self.partitions.next_deadline_ms() is not None:
            self.tick()


@pytest.fixture
def house(monkeypatch):
    return House(monkeypatch)


MANY = {f"n{i}": i for i in range(10)}


def test_a_partition_that_nobody_leads_is_not_coordinated_here(house):
    assert house.find(0) == ErrorCode.NOT_COORDINATOR


def test_a_large_partition_is_loaded_in_slices_and_served_when_all_is_there(house):
    house.append(0, MANY)
    house.lead(0)
    slices = 1
    while house.find(0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        assert house.partitions.is_loading and house.partitions.at(0) is None
        house.tick()
        slices += 1
    assert house.find(0).numbers == MANY and slices >= len(MANY) / ITEMS
    assert house.find(0).loaded_ms == house.ms and not house.partitions.is_loading


def test_between_two_slices_there_is_time_for_requests(house):
    house.append(0, MANY)
    house.lead(0)
    began_ms = house.ms
    assert house.partitions.next_deadline_ms() == began_ms + SLICE_EVERY_MS
    house.partitions.tick(house.now)
    assert house.find(0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_partition_without_records_is_served_at_once_and_its_log_is_made_when_it_is_needed(monkeypatch):
    house = House(monkeypatch)
    house.broker.know({"__other": 2})
    topic = CoordinatorTopic(house.ports, "__other", 2, {}, "numbers")
    partitions = CoordinatorPartitions(topic, house.ports, Numbers)
    partitions.lead(1, 0, house.now)
    assert partitions.at(1).log is None and partitions.next_deadline_ms() is None


def test_what_is_appended_between_the_slices_is_loaded_too(house):
    house.append(0, MANY)
    house.lead(0)
    house.append(0, {"late": 7})
    house.settle()
    assert house.find(0).numbers == MANY | {"late": 7}


def test_what_is_appended_while_the_records_are_made_ready_is_loaded_too(house):
    house.append(0, MANY)
    house.lead(0)
    while not house.partitions.led()[0].prepared:
        house.tick()
    house.append(0, {"late": 7})
    house.settle()
    assert house.find(0).numbers == MANY | {"late": 7} and house.find(0).prepared == set(MANY)


def test_records_that_are_deleted_between_the_slices_are_skipped(house):
    log = house.append(0, MANY)
    house.lead(0)
    log.advance_start(9)
    house.settle()
    assert house.find(0).numbers["n9"] == 9 and log.offline is None


def test_a_new_epoch_with_the_same_leader_unloads_nothing(house):
    house.append(0, MANY)
    house.lead(0, 3)
    house.settle()
    led = house.find(0)
    for epoch in (4, 4, 2):
        house.lead(0, epoch)
        assert house.find(0) is led and led.leader_epoch == 4
    assert house.partitions.next_deadline_ms() is None and led.unloaded_ms is None


def test_a_new_epoch_during_the_load_begins_no_second_one(house):
    house.append(0, MANY)
    house.lead(0, 3)
    house.tick()
    house.lead(0, 4)
    house.settle()
    assert house.find(0).leader_epoch == 4 and house.find(0).numbers == MANY


def test_an_older_epoch_does_not_take_a_partition_away(house):
    house.lead(0, 3)
    house.resign(0, 2)
    assert house.find(0).leader_epoch == 3
    house.resign(0, 3)
    assert house.find(0) == ErrorCode.NOT_COORDINATOR


def test_a_load_is_given_up_when_its_partition_resigns(house):
    house.append(0, MANY)
    house.lead(0, 1)
    (led,) = house.partitions.led()
    house.resign(0, 2)
    assert house.find(0) == ErrorCode.NOT_COORDINATOR
    house.settle()
    assert house.partitions.at(0) is None and led.loaded_ms is None


def test_a_partition_that_is_led_again_is_loaded_after_its_unload(house):
    house.append(0, MANY)
    house.lead(0, 1)
    house.settle()
    former = house.find(0)
    house.resign(0, 2)
    house.lead(0, 3)
    house.append(0, {"n0": 100})
    assert house.find(0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and former.unloaded_ms is None
    house.settle()
    assert former.unloaded_ms <= house.find(0).loaded_ms
    assert house.find(0).numbers == MANY | {"n0": 100}


def test_partitions_take_turns_so_that_a_small_one_does_not_wait_for_a_large_one(house):
    house.append(0, MANY)
    house.append(1, {"m": 1})
    house.lead(0)
    house.lead(1)
    house.tick()
    house.tick()
    assert house.find(1).numbers == {"m": 1} and house.find(0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_all_partitions_are_loaded_before_a_server_is_ready(house):
    for partition in range(PARTITIONS):
        house.append(partition, MANY)
    house.partitions.load_all(house.now)
    assert [house.find(partition).numbers for partition in range(PARTITIONS)] == [MANY] * PARTITIONS


def test_a_damaged_partition_goes_offline_and_the_others_are_served(house):
    log = house.append(0, {"a": 1})
    append_records(log, [NumberRecord(b"b", b"two")], house.ports.id_stamper, house.now)
    house.append(1, MANY)
    house.partitions.load_all(house.now)
    assert house.find(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE and house.find(1).numbers == MANY
    assert house.broker.reported == [f"partition {log.name} is offline, and the numbers it keeps: b'two' is no number"]


def test_a_partition_is_loaded_up_to_its_end_also_if_that_is_not_on_the_disk_yet(monkeypatch):
    """With flakelog.visible.after.flush consumers see no record that a power cut may take (rule R4)."""
    house = House(monkeypatch, flakelog_visible_after_flush=True)
    log = house.append(0, MANY)
    assert log.high_watermark == 0
    house.lead(0)
    house.settle()
    assert house.find(0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and house.partitions.next_deadline_ms() is None
    log.ask_sync(soon=True)
    house.broker.pump()
    house.settle()
    assert house.find(0).numbers == MANY


def test_a_partition_is_loaded_up_to_its_end_and_serves_when_all_replicas_have_that(house):
    """A coordinator answers when the end of the log that it loaded is committed (rule R4)."""
    log = house.append(0, MANY)
    log.move_replicated_to(1)
    house.lead(0)
    house.settle()
    assert house.find(0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and house.partitions.next_deadline_ms() is None
    log.move_replicated_to(log.log_end_offset)
    house.ports.purgatory.touch(log.durability.key, house.now)
    house.settle()
    assert house.find(0).numbers == MANY


def test_a_partition_whose_log_goes_offline_before_all_replicas_have_it_is_not_served(house):
    log = house.append(0, {"a": 1})
    log.move_replicated_to(0)
    house.lead(0)
    log.offline = "a sync failed"
    house.broker.services.touch(log, house.now)
    assert house.find(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE and not house.partitions.is_loading


def test_an_answer_that_waits_for_the_disk_is_not_coordinator_once_the_partition_resigned(monkeypatch):
    house = House(monkeypatch, flakelog_durable_acks=True)
    house.lead(0)
    led = house.find(0)
    house.append(0, MANY)
    waiting = house.partitions.when_stored([led], {"error_code": ErrorCode.NONE}, house.now)
    assert isinstance(waiting, Delayed)
    answers = []
    house.ports.purgatory.watch(waiting, answers.append, house.now)
    house.lead(0, 1)
    assert not answers, "a new epoch with the same leader answers nobody"
    house.resign(0, 2)
    assert answers == [{"error_code": ErrorCode.NOT_COORDINATOR}]
