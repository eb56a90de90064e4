"""The partitions of a group member, divided among the tasks of its process."""

from partition_manager.ports import Share
from partition_manager.shares import Shares

T0, T1, T2, T3 = (("t", number) for number in range(4))


def test_new_partitions_go_to_the_task_with_the_fewest_and_stay_there():
    shares = Shares(2)
    shares.assigned([T0, T1, T2])
    assert [shares.share(task, 0).grants for task in (0, 1)] == [{T0: 1, T2: 3}, {T1: 2}]
    shares.assigned([T3])
    assert shares.share(1, 0).grants == {T1: 2, T3: 4}


def test_a_task_hears_of_its_share_only_when_it_changes():
    shares = Shares(2)
    first = shares.share(0, 0)
    assert first.grants == {}
    assert shares.share(0, first.version) is None
    shares.assigned([T0])
    assert shares.share(0, first.version).grants == {T0: 1}


def test_a_revoked_partition_stays_until_its_task_releases_it_and_then_the_member_is_told():
    shares = Shares(1)
    shares.assigned([T0, T1])
    assert shares.revoke([T0]) == []
    share = shares.share(0, 0)
    assert (share.grants, share.revoked) == ({T0: 1, T1: 2}, {T0})
    assert shares.released(0, T0, 1) is True
    assert shares.share(0, 0).grants == {T1: 2}


def test_a_revoked_partition_without_a_task_is_released_at_once():
    shares = Shares(1)
    shares.assigned([T0])
    assert shares.released(0, T0, 1) is False, "the task stops; the member keeps the partition until it leaves"
    assert shares.revoke([T0]) == [T0]


def test_a_lost_partition_that_comes_again_has_another_grant_and_a_late_release_of_the_old_counts_nothing():
    shares = Shares(1)
    shares.assigned([T0])
    shares.lost([T0])
    shares.assigned([T0])
    assert shares.share(0, 0).grants == {T0: 2}
    assert shares.released(0, T0, 1) is False
    assert shares.share(0, 0).grants == {T0: 2}


def test_lines_for_the_log_go_to_the_first_task_once():
    shares = Shares(2)
    shares.note("error", "lost")
    share = shares.share(0, 0)
    assert isinstance(share, Share) and share.notes == (("error", "lost"),)
    assert shares.share(1, 0).notes == ()
    shares.assigned([T0])
    assert shares.share(0, 0).notes == ()
