"""The engine: groupings, acking through bolts, timeouts, back-pressure (Storm: Guaranteeing-message-processing)."""

import pytest

from flakelog.testing import TopologyDriver, run_bolt
from spout.api import Bolt, Spout
from spout.bolts import BatchBolt
from spout.config import TopologyConfig
from spout.engine_spout import EngineSpout
from spout.topology import Topology, TopologyError
from tests.spout.worlds import Collect


class Numbers(EngineSpout):
    """A spout that emits 0 to count - 1 as (n, parity), and records the outcome of each."""

    output_fields = ("n", "parity")

    def __init__(self, count=10, tracked=True):
        self.count, self.tracked = count, tracked
        self.next, self.acked, self.failed, self.calls = 0, [], [], []

    def declare_output_fields(self, declarer):
        super().declare_output_fields(declarer)
        declarer.declare_stream("direct", "n", direct=True)

    def next_tuple(self):
        if self.next < self.count:
            self.emit((self.next, ("even", "odd")[self.next % 2]), id=self.next if self.tracked else None)
            self.next += 1

    def next_deadline_ms(self):
        return None

    def ack(self, id):
        self.acked.append(id)

    def fail(self, id):
        self.failed.append((id, self.context.failure))

    def activate(self):
        self.calls.append("activate")

    def deactivate(self):
        self.calls.append("deactivate")

    def close(self):
        self.calls.append("close")


class Double(Bolt):
    """A bolt that emits each number twice, anchored."""

    output_fields = ("n",)

    def execute(self, tup):
        self.emit((tup["n"],))
        self.emit((tup["n"],))


def driver_of(connect, spout=None, **config):
    topology = Topology("t")
    topology.spout("numbers", spout or Numbers())
    connect(topology)
    return TopologyDriver(topology, config=TopologyConfig(**config))


def spout_of(driver):
    return driver.tasks("numbers")[0]


def seen(driver, component="collect"):
    return [[values[0] for values in bolt.seen] for bolt in driver.tasks(component)]


# --- groupings


def test_shuffle_gives_each_task_an_equal_share():
    driver = driver_of(lambda t: t.bolt("collect", Collect(), parallelism=5).shuffle("numbers")).run()
    assert [len(numbers) for numbers in seen(driver)] == [2, 2, 2, 2, 2]


def test_fields_gives_equal_values_to_the_same_task_in_order_in_every_process():
    driver = driver_of(lambda t: t.bolt("collect", Collect(), parallelism=4).fields("numbers", "parity")).run()
    assert seen(driver) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9], [], []]


def test_all_gives_every_task_everything_and_the_tree_waits_for_all_of_them():
    slow = Collect(lambda tup, again: tup["n"] == 3)
    driver = driver_of(lambda t: t.bolt("collect", slow, parallelism=3).all("numbers")).run()
    assert seen(driver) == [list(range(10))] * 3
    assert sorted(spout_of(driver).acked) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_global_gives_the_first_task_everything():
    driver = driver_of(lambda t: t.bolt("collect", Collect(), parallelism=3).global_("numbers")).run()
    assert seen(driver) == [list(range(10)), [], []]


def test_direct_gives_the_task_the_emitter_names():
    class ToLast(Bolt):
        def declare_output_fields(self, declarer):
            declarer.declare_stream("direct", "n", direct=True)

        def execute(self, tup):
            assert self.emit((tup["n"],), stream="direct", task=self.context.tasks_of("collect")[-1])

    def connect(topology):
        topology.bolt("to-last", ToLast()).shuffle("numbers")
        topology.bolt("collect", Collect(), parallelism=3).direct("to-last", stream="direct")

    driver = driver_of(connect).run()
    assert seen(driver) == [[], [], list(range(10))] and len(spout_of(driver).acked) == 10


@pytest.mark.parametrize(
    "emit, reason",
    [
        (lambda bolt: bolt.emit((1, 2)), r"has the fields \(n\), got 2 values"),
        (lambda bolt: bolt.emit((1,), stream="x"), "emits to stream 'x' and declares: default, direct"),
        (lambda bolt: bolt.emit((1,), stream="direct"), "is direct: emit with a task"),
        (lambda bolt: bolt.emit((1,), stream="direct", task=1), r"task 1 receives nothing of 'direct'; these do: \[\]"),
        (lambda bolt: bolt.emit((1,), task=2), "is not declared direct: emit without a task"),
    ],
)
def test_a_wrong_emit_says_what_would_be_right_and_fails_the_tuple(emit, reason):
    class Wrong(Bolt):
        output_fields = ("n",)

        def declare_output_fields(self, declarer):
            super().declare_output_fields(declarer)
            declarer.declare_stream("direct", "n", direct=True)

        def execute(self, tup):
            emit(self)

    def connect(topology):
        topology.bolt("wrong", Wrong()).shuffle("numbers")

    driver = driver_of(connect, Numbers(1)).run()
    ((id, failure),) = spout_of(driver).failed
    assert id == 0
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(failure)


