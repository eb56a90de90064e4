"""Pairs of offsets: a group that is translated misses no record, and gets few again."""

from broker.client.mirror.offset_pairs import PAIRS_MAX, OffsetPair, OffsetPairs


def pairs_of(*pairs):
    return OffsetPairs(OffsetPair(*pair) for pair in pairs)


def test_a_group_between_two_pairs_takes_the_earlier_one():
    pairs = pairs_of((10, 0), (20, 10), (40, 25))
    assert [pairs.translate(offset) for offset in (10, 19, 20, 39, 40, 99)] == [0, 0, 10, 10, 25, 25]


def test_a_group_before_all_pairs_is_not_translated():
    assert pairs_of((10, 0)).translate(9) is None and OffsetPairs().translate(0) is None


def test_records_that_are_copied_again_change_no_pair():
    pairs = pairs_of((0, 0), (20, 20))
    pairs.add(OffsetPair(10, 30))
    pairs.add(OffsetPair(20, 40))
    assert list(pairs) == [(0, 0), (20, 20)]


def test_a_target_that_begins_anew_drops_the_old_pairs():
    pairs = pairs_of((0, 0), (20, 20))
    pairs.add(OffsetPair(30, 10))
    assert list(pairs) == [(30, 10)]


def test_there_are_few_pairs_and_a_group_reads_at_most_as_much_again_as_it_was_behind():
    pairs, batch = OffsetPairs(), 100
    for offset in range(0, 1_000_000, batch):
        pairs.add(OffsetPair(offset, 3 * offset))
        assert len(pairs) <= PAIRS_MAX
    newest = offset
    for offset in range(0, newest, 1_234):
        translated = pairs.translate(offset)
        assert 3 * offset >= translated and offset - translated // 3 <= newest - offset + 2 * batch
