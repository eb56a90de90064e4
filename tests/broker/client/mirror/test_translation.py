"""Offsets of the source's groups in the target: translated, never backwards, and not for groups that live there."""

import pytest

from broker.client.group_admin import ListedGroup
from broker.client.mirror.offset_pairs import OffsetPair, OffsetPairs
from broker.client.mirror.translation import takes_offsets, translated

KEY, COPY = ("orders", 0), ("eu.orders", 0)


def wanted(offset, committed=None):
    pairs = OffsetPairs([OffsetPair(10, 0), OffsetPair(20, 10)])
    target = {} if committed is None else {COPY: committed}
    return translated({KEY: offset, ("other", 0): 5}, {KEY: pairs}, target, lambda key: ("eu." + key[0], key[1]))


def test_an_offset_goes_to_the_copy_of_its_topic():
    assert wanted(20) == {COPY: 10} and wanted(15) == {COPY: 0}


def test_an_offset_before_all_pairs_is_not_written():
    assert wanted(9) == {}


def test_an_offset_never_goes_back():
    assert wanted(20, committed=9) == {COPY: 10} and wanted(20, committed=10) == {} and wanted(20, committed=11) == {}


@pytest.mark.parametrize("state", ("Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"))
def test_a_group_with_members_at_the_target_is_left_alone(state):
    assert not takes_offsets(ListedGroup("readers", "consumer", state))


def test_a_group_without_members_or_that_does_not_exist_gets_offsets():
    assert takes_offsets(None) and takes_offsets(ListedGroup("readers", "consumer", "Empty"))
