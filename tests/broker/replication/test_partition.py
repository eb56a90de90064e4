"""A leader's view of a partition: the moves of the high watermark, and the ISR (rules R1 to R3, E4, E6, E7)."""

import pytest

from broker.log.log_appender import append
from broker.log.recovery.recovery import open_log
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.validation.batch import validate
from broker.metadata.topic import PartitionState
from broker.now import Now
from broker.record.records import BatchRecord, encode_batch
from broker.replication.partition import RETRY_MS, Partition
from broker.settings.config import BrokerConfig, TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from idgen.layout import Layout
from idgen.worker import IdWorker

LAG_MS = 30_000


class Leader:
    """Broker 1, which leads a partition of three replicas. Followers fetch from it on a clock that the test moves."""

    def __init__(self, isr=(1, 2, 3), min_isr=2, elr=(), replicas=(1, 2, 3), visible_after_flush=False):
        config = TopicConfig(min_insync_replicas=min_isr, visible_after_flush=visible_after_flush)
        self.log, _ = open_log(MemoryStorage(), "flights", 0, config, BrokerConfig(), None)
        self.ids = IdWorker(Layout(), 1, start_ms=1_700_000_000_000, limit_ms=1_800_000_000_000)
        self.now_ms = 1_000
        self.partition = Partition(self.log, 1)
        self.replicas = replicas
        self.lead(1, isr, elr)

    @property
    def now(self):
        return Now(self.now_ms, 1_700_000_000_000 + self.now_ms)

    def lead(self, epoch, isr, elr=(), partition_epoch=0):
        return self.partition.lead(PartitionState(1, epoch, self.replicas, isr, partition_epoch, elr), self.now)

    def append(self, number=1):
        for _ in range(number):
            batch = memoryview(bytearray(encode_batch([BatchRecord(0, 0, None, b"a")], base_timestamp_ms=0)))
            append(self.log, batch, validate(batch, self.log.config, BrokerConfig()), self.ids, self.now)

    def sync(self):
        for segment in self.log.unflushed_segments():
            segment.sync_whole()
        self.log.synced(self.log.position())

    def fetch(self, follower, offset, *, life=7):
        return self.partition.fetched(follower, offset, 0, life, self.now)

    def proposal(self):
        return self.partition.take_proposal(5, self.now)

    def grant(self, isr, elr=(), partition_epoch=1, epoch=1):
        return self.partition.granted(epoch, partition_epoch, isr, elr, self.now)

    def is_late(self, *late):
        """Let so much time pass that all followers but those that are `late` have been at the end."""
        self.now_ms += LAG_MS + 1
        for follower in self.partition.followers:
            if follower not in late:
                self.fetch(follower, self.log.log_end_offset)
        self.partition.check_lag(LAG_MS, self.now)

    @property
    def high_watermark(self):
        return self.log.high_watermark


# --- R1: the high watermark -------------------------------------------------------------------------------------------


def test_r1_the_high_watermark_is_the_least_end_of_the_isr():
    leader = Leader()
    leader.append(5)
    assert leader.high_watermark == 0
    assert not leader.fetch(2, 5) and leader.high_watermark == 0
    assert leader.fetch(3, 4) and leader.high_watermark == 4


def test_r1_a_proposed_removal_counts_until_it_is_granted():
    leader = Leader()
    leader.append(5)
    leader.fetch(2, 5)
    leader.is_late(3)
    assert dict(leader.proposal().isr) == {1: 5, 2: 7} and leader.high_watermark == 0
    assert leader.grant((1, 2)) and leader.high_watermark == 5


def test_r1_a_proposed_addition_counts_at_once():
    leader = Leader(isr=(1, 2))
    leader.append(5)
    leader.fetch(2, 5)
    leader.fetch(3, 5)
    assert dict(leader.proposal().isr) == {1: 5, 2: 7, 3: 7}
    leader.append(5)
    leader.fetch(2, 10)
    assert leader.high_watermark == 5
    leader.fetch(3, 8)
    assert leader.high_watermark == 8


def test_r1_the_high_watermark_stands_while_the_isr_is_below_its_minimum():
    leader = Leader(isr=(1,), replicas=(1, 2, 3))
    leader.append(5)
    assert not leader.partition.has_min_isr and leader.high_watermark == 0
    leader.fetch(2, 5)
    assert leader.high_watermark == 0, "a member that is only proposed does not make the ISR large enough"
    assert leader.grant((1, 2)) and leader.high_watermark == 5


def test_r1_the_high_watermark_stands_while_the_elr_is_not_empty():
    leader = Leader(isr=(1, 2), min_isr=2, elr=(3,))
    leader.append(5)
    leader.fetch(2, 5)
    assert leader.high_watermark == 0
    assert leader.grant((1, 2)) and leader.high_watermark == 5


