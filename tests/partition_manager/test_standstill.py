"""No progress: a partition has messages and settles none, and nothing is known that it waits for."""

import pytest

from broker.client.offset_spec import Earliest
from broker.wire.fetch import FetchedPartition
from flakelog.testing.memory_group import MemoryGroup, MemoryGroupStore
from partition_manager.config import READ_COMMITTED, SpoutConfig
from partition_manager.coordinator import PartitionCoordinator
from partition_manager.fetcher import answer_of
from partition_manager.manager import PartitionManager
from partition_manager.ports import Bury, Fetch, LoadOffset, SaveOffset
from partition_manager.progress import Progress
from partition_manager.source import Source
from tests.partition_manager.world import World

MINUTE = 60_000
TIMEOUT_MS = 30_000
FIRST = ("flights", 0)


class Task:
    """A task over a log with so many messages in each partition. Requests that it `ignores` get no answer."""

    def __init__(self, *messages, ignores=lambda request: False, timeout_ms=TIMEOUT_MS, **settings):
        self.world = World(len(messages))
        self.ignores = ignores
        self.timeout_ms = timeout_ms
        for partition, count in enumerate(messages):
            self.append(partition, count)
        config = SpoutConfig(spout_retry_jitter=0.0, **{f"spout_{name}": value for name, value in settings.items()})
        self.coordinator = PartitionCoordinator(Source("flights", "t", "t", Earliest(), config), 0, 1, "me")
        self.store = self.world.store()
        self.coordinator.start(0)
        self.carry(0)

    def append(self, partition=0, count=1):
        for _ in range(count):
            self.world.log.append(partition=partition)

    def carry(self, now_ms):
        while asks := self.coordinator.take_asks(now_ms):
            for number, request in asks:
                if not self.ignores(request):
                    port = self.world.port_of(request, self.store)
                    port.ask(request, lambda answer, number=number: self.coordinator.answered(number, answer, now_ms))

    def emit(self, now_ms=0, count=1_000):
        ids = []
        while len(ids) < count and (emission := self.coordinator.next(now_ms)) is not None:
            ids.append(emission[0])
        return ids

    def ack_all(self, now_ms):
        for id in self.emit(now_ms):
            self.coordinator.ack(id)
        self.carry(now_ms)

    def stands(self, now_ms, **more):
        """Return the reasons by partition."""
        standstills = self.coordinator.standstills.find(now_ms, timeout_ms=self.timeout_ms, **more)
        return {number: standstill.reason for (_, number), standstill in standstills.items()}


def test_messages_in_flight_that_nobody_settles_are_no_progress_after_a_minute():
    task = Task(3)
    task.emit()
    task.coordinator.standstills.observe(0)
    assert task.stands(MINUTE - 1) == {}
    standstills = task.coordinator.standstills.find(MINUTE, timeout_ms=TIMEOUT_MS)
    assert str(standstills[FIRST]) == (
        "no progress for 60 s: 3 messages are in flight, and neither acked nor failed within the message timeout"
    )


def test_the_time_until_it_counts_is_a_setting():
    task = Task(3, no_progress_ms=5_000)
    task.coordinator.standstills.observe(0)
    assert task.stands(4_999) == {} and task.stands(5_000)


def test_messages_that_are_fetched_and_never_emitted_are_no_progress():
    task = Task(900)
    task.stands(0)
    assert task.stands(MINUTE) == {0: "900 messages are fetched, and not emitted"}


def test_a_retry_that_is_due_and_never_emitted_is_no_progress():
    task = Task(1)
    (id,) = task.emit()
    task.coordinator.fail(id, 0)
    task.stands(0)
    assert task.stands(MINUTE) == {}
    assert task.stands(MINUTE + 100) == {0: "1 message is due for another attempt, and not emitted"}


def test_a_partition_that_is_not_fetched_while_others_are_is_no_progress():
    """An issue saw a partition with a lag of 16,020 that was not fetched for 80 s, under a green light."""
    task = Task(2, 5, fetch_max_records=2)
    task.ignores = lambda request: isinstance(request, Fetch) and request.partition == 1
    for now_ms in range(0, MINUTE + 3_000, 1_000):
        assert task.stands(now_ms) == {}
        task.append(0)
        task.carry(now_ms)
        task.ack_all(now_ms)
    assert task.stands(MINUTE + 3_000) == {1: "3 messages are not fetched"}


def test_a_partition_whose_stored_progress_is_never_loaded_is_no_progress():
    task = Task(1, ignores=lambda request: isinstance(request, LoadOffset))
    task.stands(0)
    assert task.stands(MINUTE) == {0: "its stored progress is not loaded"}


def test_a_dead_letter_that_is_never_written_is_no_progress():
    task = Task(1, max_attempts=1, ignores=lambda request: isinstance(request, Bury))
    (id,) = task.emit()
    task.coordinator.fail(id, 0)
    task.carry(0)
    task.stands(0)
    assert task.stands(MINUTE) == {0: "1 message is given up, without a dead letter that is written"}


def test_progress_that_is_never_stored_is_no_progress():
    task = Task(1)
    task.ignores = lambda request: isinstance(request, SaveOffset)
    task.ack_all(0)
    task.carry(2_000)
    task.stands(2_000)
    assert task.stands(MINUTE + 2_000) == {0: "its progress is not stored"}


