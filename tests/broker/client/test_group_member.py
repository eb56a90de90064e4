"""A group member against the engine, with its faults: every time is the test's."""

from dataclasses import replace

import pytest

from broker.client.api_versions import FIND_COORDINATOR, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP
from broker.client.core import ClientCore
from broker.client.errors import BrokerError, NoAnswer, Unsupported
from broker.client.group import Assigned, GroupMember, Lost, MemberRefused, Phase, Revoke, Trouble, Unused, Waits
from broker.client.group_config import GroupMemberConfig, member_of
from broker.client.group_protocol import MemberSubscription, encode_subscription
from broker.client.group_requests import (
    CommittedOffset,
    GroupIdentity,
    commit_offsets,
    fetch_offsets,
    partition_counts,
)
from broker.wire.errors import ErrorCode
from idgen.settings import InvalidSetting
from tests.broker.client.members import ADDRESS, CONFIG, STEP_MS, Cluster

ALL = [0, 1, 2, 3]
SESSION_MS = CONFIG.session_timeout_ms


@pytest.fixture
def cluster():
    return Cluster({"t": 4})


def started(cluster, *names, **settings):
    members = [cluster.add(name, **settings) for name in names]
    cluster.settle()
    cluster.after(CONFIG.heartbeat_interval_ms + 100)
    cluster.settle()
    return members


def test_a_member_alone_gets_every_partition_in_one_round(cluster):
    (a,) = started(cluster, "a")
    assert a.all_of(Assigned) == [ALL]
    assert a.api_keys.count(JOIN_GROUP) == 2, "once for a member id, once with it (KIP-394)"


def test_a_second_member_gets_its_share_after_the_first_has_released_it(cluster):
    (a,) = started(cluster, "a", releases=False)
    b = cluster.add("b")
    cluster.after(3_000)
    assert (a.all_of(Revoke), b.all_of(Assigned)) == ([[2, 3]], [])
    assert a.member.owned == {("t", n) for n in ALL}, "it owns them until it has released them"
    a.member.released({("t", 2), ("t", 3)})
    cluster.after(1_500)
    assert (b.all_of(Assigned), cluster.shares()) == ([[2, 3]], {"a": 2, "b": 2})
    assert a.all_of(Assigned) == [ALL], "what it keeps is never revoked or assigned again"


def test_a_partition_given_back_while_it_was_being_released_is_assigned_again(cluster):
    (a,) = started(cluster, "a", releases=False)
    b = cluster.add("b")
    cluster.after(3_000)
    b.member.leave(cluster.now_ms)
    cluster.after(3_000)
    a.member.released({("t", 2), ("t", 3)})
    a.run()
    assert a.all_of(Assigned) == [ALL, [2, 3]]


def test_a_release_that_overtakes_a_rebalance_leaves_no_partition_without_an_owner(cluster):
    """The partition is released after the join that names it was sent: the leader still holds it back."""
    (a,) = started(cluster, "a", releases=False)
    b = cluster.add("b")
    cluster.after(3_000)
    b.is_alive = False
    cluster.add("c")
    cluster.after(1_500)
    assert a.member.phase is Phase.JOINING and a.api_keys[-1] == JOIN_GROUP
    a.member.released(a.member.revoking)
    a.releases = b.is_alive = True
    cluster.settle()
    cluster.after(3_000)
    cluster.settle()
    assert sorted(cluster.owners()) == [("t", n) for n in ALL]
    assert b.all_of(Lost) == []


def test_a_member_more_than_there_are_partitions_is_told_once_that_it_has_none():
    """A newcomer that only has to wait for a release is told so too: it has none now."""
    cluster = Cluster({"t": 1})
    (a,) = started(cluster, "a")
    b = cluster.add("b")
    cluster.after(5_000)
    cluster.add("c")
    cluster.after(5_000)
    assert [type(event) for event in b.events] == [Unused]
    assert [type(event) for event in a.events] == [Assigned]


