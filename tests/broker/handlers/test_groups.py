"""Consumer groups through the wire: the classic protocol as stock clients speak it, and its records in the log.

The sources are Kafka's protocol pages for each message; KIP-394 (member ids), KIP-345 (static members), KIP-709
(several groups in OffsetFetch), KIP-848 (v9 of OffsetCommit and OffsetFetch), KIP-1043 (v6 of DescribeGroups).
"""

import pytest

from broker.group.offset_records import partition_of
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
    EngineBroker,
)

TXN = 1


class Member:
    """A consumer of a group ("g" by default), in one version of each message."""

    def __init__(self, broker, join=5, sync=3, heartbeat=3, leave=1, instance=None, group="g"):
        self.broker = broker
        self.client = broker.connect()
        self.versions = join, sync, heartbeat, leave
        self.group = group
        self.instance = instance
        self.id, self.generation, self.is_leader, self.protocol = "", -1, False, None

    def _named(self, version, since, **fields):
        """Return the fields, with the instance id if the version has it."""
        return fields | ({"group_instance_id": self.instance} if version >= since else {})

    def join(self, **more):
        """Send JoinGroup, twice if the broker first gives a member id; `joined` receives the answer."""
        version = self.versions[0]
        fields = self._named(
            version,
            5,
            group_id=self.group,
            session_timeout=10_000,
            rebalance_timeout=60_000,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b"topics"}],
        ) | more  # fmt: skip
        self.client.send(JOIN_GROUP, version, fields)
        if version >= 4 and not self.id and self.instance is None:
            ((_, answer),) = self.client.replies()
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
            self.id = answer.member_id
            self.client.send(JOIN_GROUP, version, fields | {"member_id": self.id})

    def joined(self):
        self.broker.at(self.broker.now_ms)  # rings the alarm of a new group, whose delay is 0 here
        ((_, answer),) = self.client.replies()
        assert answer.error_code == 0, answer
        self.id, self.generation = answer.member_id, answer.generation_id
        self.is_leader = answer.leader == answer.member_id
        self.protocol = answer.protocol_name
        return answer

    def sync(self, shares=()):
        version = self.versions[1]
        fields = self._named(
            version,
            3,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            assignments=[{"member_id": member.id, "assignment": share} for member, share in shares],
        )
        fields |= {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
        self.client.send(SYNC_GROUP, version, fields)

    def synced(self):
        ((_, answer),) = self.client.replies()
        assert answer.error_code == 0, answer
        return answer.assignment

    def heartbeat(self):
        version = self.versions[2]
        named = self._named(version, 3, group_id=self.group, generation_id=self.generation, member_id=self.id)
        return self.client.ask(HEARTBEAT, version, named).error_code

    def leave(self):
        version = self.versions[3]
        who = {"member_id": self.id, "group_instance_id": self.instance}
        fields = {"group_id": self.group} | ({"members": [who]} if version >= 3 else {"member_id": self.id})
        return self.client.ask(LEAVE_GROUP, version, fields).error_code

    def commit(self, offset, topic="flights", version=8):
        return commit(self.client, offset, topic, version, group=self.group, member=self.id, generation=self.generation)


def commit(client, offset, topic="flights", version=8, group="g", member="", generation=-1, partition=0, **more):
    """Commit an offset of one partition and return its error code. From v10 on `topic` is an id."""
    place = {"partition_index": partition, "committed_offset": offset, "committed_metadata": "note"}
    key = {"topic_id": topic} if version >= 10 else {"name": topic}
    fields = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member}
    answer = client.ask(OFFSET_COMMIT, version, fields | {"topics": [key | {"partitions": [place]}]} | more)
    return answer.topics[0].partitions[0].error_code


