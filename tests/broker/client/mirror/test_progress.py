"""The progress of a partition: its commits at the source, and their metadata."""

from uuid import UUID

from broker.client.group_requests import METADATA_CHARACTERS_MAX
from broker.client.mirror.progress import PartitionProgress, is_one_way

ORDERS, ANEW = UUID(int=1), UUID(int=2)


def test_a_commit_waits_for_the_acknowledgement_of_all_batches_before_it():
    progress = PartitionProgress(ORDERS)
    first, second = progress.take(0, 10, 1), progress.take(10, 20, 1)
    progress.acknowledged(second, 110, 10)
    assert progress.to_commit() is None and not progress.is_settled
    progress.acknowledged(first, 100, 10)
    assert progress.to_commit().offset == 20 and progress.is_settled
    assert list(progress.pairs) == [(0, 100), (10, 110), (20, 120)]


def test_a_batch_that_was_divided_counts_when_all_its_parts_are_acknowledged():
    progress = PartitionProgress(ORDERS)
    taken = progress.take(0, 10, 2)
    progress.acknowledged(taken, 100, 4)
    assert progress.to_commit() is None
    progress.acknowledged(taken, 104, 6)
    assert progress.to_commit().offset == 10 and list(progress.pairs) == [(0, 100), (10, 110)]


def test_markers_after_the_last_record_are_committed_too():
    progress = PartitionProgress(ORDERS)
    taken = progress.take(0, 10, 1)
    progress.skip(11)
    assert progress.to_commit() is None
    progress.acknowledged(taken, 100, 10)
    assert progress.to_commit().offset == 11


def test_what_is_committed_is_not_committed_again():
    progress = PartitionProgress(ORDERS)
    progress.skip(5)
    progress.committed(progress.to_commit().offset)
    progress.skip(5)
    assert progress.to_commit() is None


def test_the_next_mirror_goes_on_with_the_pairs_of_the_commit():
    progress = PartitionProgress(ORDERS)
    progress.acknowledged(progress.take(0, 10, 1), 100, 10)
    again = PartitionProgress(ORDERS, progress.to_commit().metadata)
    assert list(again.pairs) == [(0, 100), (10, 110)] and not again.is_recreated


def test_a_topic_that_was_made_again_is_found_by_its_id():
    progress = PartitionProgress(ORDERS)
    progress.acknowledged(progress.take(0, 10, 1), 100, 10)
    again = PartitionProgress(ANEW, progress.to_commit().metadata)
    assert again.is_recreated and not list(again.pairs)


def test_a_topic_that_is_made_again_under_way_is_committed_with_its_new_id():
    progress = PartitionProgress(ORDERS)
    progress.acknowledged(progress.take(0, 10, 1), 100, 10)
    progress.committed(10)
    progress.follow(ANEW)
    assert not list(progress.pairs)
    progress.acknowledged(progress.take(0, 10, 1), 110, 10)
    again = PartitionProgress(ANEW, progress.to_commit().metadata)
    assert not again.is_recreated and list(again.pairs) == [(0, 110), (10, 120)]


def test_a_commit_says_whether_the_mirror_is_one_of_two_and_comes_again_if_that_changed():
    progress = PartitionProgress(ORDERS)
    progress.skip(10)
    one_way = progress.to_commit().metadata
    assert is_one_way(one_way) is True and is_one_way("") is None and is_one_way("[1]") is None
    assert not PartitionProgress(ORDERS, one_way).is_other_way
    again = PartitionProgress(ORDERS, one_way, two_way=True)
    again.skip(10)
    assert again.is_other_way and is_one_way(again.to_commit().metadata) is False


def test_metadata_of_another_program_is_ignored():
    for metadata in ("", "x", "{}", "[1]", '{"v":9,"id":null,"pairs":[]}', '{"v":1,"id":null,"pairs":[[1]]}'):
        assert not list(PartitionProgress(ORDERS, metadata).pairs)


def test_the_metadata_of_large_offsets_is_no_longer_than_brokers_take():
    progress, far = PartitionProgress(ORDERS), 1 << 61
    for number in range(200):
        progress.acknowledged(progress.take(far + number, far + number + 1, 1), far + number, 1)
    commit = progress.to_commit()
    assert len(commit.metadata) <= METADATA_CHARACTERS_MAX
    assert PartitionProgress(ORDERS, commit.metadata).pairs.translate(far + 200) == far + 200


def test_an_answer_without_an_offset_gives_no_pair():
    progress = PartitionProgress(ORDERS)
    progress.acknowledged(progress.take(0, 10, 1), None, 10)
    assert progress.to_commit().offset == 10 and not list(progress.pairs)