def test_heartbeats_keep_the_membership_and_nothing_else_is_sent(cluster):
    (a,) = started(cluster, "a")
    a.api_keys.clear()
    cluster.after(8 * SESSION_MS)
    assert set(a.api_keys) == {HEARTBEAT} and a.all_of(Lost) == []


def test_the_partitions_of_a_dead_member_go_to_the_others_when_its_session_ends(cluster):
    a, b = started(cluster, "a", "b")
    a.kill()
    cluster.after(SESSION_MS - 1_100)
    assert cluster.shares() == {"b": 2}
    cluster.after(2_200)
    assert cluster.shares() == {"b": 4}


def test_a_member_that_stood_still_drops_its_partitions_before_it_asks_anything(cluster):
    """The session ends by the member's own clock, so that a stopped process never works on what another owns."""
    a, b = started(cluster, "a", "b")
    a.is_alive = False
    cluster.after(SESSION_MS + 1_100)
    a.is_alive = True
    a.api_keys.clear()
    a.run()
    assert a.member.owned == frozenset() and a.all_of(Lost) == [sorted(a.all_of(Assigned)[-1])]
    cluster.after(3_000)
    cluster.settle()
    assert cluster.shares() == {"a": 2, "b": 2}


def test_the_own_clock_ends_the_session_before_the_coordinator_does(cluster):
    (a,) = started(cluster, "a")
    a.is_reachable = False
    lost_ms = removed_ms = None
    while removed_ms is None:
        cluster.after(50)
        if lost_ms is None and a.all_of(Lost):
            lost_ms = cluster.now_ms
        if not cluster.broker.services.coordinators.groups.describe("g").members:
            removed_ms = cluster.now_ms
    assert lost_ms is not None and lost_ms <= removed_ms
    assert any("session.timeout.ms" in e.why for e in a.events if isinstance(e, Lost))


def test_a_member_that_leaves_hands_over_at_once(cluster):
    a, b = started(cluster, "a", "b")
    a.member.leave(cluster.now_ms)
    cluster.run()
    assert a.member.phase is Phase.LEFT and a.api_keys[-1] == LEAVE_GROUP
    cluster.after(CONFIG.heartbeat_interval_ms + 100)
    assert len(b.member.owned) == 4


def test_a_program_that_does_not_work_on_leaves_and_joins_again_when_it_does(cluster):
    a, b = started(cluster, "a", "b")
    a.works = False
    cluster.after(CONFIG.max_poll_interval_ms + 2_000)
    assert a.member.phase is Phase.LEFT and "max.poll.interval.ms" in a.events[-1].why
    assert len(b.member.owned) == 4
    a.works = True
    cluster.after(3_000)
    cluster.settle()
    assert cluster.shares() == {"a": 2, "b": 2}


def test_a_restart_of_the_broker_costs_no_partition(cluster):
    a, b = started(cluster, "a", "b")
    cluster.restart()
    cluster.after(2 * SESSION_MS)
    assert a.all_of(Lost) == b.all_of(Lost) == []
    assert cluster.shares() == {"a": 2, "b": 2}


def test_an_unreachable_coordinator_is_told_once_and_costs_the_partitions_after_the_session(cluster):
    (a,) = started(cluster, "a")
    cluster.is_up = False
    a.disconnect()
    cluster.after(SESSION_MS + 1_000)
    assert [type(event) for event in a.events] == [Assigned, Trouble, Lost]
    cluster.is_up = True
    cluster.after(2_000)
    assert a.all_of(Assigned) == [ALL, ALL]


