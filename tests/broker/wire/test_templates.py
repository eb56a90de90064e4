"""The store of request templates: bounded, and without those unused for longest."""

import pytest

from broker.wire.templates import TemplateStore


def key_of(number):
    return 0, b"%06d" % number


@pytest.mark.parametrize("most", [1, 2, 3, 10, 11])
def test_past_the_most_templates_those_unused_for_longest_are_dropped(most):
    """The limit is flakelog.max.request.templates."""
    store = TemplateStore(most)
    for number in range(100):
        store.add(key_of(number), number)
        assert len(store) <= most and store.find(key_of(number)) == number
    assert store.find(key_of(0)) is None and key_of(0) not in store


@pytest.mark.parametrize("most", [4, 10, 11])
def test_a_template_that_is_used_again_and_again_stays(most):
    store = TemplateStore(most)
    store.add(key_of(0), "first")
    for number in range(1, 100):
        store.add(key_of(number), number)
        assert store.find(key_of(0)) == "first"


@pytest.mark.parametrize("most", [2, 10, 11])
def test_half_as_many_as_the_most_stay_however_they_are_used(most):
    store = TemplateStore(most)
    for number in range(most // 2):
        store.add(key_of(number), number)
    for _ in range(3):
        assert [store.find(key_of(number)) for number in range(most // 2)] == list(range(most // 2))


def test_a_key_without_a_template_is_remembered_as_well():
    store = TemplateStore(10)
    store.add(key_of(1), None)
    assert key_of(1) in store and store.find(key_of(1)) is None and len(store) == 1