def test_grouping_by_what_has_no_stable_hash_is_refused_by_the_value():
    class Lists(Spout):
        output_fields = ("values",)

        def next_tuple(self):
            self.emit(([1],), id=1)

    topology = Topology("t")
    topology.spout("lists", Lists())
    topology.bolt("collect", Collect()).fields("lists", "values")
    with pytest.raises(TypeError, match=r"cannot group by \[1\]"):
        TopologyDriver(topology).run()


# --- acking


def test_a_tuple_is_acked_when_all_that_came_of_it_is_processed():
    def connect(topology):
        topology.bolt("double", Double()).shuffle("numbers")
        topology.bolt("again", Double()).shuffle("double")
        topology.bolt("collect", Collect(), parallelism=2).shuffle("again")

    driver = driver_of(connect).run()
    assert sorted(spout_of(driver).acked) == list(range(10)) and driver.executor.in_flight == 0
    assert sum(map(len, seen(driver))) == 40


def test_one_failed_descendant_fails_the_tuple_once():
    def connect(topology):
        topology.bolt("double", Double()).shuffle("numbers")
        topology.bolt("collect", Collect(lambda tup, again: tup["n"] == 4)).shuffle("double")

    driver = driver_of(connect).run()
    assert spout_of(driver).failed == [(4, "RuntimeError: on purpose, in collect")]
    assert sorted(spout_of(driver).acked) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert driver.reports == [("collect[0]", "RuntimeError: on purpose")] * 2


def test_a_tuple_nobody_receives_is_acked_and_one_without_an_id_never_is():
    assert sorted(spout_of(driver_of(lambda t: None).run()).acked) == list(range(10))
    driver = driver_of(lambda t: t.bolt("collect", Collect()).shuffle("numbers"), Numbers(tracked=False)).run()
    assert seen(driver) == [list(range(10))] and spout_of(driver).acked == []


def test_an_unanchored_tuple_may_fail_without_failing_what_it_came_from():
    class Loose(Bolt):
        output_fields = ("n",)

        def execute(self, tup):
            self.emit((tup["n"],), anchors=())

    def connect(topology):
        topology.bolt("loose", Loose()).shuffle("numbers")
        topology.bolt("collect", Collect(lambda tup, again: True)).shuffle("loose")

    assert spout_of(driver_of(connect).run()).failed == []


class Keep(Bolt):
    """A bolt that keeps its tuples and acks none."""

    auto_ack = False
    output_fields = ("sum",)

    def __init__(self):
        self.tuples = []

    def execute(self, tup):
        self.tuples.append(tup)


def keep_all(topology):
    topology.bolt("keep", Keep()).shuffle("numbers")


def test_a_tuple_anchored_to_several_fails_all_of_them():
    class Sum(Keep):
        def execute(self, tup):
            super().execute(tup)
            if len(self.tuples) == 3:
                self.emit((sum(t["n"] for t in self.tuples),), anchors=self.tuples)
                for anchor in self.tuples:
                    self.ack(anchor)

    def connect(topology):
        topology.bolt("sum", Sum()).shuffle("numbers")
        topology.bolt("collect", Collect(lambda tup, again: True)).shuffle("sum")

    driver = driver_of(connect, Numbers(3)).run()
    assert [id for id, _ in spout_of(driver).failed] == [0, 1, 2] and seen(driver) == [[3]]


def test_a_second_ack_changes_nothing_and_a_late_anchor_is_refused():
    """A second ack is ignored; in Storm it corrupts the tree's value."""

    class Twice(Keep):
        def execute(self, tup):
            self.emit((tup["n"],))
            self.ack(tup)
            self.ack(tup)
            with pytest.raises(ValueError, match="which it acked or failed before"):
                self.emit((tup["n"],), anchors=[tup])

    def connect(topology):
        topology.bolt("twice", Twice()).shuffle("numbers")
        topology.bolt("collect", Keep()).shuffle("twice")

    driver = driver_of(connect, Numbers(1)).run()
    assert spout_of(driver).acked == [] and driver.reports == []
    (keep,) = driver.tasks("collect")
    keep.ack(keep.tuples[0])
    assert spout_of(driver.run()).acked == [0]


def test_what_takes_longer_than_the_message_timeout_has_failed():
    driver = driver_of(keep_all, Numbers(1), topology_message_timeout_secs=5)
    assert spout_of(driver.advance(4_999)).failed == []
    assert spout_of(driver.advance(1)).failed == [(0, "timeout")]
    (keep,) = driver.tasks("keep")
    keep.ack(keep.tuples[0])
    assert spout_of(driver.run()).acked == []
    assert driver.executor.counts()["numbers"][0].timed_out == 1


# --- limits


def test_no_more_than_max_spout_pending_tuples_are_in_flight():
    driver = driver_of(keep_all, Numbers(1_000), topology_max_spout_pending=7)
    (keep,) = driver.run().tasks("keep")
    assert len(keep.tuples) == 7
    for tup in keep.tuples[:3]:
        keep.ack(tup)
    driver.run()
    assert len(keep.tuples) == 10