def test_a_program_commits_nothing_from_before_its_partitions_were_lost(cluster):
    """It was busy while its session ended, another member went on from its partitions, and it got them back."""
    (a,) = started(cluster, "a")
    a.is_busy, a.is_reachable = True, False
    b = cluster.add("b")
    cluster.after(2 * SESSION_MS)
    assert b.member.owned == {("t", number) for number in ALL}
    b.member.leave(cluster.now_ms)
    a.is_reachable = True
    a.disconnect()
    cluster.after(SESSION_MS)
    assert a.member.owned == {("t", number) for number in ALL}
    assert not a.member.may_commit(("t", 0))
    refused = a.carry_out(commit_offsets(a.core, ADDRESS, a.member.committing, {("t", 0): CommittedOffset(7)}))
    assert refused[("t", 0)] in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
    a.is_busy = False
    cluster.after(100)
    assert [type(event) for event in a.events if not isinstance(event, Trouble)] == [Assigned, Lost, Assigned]
    assert a.member.may_commit(("t", 0)) and a.member.committing == a.member.identity


def test_a_join_that_waits_long_is_renewed_and_its_member_keeps_its_partitions(cluster):
    """The group waits for a member that neither joins nor dies; the others check that the coordinator is there."""
    slow = replace(CONFIG, session_timeout_ms=60_000)
    (a,) = started(cluster, "a")
    b = cluster.add("b", config=slow)
    cluster.after(3_000)
    cluster.settle()
    b.is_alive = False
    cluster.add("c")
    cluster.after(2 * SESSION_MS)
    assert a.member.phase is Phase.JOINING and a.api_keys.count(JOIN_GROUP) > 4
    assert a.all_of(Lost) == [] and len(a.member.owned) == 2
    cluster.after(40_000)
    assert cluster.shares() == {"a": 2, "c": 2}
    waits = [event.seconds for event in a.events if isinstance(event, Waits)]
    assert waits[:3] == sorted(set(waits[:3])) and not [event for event in a.events if isinstance(event, Trouble)]


def test_a_new_member_waits_for_the_others_without_trouble(cluster):
    """It has no generation and so sends no heartbeat. The look-up of the coordinator shows that a broker is there."""
    (a,) = started(cluster, "a")
    a.is_alive, a.cluster.members["a"].works = False, True
    b = cluster.add("b")
    cluster.after(SESSION_MS - 1_000)
    assert [type(event) for event in b.events] == [Waits, Waits]
    cluster.settle()
    assert b.all_of(Assigned) == [ALL]


def test_a_sync_waits_without_trouble_for_a_leader_that_died(cluster):
    """The leader has joined and assigns nothing. Its session has to end, and the broker is there meanwhile."""
    (a,) = started(cluster, "a", config=replace(CONFIG, session_timeout_ms=24_000))
    (b,) = started(cluster, "b")
    b.events.clear()
    a.member.subscribe(["t", "u"])
    cluster.after(STEP_MS)
    assert a.member.phase is Phase.JOINING and a.api_keys[-1] == JOIN_GROUP
    a.kill()
    cluster.after(9_000)
    assert b.member.phase is Phase.SYNCING
    assert {type(event) for event in b.events} == {Waits} and b.member.waits_since_ms is not None
    cluster.settle()
    assert b.all_of(Lost) == [] and b.member.owned == {("t", n) for n in ALL}


def test_a_member_tells_since_when_it_waits_for_its_group(cluster):
    (a,) = started(cluster, "a")
    assert a.member.waits_since_ms is None
    a.is_alive, a.cluster.members["a"].works = False, True
    begun_ms = cluster.now_ms
    b = cluster.add("b")
    cluster.after(5_000)
    assert b.member.waits_since_ms in range(begun_ms, begun_ms + 500)
    cluster.settle()
    assert b.member.waits_since_ms is None


def test_a_member_that_cannot_reach_its_coordinator_waits_for_no_group(cluster):
    (a,) = started(cluster, "a")
    a.is_reachable = False
    cluster.after(SESSION_MS)
    assert a.member.phase is Phase.JOINING and a.member.waits_since_ms is None


