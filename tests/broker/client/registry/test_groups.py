"""The groups of the registry: read, moved and removed, also while their consumers come to life."""

import pytest

from broker.client.errors import ClientError
from broker.client.registry import groups
from broker.client.registry.groups import GroupChanged, GroupLives
from broker.client.registry.nodes import (
    ConsumerRegistration,
    OffsetsTopic,
    StreamId,
    consumer_path,
    encode_offset,
    encode_owner,
    group_path,
    ids_path,
    offset_path,
    offsets_topic_path,
    owner_path,
)
from broker.cluster.documents import TopicPartition
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import BadVersion, Children, ConnectionLost, Create, Multi, NodeExists, Set, run

GROUP, CONSUMER = "billing", "host:uuid"
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Registry:
    """An ensemble with an operator's session and one of a consumer."""

    def __init__(self):
        self.ensemble = Ensemble()
        self.operator = MemoryCoordinator(self.ensemble)
        self.consumer = MemoryCoordinator(self.ensemble)

    def commit(self, partition, offset):
        self.operator.execute(Create(offset_path(GROUP, partition), encode_offset(offset)))

    def register(self):
        registration = ConsumerRegistration({"orders": 1}).encode()
        self.consumer.execute(Create(consumer_path(GROUP, CONSUMER), registration, ephemeral=True))

    def claim(self, partition, offset, version):
        """Claim a partition as a consumer does that has read its offset at this version."""
        path = owner_path(GROUP, partition)
        if not self.exists(path.rpartition("/")[0]):
            self.consumer.execute(Create(path.rpartition("/")[0]))
        owner = Create(path, encode_owner(StreamId(CONSUMER, 0)), ephemeral=True)
        self.consumer.execute(Multi((owner, Set(offset_path(GROUP, partition), encode_offset(offset), version))))

    def die(self):
        self.consumer.expire()

    def read(self):
        return run(self.operator, groups.read_group(GROUP))

    def move(self, group, offsets):
        run(self.operator, groups.move(group, offsets))

    def remove(self, group):
        run(self.operator, groups.remove(group))

    def exists(self, path):
        return path in self.ensemble.nodes


@pytest.fixture
def registry():
    return Registry()


class TestRead:
    def test_a_group_has_its_consumers_owners_and_offsets(self, registry):
        registry.commit(ORDERS_1, 7)
        registry.commit(ORDERS_0, 5)
        registry.register()
        registry.claim(ORDERS_0, 5, 0)
        group = registry.read()
        assert group.offsets == {ORDERS_0: 5, ORDERS_1: 7}
        assert group.owners == {ORDERS_0: StreamId(CONSUMER, 0)}
        assert group.consumers == {CONSUMER: ConsumerRegistration({"orders": 1})}
        assert group.is_living and group.problems == ()

    def test_all_groups_are_found_by_name(self, registry):
        assert run(registry.operator, groups.read_names()) == ()
        registry.commit(ORDERS_0, 5)
        assert run(registry.operator, groups.read_names()) == (GROUP,)

    def test_a_group_that_does_not_exist_has_nothing(self, registry):
        group = registry.read()
        assert group.nodes == {} and not group.is_living

    def test_a_damaged_node_hides_no_other(self, registry):
        registry.commit(ORDERS_0, 5)
        registry.operator.execute(Create(offset_path(GROUP, ORDERS_1), b"five"))
        registry.operator.execute(Create(consumer_path(GROUP, CONSUMER), b"{", ephemeral=True))
        group = registry.read()
        assert group.offsets == {ORDERS_0: 5}
        assert [problem.partition(":")[0] for problem in group.problems] == [
            consumer_path(GROUP, CONSUMER).partition(":")[0],
            offset_path(GROUP, ORDERS_1),
        ]
        assert group.is_living  # whatever the consumer wrote, it is there

    def test_a_partition_that_was_claimed_and_never_committed_has_no_offset(self, registry):
        registry.commit(ORDERS_0, None)
        registry.commit(ORDERS_1, 7)
        assert registry.read().offsets == {ORDERS_1: 7} and registry.read().problems == ()
        registry.move(registry.read(), {ORDERS_0: 1})
        assert registry.read().offsets == {ORDERS_0: 1, ORDERS_1: 7}

    def test_a_group_was_touched_when_its_newest_node_was_written(self, registry):
        registry.ensemble.now_ms = 1_000
        registry.commit(ORDERS_0, 5)
        registry.ensemble.now_ms = 2_000
        registry.operator.execute(Set(offset_path(GROUP, ORDERS_0), b"6", 0))
        registry.ensemble.now_ms = 3_000
        assert registry.read().touched_ms == 2_000