def test_r1_a_leader_alone_in_an_isr_that_may_be_one_commits_what_it_appends():
    leader = Leader(isr=(1,), min_isr=1)
    leader.append(5)
    assert leader.high_watermark == 5
    leader.fetch(2, 5)
    leader.append(1)
    assert leader.high_watermark == 5, "the follower is proposed, so it counts"


def test_r1_what_the_leaders_own_disk_has_last_is_committed_once_it_is_synced():
    leader = Leader(visible_after_flush=True)
    leader.append(5)
    leader.fetch(2, 5)
    assert not leader.fetch(3, 5) and leader.high_watermark == 0
    leader.sync()
    assert leader.high_watermark == 5


def test_r1_the_records_of_a_leader_alone_are_committed():
    leader = Leader(isr=(1,), min_isr=1)
    leader.append(5)
    assert leader.high_watermark == 5


def test_r1_the_high_watermark_does_not_go_back_when_a_follower_does():
    leader = Leader()
    leader.append(5)
    leader.fetch(2, 5), leader.fetch(3, 5)
    leader.fetch(3, 2)
    assert leader.high_watermark == 5


def test_e4_the_ends_of_an_earlier_epoch_are_forgotten_and_the_high_watermark_is_not():
    leader = Leader()
    leader.append(5)
    leader.fetch(2, 5), leader.fetch(3, 5)
    leader.append(5)
    leader.lead(2, (1, 2, 3))
    assert leader.high_watermark == 5 and not leader.partition.knows_high_watermark
    leader.fetch(2, 10)
    assert leader.high_watermark == 5
    leader.fetch(3, 10)
    assert leader.high_watermark == 10 and leader.partition.knows_high_watermark


def test_a_decision_of_an_earlier_epoch_changes_nothing():
    leader = Leader()
    leader.lead(3, (1, 2), partition_epoch=4)
    assert not leader.lead(2, (1,), partition_epoch=9) and leader.partition.isr == (1, 2)
    assert not leader.grant((1,), epoch=2, partition_epoch=9) and leader.partition.isr == (1, 2)
    assert not leader.grant((1,), epoch=3, partition_epoch=3) and leader.partition.isr == (1, 2)


# --- R2 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("min_isr, replicas, isr, has", [(2, (1, 2, 3), (1,), False), (3, (1, 2), (1, 2), True)])
def test_r2_an_isr_needs_as_many_members_as_the_setting_says_and_at_most_the_replicas_there_are(
    min_isr, replicas, isr, has
):
    assert Leader(isr=isr, min_isr=min_isr, replicas=replicas).partition.has_min_isr is has


# --- R3: the ISR ------------------------------------------------------------------------------------------------------


def test_r3_a_member_leaves_that_has_not_been_at_the_end_for_the_lag_time():
    leader = Leader()
    leader.append(5)
    leader.now_ms += LAG_MS
    leader.partition.check_lag(LAG_MS, leader.now)
    assert leader.proposal() is None
    leader.is_late(2, 3)
    assert dict(leader.proposal().isr) == {1: 5}


def test_r3_a_member_that_is_behind_but_reaches_the_end_of_its_last_fetch_stays():
    """Under load no follower is ever at the end: it is where the end was when it fetched before."""
    leader = Leader()
    for _ in range(10):
        leader.append(5)
        end = leader.log.log_end_offset
        leader.fetch(2, end - 5), leader.fetch(3, end - 5)
        leader.now_ms += LAG_MS // 2
        leader.partition.check_lag(LAG_MS, leader.now)
        assert leader.proposal() is None


def test_r3_a_follower_joins_at_the_high_watermark_and_the_start_of_the_epoch():
    leader = Leader(isr=(1, 2))
    leader.append(5)
    leader.fetch(2, 5)
    leader.lead(2, (1, 2))
    leader.append(5)
    leader.fetch(3, 4)
    assert leader.proposal() is None
    leader.fetch(3, 5)
    assert dict(leader.proposal().isr) == {1: 5, 2: -1, 3: 7}


def test_r3_one_proposal_is_under_way():
    leader = Leader(isr=(1,), min_isr=1)
    leader.fetch(2, 0)
    assert dict(leader.proposal().isr) == {1: 5, 2: 7}
    leader.fetch(3, 0)
    assert leader.proposal() is None
    leader.grant((1, 2))
    leader.fetch(3, 0)
    assert dict(leader.proposal().isr) == {1: 5, 2: 7, 3: 7}


# --- E6: proposals ----------------------------------------------------------------------------------------------------