def test_a_member_that_is_stopped_while_it_waits_for_its_group_leaves_at_once(cluster):
    (a,) = started(cluster, "a")
    a.is_alive = False
    b = cluster.add("b")
    cluster.after(1_000)
    assert b.member.phase is Phase.JOINING and b.api_keys[-1] == JOIN_GROUP
    b.member.leave(cluster.now_ms)
    b.disconnect()  # as GroupThread does, because the join is under way
    cluster.after(300)
    assert b.member.phase is Phase.LEFT and b.api_keys[-1] == LEAVE_GROUP


def test_a_coordinator_that_stops_while_a_member_joins_is_told_at_once(cluster):
    slow = replace(CONFIG, session_timeout_ms=60_000)
    (a,) = started(cluster, "a")
    b = cluster.add("b", config=slow)
    cluster.after(3_000)
    cluster.settle()
    b.is_alive = False
    cluster.add("c")
    cluster.after(SESSION_MS)
    a.is_reachable = False
    cluster.after(SESSION_MS + 1_000)
    assert [type(event) for event in a.events][-2:] == [Trouble, Lost]


def test_a_join_without_an_answer_is_trouble_after_the_rebalance_timeout():
    """As in Kafka's clients, which wait for the rebalance timeout and five seconds more."""
    config = replace(CONFIG, max_poll_interval_ms=10_000)
    member = GroupMember(ClientCore([ADDRESS]), "g", ["t"], config, 0)
    member.coordinator = ADDRESS
    for now_ms in range(0, 15_000, 3_000):
        assert member.take(now_ms) is not None
        member.polled(now_ms)
        member.answered(NoAnswer(str(ADDRESS), 2), now_ms + 2_000)
        member.coordinator = ADDRESS
    assert not [event for event in member.take_events() if isinstance(event, Trouble)]
    assert member.take(15_000) is not None
    member.polled(15_000)
    member.answered(NoAnswer(str(ADDRESS), 2), 17_000)
    assert [type(event) for event in member.take_events()][-1] is Trouble


def test_a_member_the_coordinator_does_not_know_loses_its_partitions_and_begins_anew(cluster):
    (a,) = started(cluster, "a")
    group = cluster.broker.services.coordinators.groups.find("g").core
    group.leave("g", [(a.member.identity.member_id, None)], cluster.broker.now)
    cluster.after(3_000)
    assert "UNKNOWN_MEMBER_ID" in next(event.why for event in a.events if isinstance(event, Lost))
    assert a.all_of(Assigned) == [ALL, ALL]


def test_a_static_member_that_restarts_gets_its_partitions_without_a_rebalance(cluster):
    static = replace(CONFIG, group_instance_id="one")
    b = cluster.add("b")
    a = cluster.add("a", config=static)
    cluster.after(3_000)
    cluster.settle()
    share, generation = a.member.owned, a.member.identity.generation
    a.member.leave(cluster.now_ms)
    a.kill()
    again = cluster.add("a", config=static)
    cluster.settle()
    assert (again.member.owned, again.member.identity.generation) == (share, generation)
    assert b.all_of(Lost) == []


def test_a_second_process_with_the_same_instance_id_fences_the_first_which_says_why(cluster):
    static = replace(CONFIG, group_instance_id="one")
    (a,) = started(cluster, "a", config=static)
    b = cluster.add("b", config=static)
    cluster.after(3_000)
    assert [type(event) for event in a.events] == [Assigned, Lost, MemberRefused]
    assert "give each process its own" in a.events[-1].error
    assert b.all_of(Assigned) == [ALL]


