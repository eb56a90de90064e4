"""Members of a consumer group through the wire: join, sync, heartbeat, leave, and rebalances between members.

The sources are Kafka's protocol pages for each message; KIP-394 (member ids), KIP-345 (static members), KIP-559
(the protocol in JoinGroup and SyncGroup).
"""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from tests.broker.handlers.consumer_group import Member, committed, make, stable


@pytest.fixture
def broker():
    return make()


@pytest.fixture
def client(broker):
    return broker.connect()


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