def test_e6_a_refused_proposal_counts_and_is_asked_again_with_the_life_that_was_in_sync():
    """The member's next life may lack records, after a power cut. The controller refuses the life that is over."""
    leader = Leader(isr=(1, 2))
    leader.append(5)
    leader.fetch(2, 5), leader.fetch(3, 5)
    assert leader.proposal().isr[3] == 7
    leader.partition.refused(1, leader.now)
    assert leader.proposal() is None
    leader.append(5)
    leader.fetch(2, 10)
    assert leader.high_watermark == 5
    leader.fetch(3, 0, life=9)
    leader.now_ms += RETRY_MS
    assert leader.partition.next_deadline_ms() == leader.now_ms and leader.proposal().isr[3] == 7
    leader.partition.ineligible(1, leader.now)
    leader.now_ms += RETRY_MS
    leader.fetch(3, 0, life=9)
    assert leader.proposal() is None
    leader.fetch(3, 10, life=9)
    assert leader.proposal().isr[3] == 9


def test_e6_a_proposal_of_a_dead_member_counts_no_more():
    leader = Leader(isr=(1, 2))
    leader.append(5)
    leader.fetch(2, 5), leader.fetch(3, 5)
    leader.proposal()
    leader.append(5)
    leader.fetch(2, 10)
    assert leader.partition.ineligible(1, leader.now) and leader.high_watermark == 10
    leader.fetch(3, 10)
    assert leader.proposal() is None, "it is proposed again after a pause"
    leader.now_ms += RETRY_MS
    leader.fetch(3, 10)
    assert leader.proposal().isr[3] == 7


def test_e6_a_new_epoch_ends_a_proposal():
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    leader.lead(2, (1, 2))
    leader.partition.refused(1, leader.now)
    leader.now_ms += RETRY_MS
    assert leader.proposal() is None


def test_e6_an_order_with_the_epochs_that_are_held_changes_nothing():
    """The controller repeats its orders. A proposal that is under way may still be granted after one (rule E4)."""
    leader = Leader(isr=(1, 2))
    leader.append(5)
    leader.fetch(2, 5), leader.fetch(3, 5)
    leader.proposal()
    assert not leader.lead(1, (1, 2))
    leader.append(5)
    leader.fetch(2, 10)
    assert leader.high_watermark == 5
    leader.grant((1, 2, 3))
    assert leader.high_watermark == 5 and leader.partition.isr == (1, 2, 3)


def test_e6_an_answer_to_an_earlier_proposal_leaves_the_next_one_counting():
    leader = Leader(isr=(1, 2))
    leader.append(5)
    leader.fetch(2, 5), leader.fetch(3, 5)
    leader.proposal()
    leader.grant((1, 2, 3))
    leader.is_late(3)
    leader.proposal()
    leader.grant((1, 2))
    leader.fetch(3, 5)
    leader.proposal()
    leader.grant((1, 2), partition_epoch=1)
    leader.append(5)
    leader.fetch(2, 10)
    assert leader.high_watermark == 5, "the controller may have granted 3 already"


def test_e6_the_present_isr_answers_its_own_proposal():
    """The controller had granted it before, and its answer was lost."""
    leader = Leader(isr=(1, 2), elr=(3,))
    leader.proposal()
    assert leader.partition.next_deadline_ms() is None
    leader.grant((1, 2), partition_epoch=0)
    leader.fetch(3, 0)
    assert dict(leader.proposal().isr) == {1: 5, 2: -1, 3: 7}


def test_e6_a_leader_that_needs_less_than_its_controller_thinks_asks_for_an_empty_elr_when_it_begins():
    leader = Leader(isr=(1, 2), min_isr=2, elr=(3,))
    proposal = leader.proposal()
    assert (dict(proposal.isr), proposal.min_isr) == ({1: 5, 2: -1}, 2)


def test_e6_a_leader_asks_for_an_empty_elr_when_another_proposal_came_to_nothing():
    leader = Leader(isr=(1, 2), min_isr=3, elr=(4,), replicas=(1, 2, 3, 4))
    leader.fetch(3, 0)
    assert 3 in leader.proposal().isr
    leader.log.config = TopicConfig(min_insync_replicas=2)
    leader.partition.configured(leader.now)
    leader.partition.ineligible(1, leader.now)
    assert leader.proposal() is None
    leader.now_ms += RETRY_MS
    proposal = leader.proposal()
    assert (dict(proposal.isr), proposal.min_isr) == ({1: 5, 2: -1}, 2)


def test_e6_a_repeated_proposal_names_the_minimum_that_it_named_at_first():
    """The controller knows by it that it has granted the proposal, if its answer was lost."""
    leader = Leader(isr=(1, 2), min_isr=2)
    leader.is_late(2)
    assert leader.proposal().min_isr == 2
    leader.partition.refused(1, leader.now)
    leader.log.config = TopicConfig(min_insync_replicas=1)
    leader.partition.configured(leader.now)
    leader.now_ms += RETRY_MS
    assert leader.proposal().min_isr == 2
    leader.grant((1,), elr=(2,))
    assert leader.proposal().min_isr == 1