def test_a_static_member_killed_while_the_group_rebalances_gets_its_partitions_in_that_rebalance(cluster):
    static = replace(CONFIG, group_instance_id="one")
    (b,) = started(cluster, "b", releases=False)
    a = cluster.add("a", config=static)
    cluster.after(2_100)
    assert b.member.revoking
    a.kill()
    again = cluster.add("a", config=static)
    cluster.after(200)
    b.member.released(b.member.revoking)
    b.releases = True
    cluster.settle()
    assert cluster.shares() == {"a": 2, "b": 2} and len(cluster.owners()) == 4
    assert again.all_of(Lost) == [] and b.all_of(Lost) == []


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("topics", [("u",), ("t", "u")])
def test_a_static_member_that_restarts_with_other_topics_gets_them(topics, leads):
    """The coordinator gives it its former partitions without a rebalance, whatever it subscribes to (KIP-345)."""
    cluster = Cluster({"t": 4, "u": 4})
    static = replace(CONFIG, group_instance_id="one")
    for name in ("a", "b") if leads else ("b", "a"):
        started(cluster, name, config=static if name == "a" else CONFIG)
    cluster.members["a"].kill()
    again = cluster.add("a", topics, static)
    cluster.after(CONFIG.heartbeat_interval_ms)
    cluster.settle()
    owned = {topic: len([1 for name, _ in again.member.owned if name == topic]) for topic in ("t", "u")}
    assert owned["u"] == 4 and (owned["t"] == 0 or topics == ("t", "u"))
    assert {topic for topic, _ in again.member.owned} <= set(topics)
    assert len(cluster.owners()) == 8 and {len(names) for names in cluster.owners().values()} == {1}


def test_a_static_member_whose_program_stood_still_joins_again_when_it_works_on(cluster):
    static = replace(CONFIG, group_instance_id="one")
    (a,) = started(cluster, "a", config=static)
    started(cluster, "b")
    a.works = False
    cluster.after(CONFIG.max_poll_interval_ms + SESSION_MS + 2_000)
    assert cluster.shares() == {"a": 0, "b": 4}
    a.works = True
    cluster.after(3_000)
    cluster.settle()
    assert cluster.shares() == {"a": 2, "b": 2}
    assert not [event for event in a.events if isinstance(event, MemberRefused)]


def test_names_that_kafkas_clients_refuse_are_refused_by_name():
    for name in ("", ".", "..", "a b", "pod/1", "ä", "a" * 250):
        with pytest.raises(InvalidSetting, match="group.instance.id=.*: must be 1 to 249 letters and digits"):
            replace(CONFIG, group_instance_id=name)
    assert replace(CONFIG, group_instance_id="a" * 249).group_instance_id


def test_each_member_of_a_process_has_its_own_name_also_if_kafka_takes_not_all_characters():
    names = [member_of(CONFIG, "pod-1", part).group_instance_id for part in ("lines", "späte Züge", "späte zuege")]
    assert names[0] == "pod-1-lines" and len(set(names)) == 3
    assert len(member_of(CONFIG, "a" * 128, "b" * 500).group_instance_id) == 128 + 1 + 16
    assert member_of(CONFIG, "", "lines") is CONFIG


def test_a_group_of_another_assignor_refuses_the_member_by_name(cluster):
    stock = cluster.broker.connect("stock")
    fields = {
        "group_id": "g", "session_timeout": 60_000, "rebalance_timeout": 60_000, "member_id": "",
        "group_instance_id": None, "protocol_type": "consumer", "reason": None,
        "protocols": [{"name": "range", "metadata": encode_subscription(MemberSubscription(("t",)))}],
    }  # fmt: skip
    stock.ask(FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})  # creates the topic of the offsets
    cluster.after(1_000)
    stock.send(JOIN_GROUP, 3, fields)
    a = cluster.add("a")
    cluster.after(1_000)
    assert a.member.phase is Phase.REFUSED
    assert "all must use cooperative-sticky" in a.events[-1].error


def test_a_session_the_broker_does_not_allow_is_refused_by_the_settings_name(cluster):
    a = cluster.add("a", config=replace(CONFIG, session_timeout_ms=3_000))
    cluster.after(1_000)
    assert "group.min.session.timeout.ms" in a.events[-1].error


def test_the_leader_finds_new_partitions_and_topics(cluster):
    (a,) = started(cluster, "a")
    b = cluster.add("b", topics=("t", "u"))
    cluster.after(3_000)
    cluster.settle()
    cluster.broker.create("u", 4)
    cluster.after(CONFIG.metadata_max_age_ms + 3_000)
    cluster.settle()
    assert {topic for topic, _ in b.member.owned} >= {"u"} and cluster.shares() == {"a": 4, "b": 4}


