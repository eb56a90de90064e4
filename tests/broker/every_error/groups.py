"""Rows of the table of errors: consumer groups, and coordinators that are missing, loading or offline."""

from broker.group.results import CommitRequest, OffsetToCommit
from broker.steps import ITEMS_AT_ONCE
from broker.wire.errors import ErrorCode as E
from tests.broker.any_api import World
from tests.broker.every_error.case import LONG, NOWHERE, OFFSETS, TRANSACTIONS, Case, offline
from tests.broker.every_error.topics import alter
from tests.broker.every_error.transactions import transactions

STATIC_SINCE = {"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "LeaveGroup": 3, "OffsetCommit": 7}
MEMBERS = tuple(STATIC_SINCE)
GENERATIONS = ("SyncGroup", "Heartbeat", "OffsetCommit")
COORDINATED = (
    *MEMBERS, "OffsetFetch", "DescribeGroups", "DeleteGroups", "OffsetDelete", "InitProducerId", "AddPartitionsToTxn",
    "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit", "DescribeTransactions",
)  # fmt: skip
LOADED = (
    "JoinGroup", "LeaveGroup", "OffsetCommit", "TxnOffsetCommit", "OffsetFetch", "DescribeGroups", "DeleteGroups",
    "OffsetDelete", "ListGroups",
)  # fmt: skip


def by(world, wrong):
    """Send a request of the world's API as a member of a stable group; `wrong` overrides the member's fields."""
    member, generation = world.member()
    member_fields = {"member": member, "generation": generation, "instance": "seat"} | wrong
    return of_member(world, **member_fields)


def of_member(world, member, generation, instance, **more):
    static = {"instance": instance if world.version >= STATIC_SINCE[world.name] else None}
    if world.name == "SyncGroup":
        return world.sync(member, generation, **static)
    if world.name == "Heartbeat":
        return world.heartbeat(member, generation, **static)
    if world.name == "LeaveGroup":
        return world.leave(member, **static)
    if world.name == "JoinGroup":
        return world.join(member, **static)
    return world.commit(member, generation, **static)


def new(world, **more):
    """Send a newcomer's JoinGroup to a stable group."""
    world.member()
    return world.join(**{"version": None} | more)


def without_group(world):
    world.coordinated()
    if world.name == "SyncGroup":
        return world.sync("m", 1, group_id="")
    if world.name == "Heartbeat":
        return world.heartbeat("m", 1, group="")
    if world.name == "JoinGroup":
        return world.join(group_id="")
    return world.leave("m", group="")


def of_unknown_group(world, generation=1):
    world.coordinated()
    return world.commit("m", generation)


def unstable(world):
    """Fetch an offset of an open transaction with `require_stable`."""
    producer = world.producer()
    world.coordinated()
    world.add_offsets(producer)
    world.commit_in(producer)
    return world.committed(require_stable=True)


def forget(world, topic=None, partition=0, group=None):
    topics = [{"name": topic or world.topic, "partitions": [{"partition_index": partition}]}]
    return world.ask("OffsetDelete", {"group_id": world.group if group is None else group, "topics": topics})


def groups(world, group=None):
    world.coordinated()
    return world.ask("DescribeGroups", {"groups": [world.group if group is None else group]})


def remove_group(world, group=None):
    return world.ask("DeleteGroups", {"groups_names": [world.group if group is None else group]})


def committed_once(world):
    world.coordinated()
    world.commit()


def of_other_kind(world):
    """Create a group whose members are not consumers."""
    world.coordinated()
    world.join(protocol_type="connect", instance="seat", version=9)


def commit_too_large(world):
    """Commit an offset whose record is larger than the offsets topic accepts."""
    world.coordinated()
    alter(World(world.line, "IncrementalAlterConfigs", 1), 2, OFFSETS, "max.message.bytes", "20")
    return world.commit()


def of_loading_coordinator(world):
    """Send a request to a coordinator whose many offsets are being loaded, in several slices."""
    world.coordinated()
    groups, now = world.broker.services.coordinators.groups, world.broker.now
    led = groups.find(world.group)
    offsets = tuple(OffsetToCommit(world.topic, partition, 1) for partition in range(ITEMS_AT_ONCE))
    led.core.commit(CommitRequest(group_id=world.group, offsets=offsets), now)
    led.settle(now)
    groups.partitions.load_again(led.partition, now)
    return world.ask("ListGroups", {}) if world.name == "ListGroups" else of_coordinator(world)


def looked_for_in_vain(world):
    """Send a request to a coordinator before any FindCoordinator: its topic does not exist yet."""
    return of_coordinator(world)


def of_coordinator(world):
    asks = {
        "DescribeGroups": lambda: world.ask("DescribeGroups", {"groups": [world.group]}),
        "DeleteGroups": lambda: remove_group(world),
        "OffsetDelete": lambda: forget(world),
        "OffsetFetch": lambda: world.committed(),
        "InitProducerId": lambda: world.init(world.transactional_id),
        "AddPartitionsToTxn": lambda: world.add((1, 0)),
        "AddOffsetsToTxn": lambda: world.add_offsets((1, 0)),
        "EndTxn": lambda: world.end((1, 0)),
        "TxnOffsetCommit": lambda: world.commit_in((1, 0)),
        "DescribeTransactions": lambda: transactions(world, world.transactional_id),
    }
    return asks[world.name]() if world.name in asks else of_member(world, "m", 1, "seat")


def of_offline_coordinator(world):
    world.coordinated()
    world.find(world.transactional_id, 1)
    offline(world, OFFSETS)
    offline(world, TRANSACTIONS)
    return of_coordinator(world)


GROUPS = [
    *(Case(api, E.UNKNOWN_MEMBER_ID, lambda w: by(w, {"member": "nobody", "instance": None})) for api in MEMBERS),
    *(Case(api, E.ILLEGAL_GENERATION, lambda w: by(w, {"generation": 7})) for api in GENERATIONS),
    *(Case(api, E.FENCED_INSTANCE_ID, lambda w: by(w, {"member": "another"}), STATIC_SINCE[api]) for api in MEMBERS),
    *(Case(api, E.REBALANCE_IN_PROGRESS, lambda w: of_member(w, *w.rebalancing(), "seat"))
      for api in ("SyncGroup", "Heartbeat")),
    *(Case(api, E.INVALID_GROUP_ID, without_group) for api in ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup")),
    *(Case(api, E.NOT_COORDINATOR, looked_for_in_vain, inside=True) for api in COORDINATED),
    *(Case(api, E.COORDINATOR_LOAD_IN_PROGRESS, of_loading_coordinator, inside=True) for api in LOADED),
    Case("OffsetCommit", E.UNKNOWN_SERVER_ERROR, commit_too_large, inside=True),
    *(Case(api, E.COORDINATOR_NOT_AVAILABLE, of_offline_coordinator, inside=True) for api in COORDINATED),
    Case("FindCoordinator", E.INVALID_REQUEST, lambda w: find(w, 7), oldest=1),
    Case("FindCoordinator", E.COORDINATOR_NOT_AVAILABLE,
         lambda w: w.coordinated() or offline(w, OFFSETS) and find(w, 0), inside=True),
    Case("JoinGroup", E.MEMBER_ID_REQUIRED, lambda w: w.coordinated() or w.join(), oldest=4),
    Case("JoinGroup", E.INVALID_SESSION_TIMEOUT, lambda w: new(w, session_timeout=10)),
    Case("JoinGroup", E.INVALID_SESSION_TIMEOUT, lambda w: new(w, session_timeout=1 << 30)),
    Case("JoinGroup", E.INCONSISTENT_GROUP_PROTOCOL, lambda w: new(w, protocol_type="connect")),
    Case("JoinGroup", E.INCONSISTENT_GROUP_PROTOCOL, lambda w: new(w, protocols=[{"name": "x", "metadata": b""}])),
    Case("JoinGroup", E.INCONSISTENT_GROUP_PROTOCOL, lambda w: w.coordinated() or w.join(protocols=[])),
    Case("JoinGroup", E.GROUP_MAX_SIZE_REACHED, lambda w: new(w), newest=3, inside=True,
         settings={"group_max_size": 1}),
    Case("JoinGroup", E.GROUP_MAX_SIZE_REACHED, lambda w: new(w, instance="other"), 5, inside=True,
         settings={"group_max_size": 1}),
    Case("SyncGroup", E.INCONSISTENT_GROUP_PROTOCOL, lambda w: w.sync(*w.member(), "seat", protocol_name="x"), 5),
    Case("SyncGroup", E.INCONSISTENT_GROUP_PROTOCOL, lambda w: w.sync(*w.member(), "seat", protocol_name=None), 5),
    Case("OffsetCommit", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.coordinated() or w.commit(topic=NOWHERE), newest=9),
    Case("OffsetCommit", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.coordinated() or w.commit(partition=7)),
    Case("OffsetCommit", E.UNKNOWN_TOPIC_ID, lambda w: w.coordinated() or w.commit(topic=NOWHERE), oldest=10),
    Case("OffsetCommit", E.OFFSET_METADATA_TOO_LARGE, lambda w: w.coordinated() or w.commit(note=LONG)),
    Case("OffsetCommit", E.ILLEGAL_GENERATION, of_unknown_group, newest=8),
    Case("OffsetCommit", E.GROUP_ID_NOT_FOUND, of_unknown_group, oldest=9),
    Case("OffsetCommit", E.REBALANCE_IN_PROGRESS, lambda w: of_member(w, *w.joined(), "seat")),
    Case("OffsetCommit", E.UNKNOWN_MEMBER_ID, lambda w: w.member() and w.commit()),
    Case("OffsetFetch", E.UNKNOWN_TOPIC_ID, lambda w: w.coordinated() or w.committed(NOWHERE), oldest=10),
    Case("OffsetFetch", E.UNSTABLE_OFFSET_COMMIT, unstable, oldest=7),
    Case("DescribeGroups", E.GROUP_ID_NOT_FOUND, groups, oldest=6),
    Case("DeleteGroups", E.GROUP_ID_NOT_FOUND, lambda w: w.coordinated() or remove_group(w)),
    Case("DeleteGroups", E.NON_EMPTY_GROUP, lambda w: w.member() and remove_group(w)),
    Case("OffsetDelete", E.GROUP_ID_NOT_FOUND, lambda w: w.coordinated() or forget(w)),
    Case("OffsetDelete", E.INVALID_GROUP_ID, lambda w: w.coordinated() or forget(w, group="")),
    Case("OffsetDelete", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: committed_once(w) or forget(w, NOWHERE)),
    Case("OffsetDelete", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: committed_once(w) or forget(w, partition=7)),
    Case("OffsetDelete", E.NON_EMPTY_GROUP, lambda w: of_other_kind(w) or forget(w)),
    Case("OffsetDelete", E.GROUP_SUBSCRIBED_TO_TOPIC, lambda w: subscribed(w)),
]  # fmt: skip


def find(world, kind):
    return world.ask("FindCoordinator", {"key": world.group, "key_type": kind, "coordinator_keys": [world.group]})


def subscribed(world):
    """Delete offsets of a topic that a member of the group subscribes to."""
    topic = world.topic.encode()
    metadata = b"\0\0\0\0\0\1" + len(topic).to_bytes(2, "big") + topic + b"\xff\xff\xff\xff"
    world.coordinated()
    answer = world.join(instance="seat", version=9, protocols=[{"name": "range", "metadata": metadata}])
    world.sync(answer.member_id, answer.generation_id, "seat", version=5)
    return forget(world)
