"""A group's offsets move while a consumer lives its whole life: in each order of their operations nothing is lost."""

from random import Random

import pytest

from broker.client.registry import groups
from broker.client.registry.groups import GroupChanged
from broker.client.registry.nodes import (
    ConsumerRegistration,
    StreamId,
    consumer_path,
    decode_offset,
    encode_offset,
    encode_owner,
    ids_path,
    offset_path,
    owned_topic_path,
    owner_path,
)
from broker.cluster.documents import TopicPartition
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import CoordinationError, Create, Get, Multi, NoNode, Set

GROUP, CONSUMER = "billing", "host:uuid"
ORDERS = TopicPartition("orders", 0)
ORDERS_TRIED = 300
TURNS, LIFE = 24, 8  # operations of both, and of the consumer
BEFORE, MOVED, READ = 50, 10, 7  # the first offset, the one of the move, and how many records the consumer reads


class World:
    """A stopped group, an operator who moves it, and a consumer that begins, reads, commits and ends."""

    def __init__(self, has_ids, has_offset):
        self.ensemble = Ensemble()
        self.operator, self.consumer = (MemoryCoordinator(self.ensemble) for _ in range(2))
        self.operator.execute(Create(owned_topic_path(GROUP, "orders")))
        if has_ids:
            self.operator.execute(Create(ids_path(GROUP)))
        if has_offset:
            self.operator.execute(Create(offset_path(GROUP, ORDERS), encode_offset(BEFORE)))
        self.first = BEFORE if has_offset else 0
        self.planned = None
        self.is_moved = None
        self.began_at = None

    @property
    def offset(self):
        node = self.ensemble.nodes.get(offset_path(GROUP, ORDERS))
        return 0 if node is None else decode_offset("", node.data)

    def operate(self):
        """Move the group, one operation at each step."""
        try:
            group = yield from self._steps(groups.read_group(GROUP))
            self.planned = group.offsets.get(ORDERS, 0)
            yield from self._steps(groups.move(group, {ORDERS: MOVED}))
            self.is_moved = True
        except GroupChanged:
            self.is_moved = False

    def _steps(self, procedure):
        try:
            operation = next(procedure)
            while True:
                at_operation = self.offset
                try:
                    result = self.operator.execute(operation)
                except CoordinationError as error:
                    operation = procedure.throw(error)
                else:
                    if isinstance(operation, Multi):
                        assert at_operation == self.planned, "a commit got lost that the plan has not seen"
                        assert not self.ensemble.names(ids_path(GROUP)), "a group was moved that lives"
                    yield
                    operation = procedure.send(result)
        except StopIteration as stop:
            return stop.value

    def live(self):
        """Register, claim the partition at the version of its offset, read, commit at that version, end."""
        registration = ConsumerRegistration({"orders": 1}).encode()
        self.consumer.execute(Create(consumer_path(GROUP, CONSUMER), registration, ephemeral=True))
        yield
        path, owner = offset_path(GROUP, ORDERS), owner_path(GROUP, ORDERS)
        while self.began_at is None:
            try:
                node = self.consumer.execute(Get(path))
            except NoNode:
                node = None
            yield
            begin = 0 if node is None else decode_offset(path, node.data)
            same = encode_offset(begin)
            write = Create(path, same) if node is None else Set(path, same, node.version)
            try:
                claim = Create(owner, encode_owner(StreamId(CONSUMER, 0)), ephemeral=True)
                self.consumer.execute(Multi((claim, write)))
                self.began_at, version = begin, 0 if node is None else node.version + 1
            except NoNode:  # nothing has made the parent of the offset's node
                self.consumer.execute(Create(path.rpartition("/")[0]))
            except CoordinationError:
                pass  # the offset has changed since it was read
            yield
        self.consumer.execute(Set(path, encode_offset(self.began_at + READ), version))
        yield
        self.consumer.expire()
        yield

    def run(self, turns):
        """Give the consumer these of the first turns, and all others to the operator; then let both end."""
        operator, consumer = self.operate(), self.live()
        for turn in range(max(turns) + 1):
            next(consumer if turn in turns else operator, None)
        for _ in operator:
            pass
        for _ in consumer:
            pass


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("has_offset", [True, False])
def test_a_move_at_any_time_of_a_life_keeps_what_the_consumer_has_read(has_ids, has_offset):
    outcomes, random = set(), Random(1)
    orders = [sorted(random.sample(range(TURNS), LIFE)) for _ in range(ORDERS_TRIED)]
    for turns in [range(LIFE), range(TURNS - LIFE, TURNS), *orders]:
        world = World(has_ids, has_offset)
        world.run(turns)
        outcomes.add((world.is_moved, world.began_at))
        if world.is_moved and world.began_at == MOVED:
            assert world.offset == MOVED + READ, turns
        elif world.is_moved:
            assert (world.planned, world.offset) == (world.began_at + READ, MOVED), turns
        else:
            assert (world.began_at, world.offset) == (world.first, world.first + READ), turns
    assert outcomes == {(True, MOVED), (True, world.first), (False, world.first)}
