"""Every error that a group API can answer, in the oldest and the newest version that know it.

The codes are those of Kafka's protocol pages. If several errors apply, Kafka's order of checks (ClassicGroup) decides.
"""

import pytest

from broker.group.offset_records import partition_of
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
    EngineBroker,
)
from tests.broker.handlers.consumer_group import Member, make, stable

# tests/broker/handlers/test_group_offsets.py covers v10 of the last two, which names topics by id.
NEWEST = {JOIN_GROUP: 9, SYNC_GROUP: 5, HEARTBEAT: 4, LEAVE_GROUP: 5, OFFSET_COMMIT: 9, OFFSET_FETCH: 9}
STATIC_SINCE = {JOIN_GROUP: 5, SYNC_GROUP: 3, HEARTBEAT: 3, LEAVE_GROUP: 3, OFFSET_COMMIT: 7}
FIRST = {OFFSET_COMMIT: 2, OFFSET_FETCH: 1}


def versions(api_key, since=None):
    return [(api_key, version) for version in (FIRST.get(api_key, 0) if since is None else since, NEWEST[api_key])]


def ask(client, api_key, version, group="g", member="", generation=-1, instance=None, **more):
    """Send a member's request and return its error."""
    fields = {"group_id": group, "member_id": member}
    if api_key in (SYNC_GROUP, HEARTBEAT):
        fields["generation_id"] = generation
    if api_key == JOIN_GROUP:
        fields |= {"session_timeout": 10_000, "rebalance_timeout": 60_000, "protocol_type": "consumer"}
        fields["protocols"] = [{"name": "range", "metadata": b"topics"}]
    if api_key == SYNC_GROUP:
        protocol = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
        fields |= {"assignments": []} | protocol
    if api_key == OFFSET_COMMIT:
        fields["generation_id_or_member_epoch"] = generation
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": more.pop("note", "")}
        fields["topics"] = [{"name": more.pop("topic", "flights"), "partitions": [partition]}]
    if version >= STATIC_SINCE.get(api_key, 99):
        fields["group_instance_id"] = instance
    if api_key == LEAVE_GROUP and version >= 3:
        fields["members"] = [{"member_id": member, "group_instance_id": instance}]
    answer = client.ask(api_key, version, fields | more)
    if api_key == OFFSET_COMMIT:
        return answer.topics[0].partitions[0].error_code
    if api_key == LEAVE_GROUP and version >= 3 and answer.members:
        return answer.error_code or answer.members[0].error_code
    return answer.error_code


@pytest.fixture
def broker():
    return make(group_max_size=3)


@pytest.fixture
def member(broker):
    """Return the only member, a static one, of a stable group."""
    member = Member(broker, instance="seat-1", join=5)
    stable(broker, member)
    return member


MEMBERS = [
    *versions(JOIN_GROUP), *versions(SYNC_GROUP), *versions(HEARTBEAT), *versions(LEAVE_GROUP), *versions(OFFSET_COMMIT)
]  # fmt: skip
GENERATIONS = [*versions(SYNC_GROUP), *versions(HEARTBEAT), *versions(OFFSET_COMMIT)]
STATIC = [api_and_version for api_key, since in STATIC_SINCE.items() for api_and_version in versions(api_key, since)]


@pytest.mark.parametrize("api_key, version", MEMBERS)
def test_a_member_id_that_was_never_given_is_unknown(member, api_key, version):
    assert ask(member.client, api_key, version, member="nobody", generation=1) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("api_key, version", GENERATIONS)
@pytest.mark.parametrize("generation", [0, 2])
def test_another_generation_than_the_present_one_is_illegal(member, api_key, version, generation):
    error = ask(member.client, api_key, version, member=member.id, generation=generation)
    assert error == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("api_key, version", STATIC)
def test_who_calls_itself_by_anothers_instance_id_is_fenced(member, api_key, version):
    """The error is FENCED_INSTANCE_ID (KIP-345)."""
    error = ask(member.client, api_key, version, member="impostor", generation=1, instance="seat-1")
    assert error == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("api_key, version", [*versions(SYNC_GROUP), *versions(HEARTBEAT)])
def test_while_the_group_rebalances_its_members_are_told(broker, member, api_key, version):
    Member(broker).join()
    error = ask(member.client, api_key, version, member=member.id, generation=1)
    assert error == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("api_key, version", versions(OFFSET_COMMIT))