@pytest.mark.parametrize("event", ["ack", "fail", "dead letter", "commit"])
def test_each_settled_message_and_each_commit_begins_the_minute_anew(event):
    task = Task(3, max_attempts=1 if event == "dead letter" else 5, commit_interval_ms=10 * MINUTE)
    first, *_ = task.emit()
    if event == "commit":
        task.coordinator.ack(first)
    task.stands(0)
    if event == "ack":
        task.coordinator.ack(first)
    elif event == "commit":
        task.coordinator.commit(MINUTE - 1)
    else:
        task.coordinator.fail(first, MINUTE - 1)
    task.carry(MINUTE - 1)
    assert task.stands(MINUTE - 1) == {}
    assert task.stands(2 * MINUTE - 2) == {} and task.stands(2 * MINUTE + 200)


# --- what is no reason


def test_a_partition_without_messages_is_no_reason():
    task = Task(1)
    task.stands(0)
    task.ack_all(0)
    assert task.stands(10 * MINUTE) == {}
    task.append()
    task.carry(10 * MINUTE)
    assert task.stands(10 * MINUTE) == task.stands(11 * MINUTE - 1) == {} and task.stands(11 * MINUTE)


def test_a_spout_that_is_deactivated_is_no_reason():
    task = Task(3)
    task.coordinator.standstills.is_paused = True
    assert task.stands(0) == task.stands(10 * MINUTE) == {}
    task.coordinator.standstills.is_paused = False
    assert task.stands(11 * MINUTE - 1) == {} and task.stands(11 * MINUTE)


def test_a_wait_for_partitions_of_the_group_is_no_reason():
    world = World(1)
    world.log.append()
    group = MemoryGroup({}, world.store(), 1)  # which assigns nothing
    source = Source("flights", "t", "t", Earliest(), SpoutConfig(), in_group=True)
    coordinator = PartitionCoordinator(source, 0, 1, "me")
    coordinator.start(0)
    store = MemoryGroupStore(group, 0)
    for number, request in coordinator.take_asks(0):
        port = world.log if type(request).__name__ == "ListPartitions" else store
        port.ask(request, lambda answer, number=number: coordinator.answered(number, answer, 0))
    assert coordinator.standstills.find(0, timeout_ms=TIMEOUT_MS) == {}
    assert coordinator.standstills.find(10 * MINUTE, timeout_ms=TIMEOUT_MS) == {} and coordinator.status() == []


def test_an_outage_is_no_reason_because_it_has_its_own_light():
    task = Task(3, outage_after_messages=2)
    task.stands(0)
    for id in task.emit():
        task.coordinator.fail(id, 0, "OSError: down")
    assert task.coordinator.outage(10 * MINUTE) is not None and task.stands(10 * MINUTE) == {}


def test_a_retry_that_is_not_due_yet_is_no_reason():
    task = Task(1, retry_initial_ms=5 * MINUTE, retry_max_ms=5 * MINUTE)
    (id,) = task.emit()
    task.coordinator.fail(id, 0)
    task.stands(0)
    assert task.stands(5 * MINUTE) == {} and task.stands(6 * MINUTE)


def test_a_batch_that_waits_for_its_transaction_is_no_reason():
    task = Task(3)
    task.emit()
    task.stands(0)
    assert task.stands(5 * MINUTE, cut_ms=5 * MINUTE) == {}
    assert task.stands(6 * MINUTE, cut_ms=5 * MINUTE)


def test_work_within_its_message_timeout_is_no_reason():
    """Storm fails a tuple after one to two times the timeout, so a bolt's tick within it is no reason either."""
    task = Task(3, timeout_ms=5 * MINUTE)
    task.emit()
    task.stands(0)
    assert task.stands(10 * MINUTE - 1) == {} and task.stands(10 * MINUTE)


def test_a_partition_that_waits_for_its_turn_is_no_reason():
    """Partitions take turns of 100 messages; slow bolts make a turn last for minutes."""
    task = Task(500, 500)
    task.stands(0)
    for now_ms in range(0, 3 * MINUTE, 4_000):
        (id,) = task.emit(now_ms, count=1)
        assert id.partition == 0
        task.coordinator.ack(id)
        assert task.stands(now_ms) == {}
    assert task.stands(5 * MINUTE) == {
        0: "455 messages are fetched, and not emitted",
        1: "500 messages are fetched, and not emitted",
    }


def test_a_partition_that_is_not_fetched_because_many_messages_of_others_wait_is_no_reason():
    task = Task(1_000, 200, fetch_max_records=100)
    task.ignores = lambda request: isinstance(request, Fetch) and request.partition == 1
    task.ack_all(0)
    held = 0
    for now_ms in range(1_000, 3 * MINUTE, 1_000):
        held += task.coordinator.has_enough
        assert task.stands(now_ms) == {}
        (id,) = task.emit(now_ms, count=1)
        task.coordinator.ack(id)
        task.carry(now_ms)
    assert 1 < held < 180


def test_messages_behind_an_open_transaction_are_no_reason_at_read_committed():
    fetched = FetchedPartition("flights", 0, 0, high_watermark=1_000, last_stable_offset=10, log_start_offset=0)
    answer = answer_of(fetched, 10, 1)
    manager = PartitionManager("flights", 0, Progress(10), SpoutConfig(isolation_level=READ_COMMITTED))
    manager.wanted()
    manager.fetched(answer.records, answer.next_offset, answer.high_watermark)
    assert not manager.work().is_owed
