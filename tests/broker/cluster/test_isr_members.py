"""Rules W2 (who is trusted) and R3 (who moves to the ELR), as tables; with_lives, which each write applies."""

import pytest

from broker.cluster.documents import NEW_DIRECTORY, NO_LAST_LIFE, NO_LIFE
from broker.cluster.isr_members import (
    elr_after,
    is_trusted,
    joined,
    lacks_all_records,
    life_of_untrusted,
    life_without_records,
    with_lives,
)
from tests.broker.cluster.members import KAFKA, PARTITION, context_of, not_whole, state_of, whole


@pytest.mark.parametrize(
    "recorded, life, trusted",
    [
        (102, not_whole(50), True),  # it joined in this life
        (102, whole(50), True),
        (50, whole(50), True),  # it stopped cleanly, and started again
        (50, whole(60), True),  # it did so twice
        (50, whole(40), False),  # an older directory was restored
        (50, whole(-1), False),  # an empty directory
        (50, not_whole(50), False),  # a power cut
        (None, whole(50), True),  # a controller of Kafka's dropped the entry
        (None, not_whole(50), False),
        (NO_LIFE, whole(50), False),
        (None, KAFKA, True),
        (50, KAFKA, True),
        (NO_LIFE, KAFKA, False),
    ],
)
def test_w2_member_is_trusted_by_its_life(recorded, life, trusted):
    lives = {} if recorded is None else {2: recorded}
    context = context_of({2: life})
    assert is_trusted(context, PARTITION, state_of(-1, (2,), lives=lives), 2) is trusted


@pytest.mark.parametrize(
    "recorded, life, lacks_all",
    [
        (50, not_whole(NEW_DIRECTORY), True),
        (50, not_whole(NO_LAST_LIFE), False),  # the file `life` is lost, or was never written
        (50, not_whole(40), False),
        (102, not_whole(NEW_DIRECTORY), False),  # it has joined in this life
        (NO_LIFE, not_whole(NEW_DIRECTORY), False),  # its disk may have failed in this life, its first
        (None, not_whole(NEW_DIRECTORY), False),
        (life_without_records(102), not_whole(40), True),  # in this life
        (life_without_records(60), not_whole(60), True),  # the directory has lived since
        (life_without_records(60), whole(70), True),
        (life_without_records(60), whole(50), False),  # the right directory is back
        (50, KAFKA, False),
    ],
)
def test_w4_member_that_came_with_an_empty_directory_lacks_all_records(recorded, life, lacks_all):
    lives = {} if recorded is None else {2: recorded}
    state = state_of(-1, (2,), lives=lives)
    assert lacks_all_records(context_of({2: life}), PARTITION, state, 2) is lacks_all
    if recorded is not None and recorded < NO_LIFE:
        assert not is_trusted(context_of({2: life}), PARTITION, state, 2)


def test_w4_the_life_of_an_empty_directory_is_kept_until_the_right_one_is_back():
    state = state_of(-1, (2,), lives={2: 50})
    first = life_of_untrusted(context_of({2: not_whole(NEW_DIRECTORY)}), PARTITION, state, 2)
    assert first == life_without_records(102)
    state = state_of(-1, (2,), lives={2: life_without_records(60)})
    assert life_of_untrusted(context_of({2: whole(70)}), PARTITION, state, 2) == life_without_records(60)
    assert life_of_untrusted(context_of({2: whole(50)}), PARTITION, state, 2) == NO_LIFE


def test_w2_only_copy_is_trusted_whatever_its_life():
    context = context_of({2: not_whole(-1)}, replicas=(2,))
    assert is_trusted(context, PARTITION, state_of(-1, (2,), lives={2: 50}), 2)


OURS = {1: whole(), 2: whole(), 3: whole()}
LIVES = {1: 101, 2: 102, 3: 103}


@pytest.mark.parametrize(
    "isr, elr, next_isr, brokers, lives, next_elr",
    [
        ((1, 2, 3), (), (1, 2), OURS, LIVES, ()),  # the ISR is large enough
        ((1, 2), (), (1,), OURS, LIVES, (2,)),
        ((1, 2), (3,), (1,), OURS, LIVES, (3, 2)),
        ((1,), (2, 3), (1, 2), OURS, LIVES, ()),
        ((1, 2), (), (1,), {1: whole(), 3: whole()}, LIVES, (2,)),  # a dead one is asked when it returns
        ((1, 2), (), (1,), {1: whole(), 3: whole()}, {1: 101, 2: NO_LIFE}, ()),
        ((1, 2), (), (1,), {1: whole(), 2: not_whole(50)}, {1: 101, 2: 50}, ()),
        ((1, 2), (), (1,), {1: KAFKA, 2: whole()}, LIVES, ()),  # a leader of Kafka's has no ELR
        ((1, 2), (9,), (1,), OURS, LIVES, (2,)),  # 9 is no replica any more
    ],
)
def test_r3_elr_after_a_change_of_the_isr(isr, elr, next_isr, brokers, lives, next_elr):
    context = context_of(brokers, min_isr=2)
    assert elr_after(context, PARTITION, state_of(1, isr, elr, lives), 1, next_isr) == next_elr


def test_r3_leaders_min_counts_before_the_controllers():
    context = context_of(OURS, min_isr=1)
    assert elr_after(context, PARTITION, state_of(1, (1, 2), (), LIVES), 1, (1,), min_isr=2) == (2,)
    assert elr_after(context, PARTITION, state_of(1, (1, 2), (), LIVES), 1, (1,)) == ()


def test_r3_min_isr_counts_at_most_the_replicas():
    context = context_of(OURS, replicas=(1, 2), min_isr=3)
    assert elr_after(context, PARTITION, state_of(1, (1,), (2,), LIVES), 1, (1, 2)) == ()


def test_w2_each_write_renews_the_lives_of_live_trusted_members():
    context = context_of({1: whole(50), 2: not_whole(50), 4: whole()}, replicas=(1, 2, 3, 4))
    decision = state_of(1, (1, 2), (3, 4), {1: 50, 2: 50, 3: 50, 4: NO_LIFE, 9: 50})
    assert with_lives(context, PARTITION, decision).lives == {1: 101, 2: 50, 3: 50, 4: NO_LIFE}


def test_w2_brokers_of_kafka_have_no_lives():
    context = context_of({1: KAFKA, 2: whole(50)})
    assert with_lives(context, PARTITION, state_of(1, (1, 2), (), {1: 50, 2: 50})).lives == {2: 102}


def test_w2_the_only_copy_has_no_lives():
    context = context_of({1: whole(50)}, replicas=(1,))
    assert with_lives(context, PARTITION, state_of(1, (1,), (), {1: 50})).lives == {}


def test_w2_member_that_joins_is_trusted_in_its_present_life():
    context = context_of({1: whole(50), 2: not_whole(50), 3: KAFKA})
    decision = joined(context, state_of(1, (1, 2, 3), (), {1: 101, 2: NO_LIFE, 3: NO_LIFE}), (2, 3))
    assert decision.lives == {1: 101, 2: 102}
