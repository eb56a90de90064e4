"""A few bytes may unpack to many megabytes: the messages in memory have one limit, and partitions take turns."""

from collections import Counter
from dataclasses import replace

import pytest

from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from broker.wire.fetch import READ_UNCOMMITTED, FetchedPartition
from partition_manager.config import AT_MOST_ONCE, SpoutConfig
from partition_manager.fetcher import answer_of
from partition_manager.ports import Fetch, FindEpochEnd, Packed, SaveOffset
from tests.partition_manager.test_coordinator import coordinator_of
from tests.partition_manager.world import World

MESSAGES, SIZE = 5, 100_000  # of a batch
BATCH_BYTES = MESSAGES * SIZE
LIMIT = 2_000_000
CONFIG = SpoutConfig(spout_max_pending_bytes=LIMIT)
EPOCH = slice(12, 16)


class PackedWorld(World):
    """A world whose partitions have batches of 100 B that unpack to 500 kB.

    `unpacked` counts the answers that were unpacked. A request for which `waits` is true gets no answer.
    """

    def __init__(self, partitions, batches, waits=lambda request: False):
        super().__init__(partitions)
        for partition in range(partitions):
            for _ in range(batches * MESSAGES):
                self.log.append(partition=partition)
        self.waits = waits
        self.unpacked = 0
        self.log.ask, self._ask = self._fetch, self.log.ask

    def port_of(self, request, store):
        return self if self.waits(request) else super().port_of(request, store)

    def ask(self, request, answer):
        """Answer nothing."""

    def _fetch(self, request, answer):
        end = self.log.ends.get(getattr(request, "partition", None))
        if not isinstance(request, Fetch) or request.wanted.offset == end:
            self._ask(request, answer)
            return
        offset = request.wanted.offset
        batch = batch_at(offset - offset % MESSAGES)
        fetched = FetchedPartition(request.topic, request.partition, 0, end, end, 0, records=batch)

        def unpack():
            self.unpacked += 1
            return answer_of(fetched, offset, READ_UNCOMMITTED)

        answer(Packed(unpack))


def batch_at(base_offset):
    """Return a batch; each has its own leader epoch."""
    records = [BatchRecord(number, 0, None, bytes(SIZE)) for number in range(MESSAGES)]
    made = encode_batch(records, base_timestamp_ms=1, base_offset=base_offset, codec=Codec.ZSTD)
    made[EPOCH] = (base_offset // MESSAGES).to_bytes(4, "big")
    return bytes(made)


def kept_bytes(coordinator):
    return coordinator._share.memory.used_bytes


def settle_all(coordinator, world):
    """Emit and ack each message; yield after each."""
    while (emission := coordinator.next(0)) is not None:
        coordinator.ack(emission[0])
        yield emission[0].partition
        world.carry(coordinator, 0)


@pytest.mark.parametrize("partitions", [1, 3, 50])
def test_messages_in_memory_have_one_limit_whatever_the_number_of_partitions(partitions):
    world = PackedWorld(partitions, batches=3)
    coordinator = coordinator_of(world, config=CONFIG)
    most = [kept_bytes(coordinator) for _ in settle_all(coordinator, world)]
    assert len(most) == partitions * 3 * MESSAGES, "every message came"
    assert BATCH_BYTES - SIZE <= max(most) < LIMIT + 2 * SIZE


def test_partitions_take_turns_to_be_unpacked():
    world = PackedWorld(50, batches=3)
    coordinator = coordinator_of(world, config=CONFIG)
    acked = Counter(dict.fromkeys(range(50), 0))
    for partition in settle_all(coordinator, world):
        acked[partition] += 1
        assert max(acked.values()) - min(acked.values()) <= 2 * MESSAGES


def test_an_answer_is_unpacked_once_there_is_memory_and_no_fetch_is_sent_before():
    world = PackedWorld(50, batches=1)
    coordinator = coordinator_of(world, config=CONFIG)
    before = world.unpacked
    assert before <= LIMIT // SIZE and coordinator.has_enough
    for _, _ in zip(range(MESSAGES + 1), settle_all(coordinator, world), strict=False):
        pass
    assert before < world.unpacked <= before + MESSAGES + 1


def test_an_answer_is_never_unpacked_for_a_partition_that_is_gone():
    world = PackedWorld(50, batches=1)
    coordinator = coordinator_of(world, config=CONFIG)
    before = world.unpacked
    coordinator.stop(0)
    world.carry(coordinator, 0)
    assert coordinator.idle and world.unpacked == before and not coordinator.has_enough


WAITS = {
    "at most once, progress past them is not stored": (
        lambda request: isinstance(request, SaveOffset) and request.version >= 0,
        {"spout_guarantee": AT_MOST_ONCE},
    ),
    "of a new leader, the end of the last epoch is not known": (
        lambda request: isinstance(request, FindEpochEnd) and request.leader_epoch >= 0,
        {},
    ),
}


@pytest.mark.parametrize("why", WAITS)
def test_records_that_wait_for_another_answer_count(why):
    waits, settings = WAITS[why]
    world = PackedWorld(50, batches=2, waits=waits)
    coordinator = coordinator_of(world, config=replace(CONFIG, **settings))
    for _ in settle_all(coordinator, world):
        pass
    assert LIMIT <= kept_bytes(coordinator) < LIMIT + BATCH_BYTES + SIZE
    for partition in [*coordinator._all]:
        partition.lose()
    assert kept_bytes(coordinator) == 0
