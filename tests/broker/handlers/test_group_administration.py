"""Groups as administrators see them: ListGroups, DescribeGroups, DeleteGroups, and the topic of the offsets.

The sources are Kafka's protocol pages for each message; KIP-1043 (v6 of DescribeGroups).
"""

import pytest

from broker.group.offset_records import partition_of
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    LIST_GROUPS,
    METADATA,
    EngineBroker,
)
from tests.broker.handlers.consumer_group import Member, commit, make, stable


@pytest.fixture
def broker():
    return make()


@pytest.fixture
def client(broker):
    return broker.connect()


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(broker, version):
    stable(broker, Member(broker))
    answer = broker.connect().ask(LIST_GROUPS, version, {})
    (group,) = answer.groups
    assert (group.group_id, group.protocol_type) == ("g", "consumer")
    if version >= 4:
        assert group.group_state == "Stable"
    if version >= 5:
        assert group.group_type == "classic"


def test_groups_are_listed_by_state_and_type(broker, client):
    """The filters are from KIP-518 and KIP-848."""
    stable(broker, Member(broker))
    commit(client, 1, group="idle")

    def listed(version, **filters):
        return [group.group_id for group in client.ask(LIST_GROUPS, version, filters).groups]

    assert listed(4, states_filter=["Empty"]) == ["idle"]
    assert listed(5, states_filter=["Stable"], types_filter=["classic"]) == ["g"]
    assert listed(5, types_filter=["consumer"]) == []


@pytest.mark.parametrize("version", [0, 3, 6])
def test_a_group_is_described_with_its_members(broker, version):
    member = Member(broker)
    stable(broker, member)
    (group,) = broker.connect().ask(DESCRIBE_GROUPS, version, {"groups": ["g"]}).groups
    assert (group.error_code, group.group_state, group.protocol_data) == (0, "Stable", "range")
    (described,) = group.members
    assert (described.member_id, described.client_id, described.client_host) == (member.id, "test", "/10.0.0.7")
    assert (described.member_metadata, described.member_assignment) == (b"topics", member.id.encode())


@pytest.mark.parametrize("version, code", [(0, ErrorCode.NONE), (5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_group_that_does_not_exist_is_dead_and_since_v6_an_error(client, version, code):
    """The error is GROUP_ID_NOT_FOUND (KIP-1043)."""
    (group,) = client.ask(DESCRIBE_GROUPS, version, {"groups": ["nobody"]}).groups
    assert (group.error_code, group.group_state) == (code, "Dead")
    if version >= 6:
        assert "nobody" in group.error_message


@pytest.mark.parametrize("version", range(3))
def test_a_group_without_members_is_deleted_for_good(broker, version):
    """DeleteGroups is from KIP-229."""
    member = Member(broker)
    stable(broker, member)
    client = broker.connect()
    commit(client, 1, group="idle")

    def delete(*groups):
        return [result.error_code for result in client.ask(DELETE_GROUPS, version, {"groups_names": groups}).results]

    assert delete("nobody", "nobody") == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert delete("g", "idle", "nobody") == [ErrorCode.NON_EMPTY_GROUP, 0, ErrorCode.GROUP_ID_NOT_FOUND]
    again = broker.restarted().connect()
    assert [group.group_id for group in again.ask(LIST_GROUPS, 0, {}).groups] == ["g"]


def test_the_offsets_topic_is_shown_as_internal(client):
    (topic,) = client.ask(METADATA, 12, {"topics": [{"name": "__consumer_offsets"}]}).topics
    assert topic.is_internal and len(topic.partitions) == 50


def test_a_commit_may_read_back_through_kafkas_own_schema(broker, client):
    """Clients and tools consume the offsets topic like any other topic."""
    commit(client, 7)
    assert client.fetch("__consumer_offsets", partition=partition_of("g", 50))[0][:10] == bytes(
        [0, 3, 0, 0, 0, 0, 0, 0, 0, 7]
    )


def test_the_topic_of_offsets_has_segments_as_large_as_it_is_told():
    """The setting is offsets.topic.segment.bytes."""
    broker = EngineBroker(offsets_topic_segment_bytes=4096, offsets_topic_num_partitions=1)
    broker.connect().ask(FIND_COORDINATOR, 1, {"key": "readers", "key_type": 0})
    assert broker.services.log_of("__consumer_offsets", 0).config.segment_bytes == 4096