def committed(client, version=7, topic="flights", group="g", partition=0):
    """Return the committed offset of one partition."""
    key = {"topic_id": topic} if version >= 10 else {"name": topic}
    topics = {"topics": [key | {"partition_indexes": [partition]}]}
    if version >= 8:
        answer = client.ask(OFFSET_FETCH, version, {"groups": [{"group_id": group} | topics], "require_stable": False})
        answer = answer.groups[0]
        assert answer.error_code == 0
    else:
        answer = client.ask(OFFSET_FETCH, version, {"group_id": group} | topics)
    (found,) = answer.topics[0].partitions
    assert found.error_code == 0
    return found.committed_offset


def make(storage=None, **settings):
    broker = EngineBroker(storage, **{"group_initial_rebalance_delay_ms": 0} | settings)
    broker.create("flights", 2)
    find(broker.connect())
    return broker


def find(client, version=2, key="g", **more):
    asked = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
    return client.ask(FIND_COORDINATOR, version, asked | more)


def stable(broker, *members):
    """Make the members join together and sync; the first one leads."""
    for member in members:
        member.join()
    for member in members:
        member.joined()
    leader = next(member for member in members if member.is_leader)
    for member in members:
        member.sync([(m, m.id.encode()) for m in members] if member is leader else ())
    for member in members:
        assert member.synced() == member.id.encode()


@pytest.fixture
def broker():
    return make()


@pytest.fixture
def client(broker):
    return broker.connect()


# --- FindCoordinator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_the_first_to_look_for_a_coordinator_makes_the_offsets_topic(version):
    broker = EngineBroker(offsets_topic_num_partitions=3)
    answer = find(broker.connect(), version)
    if version >= 4:
        (answer,) = answer.coordinators
        assert answer.key == "g"
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 1, "localhost", 9092)
    topic = broker.services.metadata.topic("__consumer_offsets")
    assert len(topic.partitions) == 3 and topic.properties["cleanup.policy"] == "compact"


@pytest.mark.parametrize("version", [1, 3, 6])
def test_the_coordinator_of_a_transactional_id_is_found_and_its_topic_made(version):
    broker = EngineBroker(transaction_state_log_num_partitions=3)
    answer = find(broker.connect(), version, key_type=TXN)
    answer = answer.coordinators[0] if version >= 4 else answer
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 1, "localhost", 9092)
    topic = broker.services.metadata.topic("__transaction_state")
    assert len(topic.partitions) == 3 and topic.properties["cleanup.policy"] == "compact"


def test_share_groups_are_refused(client):
    (answer,) = find(client, 6, key_type=2).coordinators
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_several_keys_are_each_answered(client):
    """FindCoordinator has several keys since v4 (KIP-699)."""
    answer = client.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["a", "b"]})
    assert [(each.key, each.error_code, each.node_id) for each in answer.coordinators] == [("a", 0, 1), ("b", 0, 1)]


def test_an_offsets_topic_that_cannot_be_made_is_no_coordinator_yet():
    broker = EngineBroker()
    client = broker.connect()
    broker.storage.free_bytes = 0
    assert find(client).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert any("no groups can be coordinated" in line for line in broker.reported)
    broker.storage.free_bytes = None
    assert find(client).error_code == 0


def test_a_group_verb_before_anyone_looked_for_the_coordinator_sends_the_client_to_look():
    client = EngineBroker().connect()
    fields = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    assert client.ask(HEARTBEAT, 0, fields).error_code == ErrorCode.NOT_COORDINATOR


# --- one member, each version ----------------------------------------------------------------------------------------

LOWEST = {"join": 0, "sync": 0, "heartbeat": 0, "leave": 0}
HIGHEST = {"join": 9, "sync": 5, "heartbeat": 4, "leave": 5}