def test_a_changed_subscription_is_joined_with(cluster):
    (a,) = started(cluster, "a")
    cluster.broker.create("u", 1)
    a.member.subscribe(["u"])
    cluster.after(3_000)
    cluster.settle()
    assert a.member.owned == {("u", 0)} and a.all_of(Revoke) == [ALL]


def test_a_commit_carries_the_generation_and_a_fetch_finds_offset_epoch_and_metadata(cluster):
    (a,) = started(cluster, "a")
    partition, offset = ("t", 1), CommittedOffset(7, 3, "text")
    committed = a.carry_out(commit_offsets(a.core, ADDRESS, a.member.identity, {partition: offset}))
    assert committed == {partition: ErrorCode.NONE}
    late = a.member.identity._replace(generation=a.member.identity.generation - 1)
    refused = a.carry_out(commit_offsets(a.core, ADDRESS, late, {partition: CommittedOffset(9)}))
    assert refused == {partition: ErrorCode.ILLEGAL_GENERATION}
    stranger = GroupIdentity("g", late.generation, "stranger")
    refused = a.carry_out(commit_offsets(a.core, ADDRESS, stranger, {partition: CommittedOffset(9)}))
    assert refused == {partition: ErrorCode.UNKNOWN_MEMBER_ID}
    offsets = a.carry_out(fetch_offsets(a.core, ADDRESS, "g", [partition, ("t", 2)]))
    assert offsets == {partition: offset, ("t", 2): CommittedOffset(-1)}


def test_metadata_of_4096_characters_is_taken_and_of_more_is_refused(cluster):
    (a,) = started(cluster, "a")
    for length, code in ((4_096, ErrorCode.NONE), (4_097, ErrorCode.OFFSET_METADATA_TOO_LARGE)):
        offsets = {("t", 0): CommittedOffset(1, metadata="x" * length)}
        assert a.carry_out(commit_offsets(a.core, ADDRESS, a.member.identity, offsets)) == {("t", 0): code}


def test_counts_of_partitions_leave_out_topics_that_do_not_exist(cluster):
    a = cluster.add("a")
    assert a.carry_out(partition_counts(a.core, ["t", "none"])) == {"t": 4}


def test_errors_of_the_broker_that_pass_are_asked_again_and_others_end_the_membership(cluster):
    a = cluster.add("a")
    a.member.take(cluster.now_ms)
    a.member.answered(BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "group g"), cluster.now_ms)
    assert a.member.phase is Phase.JOINING and a.member.next_deadline_ms() == cluster.now_ms + CONFIG.retry_backoff_ms
    a.member.take(cluster.now_ms + 100)
    a.member.answered(Unsupported("the broker serves v0 to v3 of API 11"), cluster.now_ms)
    assert a.member.phase is Phase.REFUSED and a.member.next_deadline_ms() is None


def test_a_member_that_leaves_looks_up_its_coordinator_again_if_that_has_moved(cluster):
    (a,) = started(cluster, "a")
    a.member.leave(cluster.now_ms)
    a.member.take(cluster.now_ms)
    a.member.answered(ErrorCode.NOT_COORDINATOR, cluster.now_ms)
    assert a.member.phase is Phase.LEAVING and a.member.coordinator is None
    assert a.member.next_deadline_ms() == cluster.now_ms + CONFIG.retry_backoff_ms
    cluster.after(1_000)
    assert a.member.phase is Phase.LEFT and a.api_keys[-2:] == [FIND_COORDINATOR, LEAVE_GROUP]


def test_a_heartbeat_interval_above_a_third_of_the_session_is_refused_by_name():
    with pytest.raises(InvalidSetting, match="heartbeat.interval.ms=3000: must be at most a third"):
        GroupMemberConfig(session_timeout_ms=8_000)
