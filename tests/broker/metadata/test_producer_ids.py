"""A broker gives producer ids away from the blocks that were reserved for it, each id once (KIP-98)."""

import pytest

from broker.metadata.producer_ids import AHEAD, NoProducerIds, ProducerIds


def test_ids_are_taken_block_after_block():
    ids = ProducerIds()
    ids.add(range(1_000, 1_002))
    ids.add(range(5_000, 5_001))
    assert [ids.take() for _ in range(3)] == [1_000, 1_001, 5_000]
    assert ids.left == 0


def test_without_a_block_no_id_is_given_away():
    ids = ProducerIds()
    with pytest.raises(NoProducerIds):
        ids.take()


def test_the_next_block_is_asked_for_before_the_last_id_is_gone():
    ids, requests = ProducerIds(), []
    ids.reserve = lambda: requests.append(ids.left)
    ids.add(range(AHEAD + 2))
    ids.take()
    assert not requests
    ids.take()
    ids.take()
    assert requests == [AHEAD]