def test_full_inboxes_hold_up_bolts_and_spouts_and_nothing_is_lost():
    def connect(topology):
        topology.bolt("double", Double()).shuffle("numbers")
        topology.bolt("collect", Collect()).shuffle("double")

    driver = driver_of(connect, Numbers(2_000), topology_executor_receive_buffer_size=10)
    longest = 0
    while driver.executor.step(0):
        longest = max(longest, *(len(task.inbox) for task in driver.executor._bolts))
    assert longest <= 11, "one execute may put two tuples into a place for one"
    assert len(seen(driver)[0]) == 4_000 and len(spout_of(driver).acked) == 2_000


def test_more_tasks_than_allowed_are_refused():
    topology = Topology("t")
    topology.spout("numbers", Numbers(), parallelism=3)
    with pytest.raises(TopologyError, match="'numbers' asks for 3 tasks; topology.max.task.parallelism allows 2"):
        TopologyDriver(topology, config=TopologyConfig(topology_max_tasks=2))


# --- lifecycle


def test_deactivated_spouts_emit_nothing_and_still_hear_of_acks():
    driver = driver_of(keep_all, Numbers(20), topology_max_spout_pending=5).run()
    driver.executor.deactivate(0)
    (keep,) = driver.tasks("keep")
    for tup in keep.tuples:
        keep.ack(tup)
    driver.run()
    assert (len(spout_of(driver).acked), len(keep.tuples)) == (5, 5)
    driver.executor.activate(0)
    assert len(driver.run().tasks("keep")[0].tuples) == 10
    driver.stop()
    assert spout_of(driver).calls == ["activate", "deactivate", "activate", "deactivate", "close"]


def test_a_tuple_is_in_flight_until_its_spout_has_heard_of_its_end():
    """A tuple is in flight until its spout has its ack; otherwise a stop would store progress without the last acks."""
    driver = driver_of(lambda t: t.bolt("collect", Collect()).shuffle("numbers"), Numbers(3))
    driver.executor.step(0)
    driver.executor.step(0)
    assert seen(driver) == [[0, 1, 2]] and spout_of(driver).acked == []
    assert driver.executor.in_flight == 3
    driver.executor.step(0)
    assert spout_of(driver).acked == [0, 1, 2] and driver.executor.in_flight == 0


def test_what_a_spout_raises_comes_out_of_the_step():
    class Broken(Spout):
        def next_tuple(self):
            raise OSError("gone")

    topology = Topology("t")
    topology.spout("broken", Broken())
    with pytest.raises(OSError, match="gone"):
        TopologyDriver(topology).run()


def test_ticks_come_at_their_interval():
    class Ticks(Collect):
        tick_interval_ms = 250

        def tick(self):
            self.seen.append(self.context.now_ms)

    driver = driver_of(lambda t: t.bolt("ticks", Ticks()).shuffle("numbers"), Numbers(0)).advance(1_000)
    assert driver.tasks("ticks")[0].seen == [250, 500, 750, 1_000]


def test_the_same_topology_runs_the_same_way_every_time():
    def connect(topology):
        topology.bolt("double", Double(), parallelism=2).shuffle("numbers")
        topology.bolt("collect", Collect(), parallelism=3).shuffle("double")

    assert seen(driver_of(connect, Numbers(50)).run()) == seen(driver_of(connect, Numbers(50)).run())


# --- batches and the driver itself


class SumBatch(BatchBolt):
    output_fields = ("sum",)
    batch_size = 3
    tick_interval_ms = 100

    def process_batch(self, batch):
        numbers = [tup["n"] for tup in batch]
        if 7 in numbers:
            raise RuntimeError("rolled back")
        self.emit((sum(numbers),), anchors=batch)


def test_a_batch_is_acked_when_it_is_worked_off_and_failed_as_a_whole():
    result = run_bolt(SumBatch(), [(n,) for n in range(10)], fields=("n",))
    assert result.emitted == [(3,), (12,), (9,)]
    assert sorted(result.acked) == [(0,), (1,), (2,), (3,), (4,), (5,), (9,)]
    assert sorted(result.failed) == [(6,), (7,), (8,)] and result.errors == ["RuntimeError: rolled back"]


def test_an_incomplete_batch_waits_for_its_tick():
    assert run_bolt(SumBatch(), [(1,)], fields=("n",), advance_ms=99).emitted == []
    assert run_bolt(SumBatch(), [(1,)], fields=("n",), advance_ms=100).emitted == [(1,)]


def test_a_field_that_is_not_there_is_named_with_those_that_are():
    class Typo(Bolt):
        def execute(self, tup):
            tup["carier"]

    (error,) = run_bolt(Typo(), [(1, 2)], fields=("id", "carrier")).errors
    assert "inputs emits no 'carier' to 'default'; its fields are: id, carrier" in error
