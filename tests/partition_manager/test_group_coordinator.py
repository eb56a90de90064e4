"""A task in a consumer group: what it opens, hands over, drops and gives back."""

import pytest

from broker.client.group_config import GroupMemberConfig
from broker.client.offset_spec import Earliest
from flakelog.testing.memory_group import MemoryGroup, MemoryGroupStore
from idgen.settings import InvalidSetting
from partition_manager.config import SpoutConfig
from partition_manager.coordinator import PartitionCoordinator
from partition_manager.notes import ERROR
from partition_manager.offset_document import OffsetDocument
from partition_manager.ports import AwaitShare, LoadOffset, ReleasePartition, SaveOffset
from partition_manager.progress import Progress
from partition_manager.source import Source, config_in_group
from partition_manager.task_partition import Phase
from tests.partition_manager.world import World

HANDOVER_MS = 5_000
CONFIG = SpoutConfig(spout_retry_jitter=0.0, spout_handover_ms=HANDOVER_MS, spout_commit_interval_ms=60_000)
P0, P1 = ("flights", 0), ("flights", 1)


class Process:
    """A spout of one task in a group, with a log of two partitions of three messages."""

    def __init__(self):
        self.world = World(2)
        for partition in (0, 1):
            for _ in range(3):
                self.world.log.append(partition=partition)
        self.group = MemoryGroup({"flights": self.world.log}, self.world.store(), 1)
        self.store = MemoryGroupStore(self.group, 0)
        source = Source("flights", "t", "t", Earliest(), CONFIG, in_group=True)
        self.coordinator = PartitionCoordinator(source, 0, 1, "me")
        self.coordinator.start(0)
        self.carry(0)
        self.ids = {}
        self.emit(0)

    def carry(self, now_ms):
        coordinator, self.now_ms = self.coordinator, now_ms
        while asks := coordinator.take_asks(now_ms):
            for number, request in asks:
                of_group = isinstance(request, (AwaitShare, ReleasePartition, LoadOffset, SaveOffset))
                port = self.store if of_group else self.world.port_of(request, None)
                port.ask(request, lambda answer, number=number: coordinator.answered(number, answer, self.now_ms))

    def emit(self, now_ms):
        """Emit all there is; return the places emitted."""
        positions = []
        while (emission := self.coordinator.next(now_ms)) is not None:
            id = emission[0]
            self.ids[id.partition, id.offset] = id
            positions.append((id.partition, id.offset))
        return positions

    def ack(self, *positions):
        return [self.coordinator.ack(self.ids[position]) for position in positions]

    def stored(self, partition):
        answers = []
        self.world.store().ask(LoadOffset("flights", partition), answers.append)
        return OffsetDocument.decode(answers[0].document).progress

    @property
    def phases(self):
        return {status.partition: status.phase for status in self.coordinator.status()}


@pytest.fixture
def process():
    return Process()


def test_a_task_reads_what_the_group_assigns(process):
    assert sorted(process.ids) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_revoked_partition_waits_for_its_messages_in_flight_then_commits_and_is_given_back(process):
    process.world.log.append(partition=1)
    process.group.revoke(P1)
    process.carry(1_000)
    assert process.phases == {0: Phase.RUNNING, 1: Phase.HANDING_OVER}
    assert process.emit(1_000) == [], "nothing new of the revoked partition"
    process.ack((1, 0), (1, 1))
    process.carry(1_500)
    assert process.group.released == []
    process.ack((1, 2))
    process.carry(2_000)
    assert (process.group.released, process.phases) == ([P1], {0: Phase.RUNNING})
    assert process.stored(1) == Progress(3)


def test_after_the_handover_time_the_next_owner_gets_what_is_still_in_flight_and_late_acks_are_ignored(process):
    process.ack((1, 0), (1, 2))
    process.carry(1_000)
    process.group.revoke(P1)
    process.carry(1_000)
    process.carry(999 + HANDOVER_MS)
    assert process.group.released == []
    assert process.coordinator.next_deadline_ms() == 1_000 + HANDOVER_MS
    process.carry(1_000 + HANDOVER_MS)
    assert process.group.released == [P1]
    assert process.stored(1) == Progress(1, ((2, 3),)), "the settled range above the watermark is handed over too"
    assert process.ack((1, 1)) == [False]


def test_a_message_that_waits_for_its_retry_does_not_delay_the_handover(process):
    process.ack((1, 0), (1, 2))
    process.coordinator.fail(process.ids[1, 1], 0)
    process.group.revoke(P1)
    process.carry(1_000)
    assert process.group.released == [P1]
    assert process.emit(60_000) == [], "the next owner delivers it again"


def test_a_lost_partition_is_dropped_without_a_commit_and_named_in_an_error(process):
    process.ack((1, 0))
    process.group.lose(P1)
    process.carry(1_000)
    assert process.phases == {0: Phase.RUNNING}
    assert process.stored(1) == Progress(0)
    assert process.ack((1, 1)) == [False]
    assert [note.text for note in process.coordinator.take_notes() if note.level == ERROR] == [f"lost {(P1,)}"]
    assert process.group.released == []


def test_a_partition_lost_and_assigned_again_is_opened_anew(process):
    process.ack((1, 0))
    process.group.lose(P1)
    process.group.assign(P1)
    process.carry(1_000)
    assert process.emit(1_000) == [(1, 0), (1, 1), (1, 2)]


def test_a_partition_revoked_while_it_is_opened_is_given_back_at_once(process):
    process.group.revoke(P1)
    process.carry(0)
    process.carry(HANDOVER_MS)
    process.world.log.down = "broker away"
    process.group.assign(P1)
    process.carry(6_000)
    assert process.phases[1] is Phase.OPENING
    process.group.revoke(P1)
    process.carry(6_000)
    assert process.group.released == [P1, P1]


def test_a_recreated_topic_keeps_its_partitions(process):
    process.world.log.recreate()
    process.carry(60_000)
    process.carry(60_000)
    process.world.log.append(partition=1)
    process.carry(60_001)
    assert process.emit(60_001) == [(1, 0)] and process.group.released == []


def test_a_stop_commits_and_releases_everything(process):
    process.ack((0, 0), (1, 0))
    process.coordinator.stop(1_000)
    process.carry(1_000)
    assert process.coordinator.idle
    assert (process.stored(0), process.stored(1)) == (Progress(1), Progress(1))


def test_settings_that_do_not_fit_a_group_are_refused_by_name():
    with pytest.raises(InvalidSetting, match="flakelog.spout.handover.ms=300000: must be below max.poll.interval.ms"):
        config_in_group(SpoutConfig(spout_handover_ms=300_000), GroupMemberConfig())
    with pytest.raises(InvalidSetting, match="flakelog.spout.ignore.stored=True: must be false with store='kafka'"):
        config_in_group(SpoutConfig(spout_ignore_stored=True), GroupMemberConfig())


def test_the_ranges_of_a_partition_are_limited_to_what_a_commit_can_hold():
    config = config_in_group(SpoutConfig(), GroupMemberConfig())
    assert (config.spout_max_settled_ranges, config.spout_done_ranges_max) == (500, 500)