@pytest.mark.parametrize(
    "versions, commit_version, fetch_version",
    [(LOWEST, 2, 1), ({}, 5, 5), ({"join": 7, "sync": 4, "heartbeat": 4, "leave": 3}, 8, 7), (HIGHEST, 9, 9)],
)
def test_a_member_joins_shares_lives_commits_and_leaves(broker, versions, commit_version, fetch_version):
    member = Member(broker, **versions)
    member.join()
    answer = member.joined()
    assert (answer.generation_id, answer.leader, answer.protocol_name) == (1, member.id, "range")
    assert [(m.member_id, m.metadata) for m in answer.members] == [(member.id, b"topics")]
    assert member.id.startswith("test-")
    member.sync([(member, b"all of it")])
    assert member.synced() == b"all of it"
    assert member.heartbeat() == 0
    assert member.commit(42, version=commit_version) == 0
    assert committed(member.client, version=fetch_version) == 42
    assert member.leave() == 0
    assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_in_the_first_version_the_session_timeout_is_the_rebalance_timeout_too(broker):
    """JoinGroup v1 separated the two (KIP-62). A member that does not join again in this time is removed."""
    first, second = Member(broker, **LOWEST), Member(broker, **LOWEST)
    stable(broker, first)
    second.join()
    for _ in range(2):  # the first member lives, but does not join again
        assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        broker.at(broker.now_ms + 4_999)
    assert not second.client.replies()
    broker.at(broker.now_ms + 10)
    assert second.joined().leader == second.id


@pytest.mark.parametrize("version, no_protocol", [(6, ""), (7, None)])
def test_a_refused_join_has_no_protocol(client, version, no_protocol):
    """The protocol is null since v7 (KIP-559)."""
    answer = client.ask(
        JOIN_GROUP,
        version,
        {"group_id": "g", "session_timeout": 1, "rebalance_timeout": 1, "member_id": "", "protocol_type": "consumer",
         "protocols": [{"name": "range", "metadata": b""}]},
    )  # fmt: skip
    assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert answer.protocol_name == no_protocol and answer.generation_id == -1


def test_since_v5_a_sync_must_say_which_protocol_it_means(broker, client):
    """KIP-559 added the protocol to the request."""
    member = Member(broker, **HIGHEST)
    member.join()
    member.joined()
    named = {"group_id": "g", "generation_id": 1, "member_id": member.id, "assignments": []}
    answer = client.ask(SYNC_GROUP, 5, named | {"protocol_type": None, "protocol_name": "range"})
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_before_v3_the_error_of_the_one_that_leaves_is_the_answers(client):
    answer = client.ask(LEAVE_GROUP, 2, {"group_id": "g", "member_id": "nobody"})
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    answer = client.ask(
        LEAVE_GROUP, 3, {"group_id": "g", "members": [{"member_id": "nobody", "group_instance_id": None}]}
    )
    assert answer.error_code == 0 and answer.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- two members -----------------------------------------------------------------------------------------------------


def test_a_second_member_makes_both_share_anew(broker):
    first, second = Member(broker), Member(broker)
    stable(broker, first)
    second.join()
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert not second.client.replies(), "the join waits for the first member"
    first.join()
    assert first.joined().generation_id == 2
    assert second.joined().members == (), "only the leader is told the members"
    second.sync()
    assert not second.client.replies(), "the share comes with the leader's sync"
    first.sync([(first, b"0"), (second, b"1")])
    assert (first.synced(), second.synced()) == (b"0", b"1")
    assert first.heartbeat() == second.heartbeat() == 0


def test_a_silent_members_share_goes_to_the_other(broker):
    first, second = Member(broker), Member(broker)
    stable(broker, first, second)
    broker.at(broker.now_ms + 9_000)
    assert first.heartbeat() == 0
    broker.at(broker.now_ms + 2_000)
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "the second's session is over"
    first.join()
    assert [member.member_id for member in first.joined().members] == [first.id]


def test_a_member_whose_connection_closed_waits_no_longer(broker):
    first, second = Member(broker), Member(broker)
    stable(broker, first)
    second.join()
    waiting = len(broker.services.purgatory)
    broker.engine.closed(second.client.conn)
    assert len(broker.services.purgatory) == waiting - 1


def test_a_static_member_comes_back_in_its_old_place_unnoticed(broker):
    """The second member keeps its share, and no rebalance begins (KIP-345)."""
    first, second = Member(broker), Member(broker, instance="seat-2")
    stable(broker, first, second)
    back = Member(broker, instance="seat-2")
    back.join()
    back.joined()
    back.sync()
    assert back.synced() == second.id.encode()
    assert first.heartbeat() == 0 and second.heartbeat() == ErrorCode.FENCED_INSTANCE_ID


