"""The groupings beyond Storm's first five: partial key, local or shuffle, none, and a user's own."""

from collections import Counter

import pytest

from flakelog.testing import TopologyDriver
from spout.grouping import stable_hash, two_choices
from spout.topology import Topology, TopologyError
from tests.spout.test_executor import Numbers, driver_of, seen, spout_of
from tests.spout.worlds import Collect


@pytest.mark.parametrize("grouping", ["none", "local_or_shuffle"])
def test_in_one_process_none_and_local_or_shuffle_are_shuffle(grouping):
    driver = driver_of(lambda t: getattr(t.bolt("collect", Collect(), parallelism=5), grouping)("numbers")).run()
    assert [len(numbers) for numbers in seen(driver)] == [2, 2, 2, 2, 2]


def test_partial_key_gives_equal_values_to_two_tasks_and_each_an_equal_share():
    def connect(topology):
        topology.bolt("collect", Collect(), parallelism=8).partial_key("numbers", "parity")

    driver = driver_of(connect, Numbers(1_000)).run()
    tasks = {}
    for index, bolt in enumerate(driver.tasks("collect")):
        for _, parity in bolt.seen:
            tasks.setdefault(parity, Counter())[index] += 1
    assert not tasks["even"].keys() & tasks["odd"].keys(), "these two values share no task"
    assert [sorted(counts.values()) for counts in tasks.values()] == [[250, 250]] * 2


def test_two_choices_are_two_different_tasks_and_every_pair_occurs():
    pairs = Counter(two_choices(stable_hash([f"key {n}"]), 8) for n in range(10_000))
    assert len(pairs) == 8 * 7 and min(pairs.values()) > 100
    assert two_choices(12345, 1) == (0, 0)


def test_a_function_may_choose_one_task_or_several():
    def choose(values, tasks):
        return tasks[0] if values[0] else tasks[1:]

    driver = driver_of(lambda t: t.bolt("collect", Collect(), parallelism=3).custom("numbers", choose)).run()
    assert seen(driver) == [[1, 2, 3, 4, 5, 6, 7, 8, 9], [0], [0]]


class Storms:
    """A grouping with Storm's two methods."""

    def prepare(self, component, stream, tasks):
        self.prepared = (component, stream, len(tasks))
        self.tasks = tasks

    def choose_tasks(self, task, values):
        assert self.prepared == ("numbers", "default", 2) and task == 1
        return [self.tasks[values[0] % 2]]


def test_an_object_with_storms_methods_may_choose():
    driver = driver_of(lambda t: t.bolt("collect", Collect(), parallelism=2).custom("numbers", Storms())).run()
    assert seen(driver) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]] and len(spout_of(driver).acked) == 10


@pytest.mark.parametrize("chosen", [99, [2, 99], "all", None])
def test_a_choice_that_is_no_receiving_task_is_named(chosen):
    topology = Topology("t")
    topology.spout("numbers", Numbers())
    topology.bolt("collect", Collect()).custom("numbers", lambda values, tasks: chosen)
    with pytest.raises(ValueError, match=r"of stream 'default' of 'numbers' chose .*; the receiving tasks are \(2,\)"):
        TopologyDriver(topology).run()


def test_what_cannot_choose_is_refused():
    with pytest.raises(TopologyError, match="'fields' groups the tuples of 'numbers': give a function, or an object"):
        Topology("t").bolt("collect", Collect()).custom("numbers", "fields")


def nested(depth):
    value = ()
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.parametrize(
    "value, reason", [([1], r"cannot group by \[1\]"), ({}, "cannot group by {}"), (nested(100_000), "nested so deep")]
)
def test_a_value_without_a_stable_hash_is_a_type_error_of_one_line(value, reason):
    with pytest.raises(TypeError, match=reason) as refused:
        stable_hash([value])
    assert len(str(refused.value)) < 200


def test_every_nan_has_one_hash():
    assert stable_hash([float("nan")]) == stable_hash([float("inf") - float("inf")])
