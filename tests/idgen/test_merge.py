"""idgen.merge: merge streams of ids into one, in the order of the ids (k is below one second)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idgen.layout import Layout
from idgen.merge import NotKSorted, k_sorted

START_MS = 1_700_000_000_000


def id_of(ms, worker=0, sequence=0):
    return Layout().pack(START_MS + ms, worker, sequence)


def merged(ids, **more):
    return list(k_sorted(ids, key=lambda id: id, **more))


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 1_023), st.integers(0, 900)), max_size=50))
def test_what_is_out_of_order_by_less_than_k_comes_out_in_order(events):
    arrivals = sorted(((ms + late, id_of(ms, worker)) for ms, worker, late in events))
    ids = [id for _, id in arrivals]
    assert merged(ids) == sorted(ids)


def test_an_item_is_handed_on_as_soon_as_nothing_can_come_before_it():
    stream = k_sorted(iter([id_of(0), id_of(500), id_of(1_000), id_of(1_001)]), key=lambda id: id, k_ms=1_000)
    given_on = []
    source = [id_of(0), id_of(1_000), id_of(1_001)]

    def watched():
        for id in source:
            yield id
            given_on.append(id)

    assert next(stream) == id_of(0)
    assert next(k_sorted(watched(), key=lambda id: id)) == id_of(0)
    assert given_on == source[:2]  # the merge has read the third item, and no more


def test_an_item_that_comes_too_late_is_an_error_not_a_disorder():
    with pytest.raises(NotKSorted, match="came after"):
        merged([id_of(500), id_of(2_000), id_of(100)])


def test_items_with_equal_ids_keep_their_order_and_are_never_compared():
    items = [{"id": 7, "n": 1}, {"id": 7, "n": 2}]
    assert list(k_sorted(items, key=lambda item: item["id"])) == items


def test_waiting_items_are_bounded():
    ids = [id_of(0, sequence=n) for n in range(100)]
    stream = iter(ids)
    assert next(k_sorted(stream, key=lambda id: id, waiting_max=10)) == ids[0]
    assert next(stream) == ids[11]
    with pytest.raises(ValueError, match="room for one item"):
        merged(ids, waiting_max=0)