def test_an_answer_does_not_overtake_the_request_that_gave_it(broker):
    """Replies leave in the order of their requests (https://kafka.apache.org/protocol#protocol_network). The leave
    answers the join that waits before it, and the answer to the heartbeat must not overtake the others."""
    first, second = Member(broker), Member(broker)
    stable(broker, first, second)
    client = first.client
    join = {"group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 60_000, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"topics"}], "member_id": first.id}  # fmt: skip
    frames = [
        client.frame(JOIN_GROUP, 5, join),
        client.frame(LEAVE_GROUP, 1, {"group_id": "g", "member_id": second.id}),
        client.frame(HEARTBEAT, 0, {"group_id": "g", "generation_id": 2, "member_id": first.id}),
    ]
    client.feed(b"".join(data for _, data in frames))
    assert [answered for answered, _ in client.replies()] == [sent for sent, _ in frames]


# --- offsets ---------------------------------------------------------------------------------------------------------


def test_a_consumer_without_a_group_commits_and_reads_its_offsets(client):
    assert committed(client) == -1, "no error for a group nobody has used"
    assert commit(client, 7) == 0
    assert committed(client) == 7


def test_offsets_of_partitions_that_do_not_exist_are_refused(client):
    assert commit(client, 7, "nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(client, 7, partition=2) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(client, 7, partition=-1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_one_bad_partition_does_not_disturb_its_neighbours(client):
    places = [
        {"partition_index": index, "committed_offset": 10 + index, "committed_metadata": None} for index in (0, 9, 1)
    ]
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    answer = client.ask(OFFSET_COMMIT, 8, fields | {"topics": [{"name": "flights", "partitions": places}]})
    assert [each.error_code for each in answer.topics[0].partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
    assert [committed(client, partition=index) for index in (0, 1)] == [10, 11]


@pytest.mark.parametrize("version, code", [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_group_that_is_not_known_has_another_name_since_v9(client, version, code):
    """Since v9 the error is GROUP_ID_NOT_FOUND (KIP-848)."""
    assert commit(client, 7, version=version, generation=3, member="m") == code


def test_since_v10_topics_are_named_by_their_ids(broker, client):
    """KIP-848 added topic ids."""
    topic = broker.services.metadata.topic("flights")
    assert commit(client, 7, topic.id, version=10) == 0
    assert committed(client, version=10, topic=topic.id) == 7
    unknown = type(topic.id)(int=12345)
    assert commit(client, 7, unknown, version=10) == ErrorCode.UNKNOWN_TOPIC_ID
    everything = {"groups": [{"group_id": "g", "topics": None}], "require_stable": True}
    (group,) = client.ask(OFFSET_FETCH, 10, everything).groups
    assert [(each.topic_id, each.partitions[0].committed_offset) for each in group.topics] == [(topic.id, 7)]


@pytest.mark.parametrize("version", [2, 5, 7])
def test_null_topics_mean_all_that_were_committed(client, version):
    commit(client, 7, partition=1)
    answer = client.ask(OFFSET_FETCH, version, {"group_id": "g", "topics": None})
    (topic,) = answer.topics
    (found,) = topic.partitions
    assert (topic.name, found.partition_index, found.committed_offset, found.metadata) == ("flights", 1, 7, "note")


def test_offsets_of_several_groups_come_in_one_answer(client):
    """OffsetFetch names several groups since v8 (KIP-709)."""
    commit(client, 1, group="a")
    commit(client, 2, group="b")
    topics = [{"name": "flights", "partition_indexes": [0]}]
    asked = [{"group_id": "a", "topics": topics}, {"group_id": "b", "topics": None}, {"group_id": "c", "topics": None}]
    answer = client.ask(OFFSET_FETCH, 8, {"groups": asked, "require_stable": False})
    assert [(g.group_id, [t.partitions[0].committed_offset for t in g.topics]) for g in answer.groups] == [
        ("a", [1]), ("b", [2]), ("c", []),
    ]  # fmt: skip


def test_an_offset_with_a_retention_of_its_own_goes_when_that_is_over():
    """OffsetCommit v2 to v4 have the field; KIP-211 removed it."""
    broker = make(offsets_retention_check_interval_ms=1_000)
    client = broker.connect()
    assert commit(client, 7, version=2, retention_time=5_000) == 0
    broker.at(broker.now_ms + 4_000)
    assert committed(client) == 7
    broker.at(broker.now_ms + 3_000)
    assert committed(client) == -1


# --- the log ---------------------------------------------------------------------------------------------------------


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


def test_members_that_do_not_come_back_after_a_restart_are_forgotten(broker):
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


def test_a_generation_that_the_disk_refuses_is_believed_by_nobody(broker):
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


def test_more_offsets_than_fit_one_batch_are_written_in_several():
    """The broker's own records, too, keep to max.message.bytes of the offsets topic."""
    broker = make(message_max_bytes=1_000)
    client = broker.connect()
    broker.create("wide", 60)
    places = [{"partition_index": n, "committed_offset": n, "committed_metadata": ""} for n in range(60)]
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    answer = client.ask(OFFSET_COMMIT, 8, fields | {"topics": [{"name": "wide", "partitions": places}]})
    assert {each.error_code for each in answer.topics[0].partitions} == {0}
    again = broker.restarted()
    assert [committed(again.connect(), topic="wide", partition=n) for n in (0, 30, 59)] == [0, 30, 59]


def test_a_record_too_large_for_the_topic_is_refused():
    broker = make(message_max_bytes=1_000)
    member = Member(broker)
    member.join()
    member.joined()
    member.sync([(member, bytes(2_000))])
    ((_, answer),) = member.client.replies()
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_commit_waits_for_ids_and_is_done_once():
    """A request that exceeds the run-ahead of the ids is held, not refused (DESIGN rule 4)."""
    broker = make(max_ahead_ms=0)
    client = broker.connect()
    broker.worker.next_ids(4096, broker.now.wall_ms)
    key = {"name": "flights", "partitions": [{"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}]}
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    client.send(OFFSET_COMMIT, 8, fields | {"topics": [key]})
    assert not client.replies()
    broker.at(broker.now_ms + 2)
    ((_, answer),) = client.replies()
    assert answer.topics[0].partitions[0].error_code == 0
    assert broker.services.log_of("__consumer_offsets", partition_of("g", 50)).log_end_offset == 1


# --- administration --------------------------------------------------------------------------------------------------


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
def test_a_group_nobody_knows_is_dead_and_since_v6_an_error(client, version, code):
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
        return [each.error_code for each in client.ask(DELETE_GROUPS, version, {"groups_names": groups}).results]

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


def test_a_thousand_groups_hold(broker, client):
    groups = [f"group-{n}" for n in range(1_000)]
    for offset, group in enumerate(groups):
        assert commit(client, offset, group=group) == 0
    assert sorted(each.group_id for each in client.ask(LIST_GROUPS, 5, {}).groups) == sorted(groups)
    again = broker.restarted(clean=False).connect()
    asked = [{"group_id": group, "topics": [{"name": "flights", "partition_indexes": [0]}]} for group in groups]
    found = again.ask(OFFSET_FETCH, 8, {"groups": asked}).groups
    assert [each.topics[0].partitions[0].committed_offset for each in found] == list(range(1_000))


def test_the_topic_of_offsets_has_segments_as_large_as_it_is_told():
    """The setting is offsets.topic.segment.bytes."""
    broker = EngineBroker(offsets_topic_segment_bytes=4096, offsets_topic_num_partitions=1)
    broker.connect().ask(FIND_COORDINATOR, 1, {"key": "readers", "key_type": 0})
    assert broker.services.log_of("__consumer_offsets", 0).config.segment_bytes == 4096
