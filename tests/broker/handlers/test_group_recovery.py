"""Groups and offsets after restarts, and on disks that are full or damaged."""

import pytest

from broker.group.offset_records import partition_of
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import DESCRIBE_GROUPS, LIST_GROUPS, OFFSET_FETCH
from tests.broker.handlers.consumer_group import Member, commit, committed, find, make, stable


@pytest.fixture
def broker():
    return make()


@pytest.fixture
def client(broker):
    return broker.connect()


@pytest.mark.parametrize("clean", [True, False])
def test_groups_and_offsets_survive_a_restart(broker, clean):
    """The next process reads everything from `__consumer_offsets`, after a clean stop or a kill."""
    members = Member(broker), Member(broker)
    stable(broker, *members)
    assert members[0].commit(42) == 0
    assert commit(broker.connect(), 7, group="other") == 0
    again = broker.restarted(clean=clean)
    client = again.connect()
    assert committed(client) == 42 and committed(client, group="other") == 7
    for member in members:
        member.client = again.connect()
        assert member.heartbeat() == 0, "the members go on as if nothing had happened"
    assert not again.reported


def test_members_that_do_not_come_back_after_a_restart_are_removed(broker):
    stable(broker, Member(broker))
    again = broker.restarted()
    again.at(again.now_ms + 11_000)
    (group,) = again.connect().ask(DESCRIBE_GROUPS, 5, {"groups": ["g"]}).groups
    assert group.group_state == "Empty"


def test_a_commit_that_the_disk_refuses_is_refused_and_the_operator_told_once(broker, client):
    broker.storage.free_bytes = 0
    assert commit(client, 7) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert commit(client, 8) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len([line for line in broker.reported if "groups kept in" in line]) == 1
    broker.storage.free_bytes = None
    assert commit(client, 9) == 0
    assert committed(broker.restarted().connect()) == 9


def test_a_generation_that_the_disk_refuses_has_no_assignment(broker):
    member = Member(broker)
    member.join()
    member.joined()
    broker.storage.free_bytes = 0
    member.sync([(member, b"all")])
    ((_, answer),) = member.client.replies()
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE and answer.assignment == b""
    broker.storage.free_bytes = None
    member.join()
    member.joined()
    member.sync([(member, b"all")])
    assert member.synced() == b"all"


def test_a_damaged_partition_takes_its_own_groups_out_and_no_others():
    broker = make()
    client = broker.connect()
    groups = [f"group-{n}" for n in range(10)]
    for group in groups:
        assert commit(client, 7, group=group) == 0
    broker.services.logs.close()
    hurt = partition_of(groups[0], 50)
    content = broker.storage.files[f"__consumer_offsets-{hurt}/00000000000000000000.log"]
    content.data[-3] ^= 0xFF
    again = broker.restarted(clean=False)
    client = again.connect()
    for group in groups:
        wanted = ErrorCode.COORDINATOR_NOT_AVAILABLE if partition_of(group, 50) == hurt else 0
        assert commit(client, 8, group=group) == wanted
        assert find(client, key=group).error_code == wanted
    assert any(f"__consumer_offsets-{hurt} is offline" in line for line in again.reported)


def test_a_record_too_large_for_the_topic_is_refused():
    broker = make(message_max_bytes=1_000)
    member = Member(broker)
    member.join()
    member.joined()
    member.sync([(member, bytes(2_000))])
    ((_, answer),) = member.client.replies()
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_thousand_groups_hold(broker, client):
    groups = [f"group-{n}" for n in range(1_000)]
    for offset, group in enumerate(groups):
        assert commit(client, offset, group=group) == 0
    assert sorted(group.group_id for group in client.ask(LIST_GROUPS, 5, {}).groups) == sorted(groups)
    again = broker.restarted(clean=False).connect()
    topics = [{"name": "flights", "partition_indexes": [0]}]
    group_requests = [{"group_id": group, "topics": topics} for group in groups]
    answers = again.ask(OFFSET_FETCH, 8, {"groups": group_requests}).groups
    assert [answer.topics[0].partitions[0].committed_offset for answer in answers] == list(range(1_000))