class TestMove:
    def test_all_offsets_are_moved(self, registry):
        registry.commit(ORDERS_0, 5)
        registry.move(registry.read(), {ORDERS_0: 1, ORDERS_1: 2})
        assert registry.read().offsets == {ORDERS_0: 1, ORDERS_1: 2}

    def test_a_group_that_does_not_exist_is_made(self, registry):
        registry.move(registry.read(), {ORDERS_0: 1})
        group = registry.read()
        assert group.offsets == {ORDERS_0: 1} and not group.is_living

    @pytest.mark.parametrize("moved, topic", [({ORDERS_0: 1, ORDERS_1: 1}, None), ({ORDERS_0: 1}, "an-earlier-topic")])
    def test_offsets_that_are_all_moved_count_for_the_topic_of_today(self, registry, moved, topic):
        """The topic may have been made again since the offsets were committed; then those that stay do not count."""
        registry.commit(ORDERS_0, 5)
        registry.commit(ORDERS_1, 5)
        path = offsets_topic_path(GROUP, "orders")
        registry.operator.execute(Set(path, OffsetsTopic("an-earlier-topic").encode(), 0))
        registry.move(registry.read(), moved)
        assert OffsetsTopic.decode(path, registry.read().nodes[path].data) == OffsetsTopic(topic)

    def test_a_group_that_lives_is_not_moved(self, registry):
        registry.commit(ORDERS_0, 5)
        registry.register()
        with pytest.raises(GroupLives, match="group billing has consumers in ZooKeeper that live; stop them first"):
            registry.move(registry.read(), {ORDERS_0: 1})
        assert registry.read().offsets == {ORDERS_0: 5}

    @pytest.mark.parametrize("has_ids", [True, False])
    def test_a_consumer_that_registers_after_the_plan_stops_the_move(self, registry, has_ids):
        registry.commit(ORDERS_0, 5)
        if has_ids:
            registry.operator.execute(Create(ids_path(GROUP)))
        group = registry.read()
        registry.register()
        with pytest.raises(GroupLives):
            registry.move(group, {ORDERS_0: 1, ORDERS_1: 1})
        assert registry.read().offsets == {ORDERS_0: 5}

    def test_a_consumer_that_came_and_went_after_the_plan_stops_the_move(self, registry):
        """It may have read on from there, so the plan is out of date."""
        registry.commit(ORDERS_0, 5)
        registry.operator.execute(Create(ids_path(GROUP)))
        group = registry.read()
        registry.register()
        registry.claim(ORDERS_0, 5, 0)
        registry.die()
        with pytest.raises(GroupChanged, match="group billing was written meanwhile .*; look at it again"):
            registry.move(group, {ORDERS_0: 1})
        assert registry.read().offsets == {ORDERS_0: 5}

    def test_a_claim_with_the_offset_from_before_the_move_fails(self, registry):
        registry.commit(ORDERS_0, 5)
        registry.move(registry.read(), {ORDERS_0: 1})
        registry.register()
        with pytest.raises(BadVersion):
            registry.claim(ORDERS_0, 5, 0)

    def test_a_first_claim_and_a_first_offset_exclude_each_other(self, registry):
        group = registry.read()
        registry.register()
        registry.consumer.execute(Create(offset_path(GROUP, ORDERS_0), encode_offset(9)))
        registry.die()
        with pytest.raises(GroupChanged):
            registry.move(group, {ORDERS_0: 1})
        with pytest.raises(NodeExists):
            registry.consumer.execute(Create(offset_path(GROUP, ORDERS_0), encode_offset(9)))

    def test_a_consumer_that_watches_the_group_sees_it_again_after_a_move(self, registry):
        registry.operator.execute(Create(ids_path(GROUP)))
        registry.consumer.execute(Children(ids_path(GROUP), watch=True))
        registry.move(registry.read(), {ORDERS_0: 1})
        registry.register()
        assert registry.read().consumers.keys() == {CONSUMER}

    def test_a_move_whose_answer_got_lost_is_whole(self, registry):
        registry.commit(ORDERS_0, 5)
        registry.commit(ORDERS_1, 5)
        group = registry.read()
        registry.operator.lose_answers = 1
        with pytest.raises(ConnectionLost):
            registry.move(group, {ORDERS_0: 1, ORDERS_1: 1})
        assert registry.read().offsets == {ORDERS_0: 1, ORDERS_1: 1}

    def test_more_partitions_than_a_transaction_holds_are_refused(self, registry):
        offsets = {TopicPartition("t" * 249, number): 0 for number in range(4_000)}
        with pytest.raises(ClientError, match="bytes for one Multi.*; name fewer topics or partitions"):
            registry.move(registry.read(), offsets)
        assert not registry.exists(group_path(GROUP))