def test_between_join_and_sync_nothing_is_committed(broker, api_key, version):
    member = Member(broker)
    member.join()
    member.joined()
    error = ask(member.client, api_key, version, member=member.id, generation=1)
    assert error == ErrorCode.REBALANCE_IN_PROGRESS


# --- JoinGroup -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api_key, version", versions(JOIN_GROUP))
@pytest.mark.parametrize(
    "wrong, code",
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),  # group.min.session.timeout.ms
        ({"session_timeout": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),  # group.max.session.timeout.ms
        ({"protocols": [{"name": "sticky", "metadata": b""}]}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_join_that_cannot_be_is_refused(member, api_key, version, wrong, code):
    assert ask(member.client, api_key, version, **wrong) == code


@pytest.mark.parametrize("version", [4, 9])
def test_a_newcomer_is_given_an_id_first(member, version):
    """Its first JoinGroup is answered with MEMBER_ID_REQUIRED (KIP-394)."""
    assert ask(member.client, JOIN_GROUP, version) == ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize("version", [0, 9])
def test_a_full_group_takes_nobody_in(version):
    """The limit is group.max.size."""
    broker = make(group_max_size=1)
    stable(broker, Member(broker, join=0))
    instance = "seat-2" if version >= 5 else None
    assert ask(broker.connect(), JOIN_GROUP, version, instance=instance) == ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("version", [0, 9])
def test_more_groups_than_the_limit_are_refused(version):
    """The limit is flakelog.groups.max."""
    broker = make(groups_max=1)
    stable(broker, Member(broker, join=0))
    assert ask(broker.connect(), JOIN_GROUP, version, group="h") == ErrorCode.POLICY_VIOLATION


# --- the other APIs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}])
def test_a_sync_of_another_protocol_is_refused(member, wrong):
    """SyncGroup names the protocol since v5 (KIP-559)."""
    error = ask(member.client, SYNC_GROUP, 5, member=member.id, generation=1, **wrong)
    assert error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("api_key, version", [*versions(SYNC_GROUP), *versions(LEAVE_GROUP), *versions(HEARTBEAT)])
def test_a_group_must_be_named(member, api_key, version):
    assert ask(member.client, api_key, version, group="", member="m", generation=1) == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("api_key, version", versions(OFFSET_COMMIT))
def test_a_commit_is_refused_for_what_is_wrong_with_it(member, api_key, version):
    by = {"member": member.id, "generation": 1}
    assert ask(member.client, api_key, version, topic="trains", **by) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(member.client, api_key, version, note="x" * 4_097, **by) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert ask(member.client, api_key, version, note="x" * 4_096, **by) == ErrorCode.NONE


# --- the coordinator -------------------------------------------------------------------------------------------------

ALL = [*MEMBERS, *versions(OFFSET_FETCH), (DESCRIBE_GROUPS, 0), (DESCRIBE_GROUPS, 6), (DELETE_GROUPS, 0),
       (DELETE_GROUPS, 2), (OFFSET_DELETE, 0)]  # fmt: skip


def error_of(client, api_key, version):
    if api_key in NEWEST and api_key != OFFSET_FETCH:
        return ask(client, api_key, version, member="m", generation=1)
    if api_key == DESCRIBE_GROUPS:
        return client.ask(api_key, version, {"groups": ["g"]}).groups[0].error_code
    if api_key == DELETE_GROUPS:
        return client.ask(api_key, version, {"groups_names": ["g"]}).results[0].error_code
    if api_key == OFFSET_DELETE:
        return client.ask(api_key, version, {"group_id": "g", "topics": []}).error_code
    topics = [{"name": "flights", "partition_indexes": [0]}]
    if version >= 8:
        return client.ask(api_key, version, {"groups": [{"group_id": "g", "topics": topics}]}).groups[0].error_code
    return client.ask(api_key, version, {"group_id": "g", "topics": topics}).topics[0].partitions[0].error_code


@pytest.mark.parametrize("api_key, version", ALL)
def test_before_anyone_looked_for_the_coordinator_the_client_is_sent_to_look(api_key, version):
    broker = EngineBroker()
    broker.create("flights")
    assert error_of(broker.connect(), api_key, version) == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("api_key, version", ALL)
def test_while_the_partition_of_a_group_is_offline_its_coordinator_is_not_available(broker, api_key, version):
    log = broker.services.logs.get("__consumer_offsets", partition_of("g", 50))
    log.offline = "its disk is gone"
    assert error_of(broker.connect(), api_key, version) == ErrorCode.COORDINATOR_NOT_AVAILABLE