def test_e6_the_leader_names_its_minimum_and_asks_for_an_empty_elr_when_a_smaller_one_is_enough():
    leader = Leader(isr=(1, 2), min_isr=3, elr=(3,))
    leader.append(5)
    leader.fetch(2, 5)
    assert not leader.partition.has_min_isr and leader.proposal() is None
    leader.log.config = TopicConfig(min_insync_replicas=2)
    assert not leader.partition.configured(leader.now) and leader.high_watermark == 0
    proposal = leader.proposal()
    assert dict(proposal.isr) == {1: 5, 2: 7} and proposal.min_isr == 2
    assert leader.grant((1, 2)) and leader.high_watermark == 5


def test_a_broker_that_is_no_replica_is_refused():
    with pytest.raises(ApiError) as raised:
        Leader().fetch(9, 0)
    assert raised.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH


# --- R3: followers that rest ------------------------------------------------------------------------------------------


class Session:
    """A follower's session, which the leader knows to fetch all its partitions again each time."""

    def __init__(self):
        self.used_ms, self.life = 0, 7
        self.to_look_at = []

    def woken(self, log):
        self.to_look_at.append(log)


def resting(leader, follower=2):
    """Let a follower rest at the leader's end; return its session."""
    session = Session()
    leader.fetch(follower, leader.log.log_end_offset)
    assert leader.partition.rest(follower, session) is leader.partition.followers[follower]
    return session


def test_r3_each_fetch_of_its_session_counts_for_a_follower_that_rests():
    leader = Leader()
    session = resting(leader)
    session.used_ms = leader.now_ms = 50_000
    follower = leader.partition.followers[2]
    assert follower.caught_up_ms == 50_000
    leader.append()
    follower.wake(leader.log)
    session.used_ms = leader.now_ms = 90_000
    assert (follower.caught_up_ms, session.to_look_at) == (50_000, [leader.log])
    leader.fetch(2, 0)
    assert follower.caught_up_ms == 50_000, "at its last fetch it was at the end of then"


def test_r3_a_follower_rests_at_the_end_of_the_log_and_in_the_isr_only():
    leader = Leader(isr=(1, 2))
    leader.append(2)
    leader.fetch(2, 1)
    leader.fetch(3, 2)
    assert leader.partition.rest(2, Session()) is leader.partition.rest(3, Session()) is None


def test_a_follower_that_rests_is_woken_by_another_state_of_its_partition():
    leader = Leader()
    session = resting(leader)
    leader.lead(1, (1, 2, 3), partition_epoch=1)
    assert session.to_look_at == [leader.log]
    session = resting(leader)
    leader.grant((1, 3), partition_epoch=2)
    assert session.to_look_at == [leader.log]
    session = resting(leader, 3)
    leader.lead(2, (1, 3))
    assert session.to_look_at == [leader.log]


def test_a_follower_that_rests_is_woken_by_a_fetch_from_elsewhere():
    leader = Leader()
    session = resting(leader)
    session.used_ms = leader.now_ms = 50_000
    leader.append()
    leader.now_ms = 60_000
    leader.fetch(2, 0, life=8)
    assert (session.to_look_at, leader.partition.followers[2].caught_up_ms) == ([leader.log], 50_000)


# --- a fetch that repeats the last one -------------------------------------------------------------------------------


def test_r3_a_repeated_fetch_tells_only_that_the_member_is_still_there():
    leader = Leader()
    leader.append(2)
    leader.fetch(2, 1)
    leader.now_ms += 1_000
    assert leader.partition.fetched_again(2, 1, 7, leader.now_ms)
    follower = leader.partition.followers[2]
    assert (follower.end_offset, follower.fetched_ms, follower.caught_up_ms) == (1, 2_000, 1_000)


@pytest.mark.parametrize(
    ("follower", "offset", "life"), [(2, 2, 7), (2, 1, 8), (3, 1, 7)], ids=["offset", "life", "outside of the ISR"]
)
def test_r3_a_fetch_that_may_tell_more_than_the_last_one_is_not_taken_for_a_repeated_one(follower, offset, life):
    leader = Leader(isr=(1, 2))
    leader.append(2)
    leader.fetch(2, 1), leader.fetch(3, 1)
    assert not leader.partition.fetched_again(follower, offset, life, leader.now_ms)


def test_r3_a_fetch_of_an_earlier_epoch_is_not_repeated():
    leader = Leader()
    leader.append(2)
    leader.fetch(2, 1)
    leader.lead(2, (1, 2, 3))
    assert not leader.partition.fetched_again(2, 1, 7, leader.now_ms)


def test_r3_a_fetch_from_deleted_records_is_not_repeated():
    leader = Leader()
    leader.append(3)
    leader.fetch(2, 0)
    leader.log.log_start_offset = 1
    assert not leader.partition.fetched_again(2, 0, 7, leader.now_ms)