class TestRemove:
    def test_a_group_is_removed_with_all_its_nodes(self, registry):
        registry.commit(ORDERS_0, 5)
        registry.register()
        registry.claim(ORDERS_0, 5, 0)
        registry.die()
        registry.remove(registry.read())
        assert not registry.exists(group_path(GROUP))
        assert run(registry.operator, groups.read_names()) == ()

    @pytest.mark.parametrize("below", ["", "/ids", "/offsets"])
    def test_a_group_without_offsets_is_removed(self, registry, below):
        registry.operator.execute(Create(f"{group_path(GROUP)}{below}"))
        registry.remove(registry.read())
        assert not registry.exists(group_path(GROUP))

    def test_a_group_with_many_nodes_is_removed(self, registry):
        for number in range(groups.DELETIONS_AT_ONCE + 1):
            registry.commit(TopicPartition("orders", number), 5)
        registry.remove(registry.read())
        assert not registry.exists(group_path(GROUP))

    def test_a_group_that_lives_is_not_removed(self, registry):
        registry.commit(ORDERS_0, 5)
        registry.register()
        with pytest.raises(GroupLives):
            registry.remove(registry.read())

    def test_a_consumer_that_registers_after_the_look_keeps_its_group(self, registry):
        registry.commit(ORDERS_0, 5)
        group = registry.read()
        registry.register()
        with pytest.raises(GroupLives):
            registry.remove(group)
        assert registry.read().offsets == {ORDERS_0: 5}

    def test_a_consumer_that_registers_between_two_steps_keeps_what_is_left(self, registry):
        for number in range(groups.DELETIONS_AT_ONCE + 100):
            registry.commit(TopicPartition("orders", number), 5)
        removing = groups.remove(registry.read())
        registry.operator.execute(next(removing))
        second = removing.send(())
        registry.register()
        with pytest.raises(GroupLives):
            run(registry.operator, _from(removing, second))
        assert len(registry.read().offsets) == 100

    def test_an_offset_that_was_committed_after_the_look_keeps_the_group(self, registry):
        registry.commit(ORDERS_0, 5)
        registry.operator.execute(Create(ids_path(GROUP)))
        group = registry.read()
        registry.operator.execute(Set(offset_path(GROUP, ORDERS_0), b"6", 0))
        with pytest.raises(GroupChanged):
            registry.remove(group)
        assert registry.read().offsets == {ORDERS_0: 6}


def _from(procedure, operation):
    """Go on with a procedure that has yielded this operation."""
    while True:
        try:
            result = yield operation
        except Exception as error:
            operation = procedure.throw(error)
        else:
            operation = procedure.send(result)
