"""The largest requests about groups and transactions."""

from uuid import UUID

from tests.broker.any_api import code_of
from tests.broker.largest_requests.case import PARTITIONS, SOME, case, logs, names, one_topic


def groups(world, number):
    """Create groups without members, each with an offset; return their names."""
    world.coordinated()
    group_ids = names(number, "g")
    for group_id in group_ids:
        fields = {"group_id": group_id, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        partition = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
        topic = {"name": world.topic, "partitions": [partition]}
        assert not code_of(world.ask("OffsetCommit", fields | {"topics": [topic]}))
    return group_ids


@case("FindCoordinator")
def find_coordinators(world, number):
    world.coordinated()
    return {"coordinator_keys": names(number), "key_type": 0}


@case("FindCoordinator")
def find_coordinators_of_a_wrong_type(world, number):
    return {"coordinator_keys": names(number), "key_type": 5}


@case("DescribeGroups", most=SOME)
def describe_groups(world, number):
    return {"groups": groups(world, number), "include_authorized_operations": True}


@case("DescribeGroups", 2, most=SOME)
def describe_unknown_groups(world, number):
    world.coordinated()
    return {"groups": names(number)}


@case("ListGroups", most=SOME)
def list_groups(world, number):
    groups(world, number)
    return {"states_filter": [], "types_filter": []}


@case("ListGroups")
def list_groups_of_many_states(world, number):
    world.member()
    return {"states_filter": names(number), "types_filter": names(number)}


@case("DeleteGroups", most=SOME)
def delete_groups(world, number):
    return {"groups_names": groups(world, number)}


@case("DeleteGroups", most=SOME)
def delete_unknown_groups(world, number):
    world.coordinated()
    return {"groups_names": names(number)}


@case("JoinGroup")
def join_with_many_protocols(world, number):
    world.coordinated()
    protocols = [{"name": name, "metadata": b"x"} for name in names(number)]
    fields = {"group_id": world.group, "session_timeout": 10_000, "rebalance_timeout": 60_000, "member_id": ""}
    return fields | {"group_instance_id": "seat", "protocol_type": "consumer", "protocols": protocols}


@case("SyncGroup")
def sync_with_many_assignments(world, number):
    member, generation = world.joined()
    fields = {"group_id": world.group, "generation_id": generation, "member_id": member, "group_instance_id": "seat"}
    assignments = [{"member_id": name, "assignment": b"x"} for name in names(number)]
    return fields | {"protocol_type": "consumer", "protocol_name": "range", "assignments": assignments}


@case("LeaveGroup")
def leave_with_many_members(world, number):
    world.member()
    members = [{"member_id": name, "group_instance_id": None} for name in names(number)]
    return {"group_id": world.group, "members": members}


def offsets(world, number, key="partition_index", **more):
    parts = [{key: index} | more for index in range(number)]
    return [{"name": one_topic(world, number), "partitions": parts}]


@case("OffsetCommit", 2, 9, most=PARTITIONS)
def commit_offsets(world, number):
    world.coordinated()
    fields = {"group_id": world.group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return fields | {"topics": offsets(world, number, committed_offset=3, committed_metadata="")}


@case("OffsetCommit", 9, most=SOME)
def commit_offsets_of_unknown_topics(world, number):
    world.coordinated()
    fields = {"group_id": world.group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    partition = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    return fields | {"topics": [{"name": name, "partitions": [partition]} for name in names(number)]}


def committed(world, number):
    """Commit offsets of many partitions of a topic, in requests of 1,000."""
    world.coordinated()
    one_topic(world, number)
    fields = {"group_id": world.group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    for first in range(0, number, 1_000):
        parts = [
            {"partition_index": index, "committed_offset": 3, "committed_metadata": ""}
            for index in range(first, min(first + 1_000, number))
        ]
        answer = world.ask("OffsetCommit", fields | {"topics": [{"name": "wide", "partitions": parts}]})
        assert not code_of(answer)


@case("OffsetFetch", 2, 9, most=PARTITIONS)
def fetch_offsets(world, number):
    committed(world, number)
    wanted = [{"name": "wide", "partition_indexes": list(range(number))}]
    group = {"group_id": world.group, "topics": wanted}
    return group | {"groups": [group], "require_stable": True}


@case("OffsetFetch", 9, most=PARTITIONS)
def fetch_all_offsets(world, number):
    committed(world, number)
    return {"groups": [{"group_id": world.group, "topics": None}], "require_stable": True}


@case("OffsetFetch", 9, most=SOME)
def fetch_offsets_of_unknown_topics(world, number):
    world.coordinated()
    wanted = [{"name": name, "partition_indexes": [0]} for name in names(number)]
    return {"groups": [{"group_id": "g", "topics": wanted}], "require_stable": False}


@case("OffsetFetch", 10)
def fetch_offsets_of_unknown_ids(world, number):
    world.coordinated()
    wanted = [{"topic_id": UUID(int=index + 1), "partition_indexes": [0]} for index in range(number)]
    return {"groups": [{"group_id": "g", "topics": wanted}], "require_stable": False}


@case("OffsetFetch", 9, most=SOME)
def fetch_offsets_of_many_groups(world, number):
    group_ids = groups(world, number)
    return {"groups": [{"group_id": group_id, "topics": None} for group_id in group_ids], "require_stable": False}


@case("OffsetDelete", most=PARTITIONS)
def delete_offsets(world, number):
    committed(world, number)
    return {"group_id": world.group, "topics": offsets_of_wide(number)}


def offsets_of_wide(number):
    return [{"name": "wide", "partitions": [{"partition_index": index} for index in range(number)]}]


def producer_of(world, producer):
    fields = {"transactional_id": world.transactional_id}
    return fields | {"producer_id": producer[0], "producer_epoch": producer[1]}


@case("AddPartitionsToTxn", most=PARTITIONS)
def add_partitions_to_a_transaction(world, number):
    producer = world.producer()
    one_topic(world, number)
    fields = {f"v3_and_below_{name}": value for name, value in producer_of(world, producer).items()}
    return fields | {"v3_and_below_topics": [{"name": "wide", "partitions": list(range(number))}]}


@case("AddPartitionsToTxn")
def add_unknown_topics_to_a_transaction(world, number):
    producer = world.producer()
    fields = {f"v3_and_below_{name}": value for name, value in producer_of(world, producer).items()}
    return fields | {"v3_and_below_topics": [{"name": name, "partitions": [0]} for name in names(number)]}


@case("TxnOffsetCommit", most=PARTITIONS)
def commit_offsets_in_a_transaction(world, number):
    producer = world.producer()
    world.coordinated()
    world.add_offsets(producer)
    fields = producer_of(world, producer) | {"group_id": world.group, "generation_id": -1, "member_id": ""}
    return fields | {"topics": offsets(world, number, committed_offset=3, committed_metadata="")}


@case("WriteTxnMarkers", most=PARTITIONS)
def write_markers(world, number):
    return world.markers((1, 0), logs(world, number), range(number))


@case("EndTxn", most=PARTITIONS)
def end_a_large_transaction(world, number):
    producer = world.producer()
    logs(world, number)
    for first in range(0, number, 1_000):
        partitions = [("wide", index) for index in range(first, min(first + 1_000, number))]
        fields = {f"v3_and_below_{name}": value for name, value in producer_of(world, producer).items()}
        fields["v3_and_below_topics"] = [{"name": "wide", "partitions": [index for _, index in partitions]}]
        assert not code_of(world.ask("AddPartitionsToTxn", fields))
    return producer_of(world, producer) | {"committed": True}


@case("DescribeProducers", most=PARTITIONS)
def describe_producers(world, number):
    requested = [{"name": logs(world, number), "partition_indexes": list(range(number))}]
    return {"topics": requested}


@case("DescribeProducers", most=SOME)
def describe_producers_of_unknown_topics(world, number):
    return {"topics": [{"name": name, "partition_indexes": [0]} for name in names(number)]}


@case("DescribeTransactions")
def describe_unknown_transactions(world, number):
    world.producer()
    return {"transactional_ids": names(number)}


@case("DescribeTransactions")
def describe_a_transaction_many_times(world, number):
    world.add(world.producer())
    return {"transactional_ids": [world.transactional_id] * number}


@case("ListTransactions")
def list_transactions_of_many_states(world, number):
    world.producer()
    return {"state_filters": names(number), "producer_id_filters": list(range(number))}
