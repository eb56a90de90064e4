"""A service that the bolts need is down for a while: no message is given up, and the log says so."""

import pytest
from prometheus_client import generate_latest

from flakelog import Bolt, LogSpout, SpoutConfig, Topology
from flakelog.testing import TopologyDriver
from flakelog.topology_figures import registry_of
from flakelog.topology_site import health
from spout.api import Unavailable
from spout.figures.collect import snapshot
from spout.scheme import JsonScheme

DOWN_MS = 2_000


class Store(Bolt):
    """Writes to a service that is down for the first two seconds. Its failures are `error`; None: it never answers."""

    auto_ack = False

    def __init__(self, error):
        self.error = error

    def prepare(self):
        self.called_at_ms = []

    def execute(self, tup):
        self.called_at_ms.append(self.context.now_ms)
        if self.context.now_ms >= DOWN_MS:
            self.ack(tup)
        elif self.error is not None:
            raise self.error


class Reject(Bolt):
    """Fails for every message whose value is in `bad`."""

    def __init__(self, bad):
        self.bad = bad

    def execute(self, tup):
        if tup["value"] in self.bad:
            raise ValueError("this message is bad")


def run(bolt, messages, until_ms, **settings):
    """Run that long with messages 0, 1, ...; return the driver, stopped, and the spout's counts."""
    config = SpoutConfig(**{f"spout_{name}": value for name, value in settings.items()})
    topology = Topology("t")
    topology.spout("orders", LogSpout("orders", config=config))
    topology.bolt("store", bolt).shuffle("orders")
    with TopologyDriver(topology) as test:
        for number in range(messages):
            test.log("orders").append(b"%d" % number)
        test.advance(until_ms)
    return test, test.tasks("orders")[0].counts


def all_bad(messages=50, **settings):
    """Return the driver of a topology whose messages are all bad, stopped after ten minutes, and the spout's counts."""
    return run(Reject({b"%d" % number for number in range(messages)}), messages, 600_000, **settings)


def figures(test):
    return snapshot(test.executor, state="running", started_ms=0, at_ms=test.now_ms, now_ms=test.now_ms)


def outages(test):
    return [text for _, text in test.reports if "outage" in text]


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), Unavailable("maintenance")])
def test_an_outage_of_two_seconds_buries_no_message(error):
    test, counts = run(Store(error), 1_000, 15_000, max_attempts=2)
    assert (counts.acked, test.dead_letters("orders")) == (1_000, [])
    began, over = outages(test)
    assert type(error).__name__ in began and "is over after 3.1 s and 4 failed probes" in over


def test_while_the_service_is_down_only_probes_are_sent():
    test, _ = run(Store(OSError("down")), 1_000, 1_900)
    (store,) = test.tasks("store")
    assert [at_ms for at_ms in store.called_at_ms if at_ms] == [100, 300, 700, 1_500]


def test_a_service_that_never_answers_is_an_outage_too():
    test, counts = run(Store(None), 1_000, 120_000, max_attempts=1)
    assert counts.acked + counts.dead_lettered == 1_000 and counts.dead_lettered < 20
    assert "timeout" in outages(test)[0]


def test_fewer_failures_than_an_outage_needs_are_given_up_after_their_attempts():
    bad = {b"%d" % number for number in range(19)}
    test, counts = run(Reject(bad), 19, 60_000, max_attempts=5)
    assert counts.dead_lettered == 19 and outages(test) == []


def test_bad_messages_among_good_ones_are_no_outage():
    bad = {b"%d" % number for number in range(0, 1_000, 2)}
    test, counts = run(Reject(bad), 1_000, 60_000)
    assert (counts.dead_lettered, counts.acked) == (500, 500) and outages(test) == []


def test_a_new_message_ends_what_bad_ones_made_look_like_an_outage():
    """A probe is a new message if there is one, so a good message does not wait behind the bad ones."""
    topology = Topology("t")
    topology.spout("orders", LogSpout("orders"))
    topology.bolt("store", Reject({b"bad"})).shuffle("orders")
    with TopologyDriver(topology) as test:
        for _ in range(50):
            test.log("orders").append(b"bad")
        assert all("an outage" in text for text in outages(test.advance(600_000)))
        test.log("orders").append(b"good")
        test.advance(60_000)
        assert test.tasks("orders")[0].counts.acked == 1
    assert any("is over" in text for text in outages(test))


def test_messages_that_are_all_bad_are_seen_by_a_person_who_is_told_the_way_out():
    """A program cannot tell bad messages from a bad service, so it loses none, and a person decides."""
    topology = Topology("t")
    topology.spout("orders", LogSpout("orders"))
    topology.bolt("store", Reject({b"bad"})).shuffle("orders")
    with TopologyDriver(topology) as test:
        for _ in range(50):
            test.log("orders").append(b"bad")
        test.advance(600_000)
        taken = figures(test)
        (problem,) = taken.problems
        assert "orders[0]: an outage for 600.0 s, 18 failed probes: ValueError: this message is bad" in problem
        assert "flakelog.spout.outage.max.ms" in problem and "flakelog.spout.outage.after.messages=0" in problem
        (outage,) = taken.component("orders").outages
        assert (outage.type, outage.probes_failed) == ("ValueError", 18)
        assert not health(taken)[0]
        seconds = generate_latest(registry_of(lambda: taken)).decode()
        assert 'flakelog_topology_outage_seconds{component="orders"} 600.0' in seconds
    assert len(outages(test)) == 14 and test.dead_letters("orders") == []


def test_messages_that_are_all_bad_go_to_the_dead_letters_after_the_longest_outage():
    test, counts = all_bad(outage_max_ms=60_000)
    assert counts.dead_lettered == 50 and "count as attempts" in outages(test)[-1]


def test_messages_that_are_all_bad_go_to_the_dead_letters_at_once_without_outages():
    test, counts = all_bad(outage_after_messages=0)
    assert counts.dead_lettered == 50 and outages(test) == []


def test_messages_that_cannot_be_decoded_are_dead_letters_and_no_outage():
    topology = Topology("t")
    topology.spout("orders", LogSpout("orders", scheme=JsonScheme("number")))
    topology.bolt("store", Bolt()).shuffle("orders")
    with TopologyDriver(topology) as test:
        for _ in range(1_000):
            test.log("orders").append(b"no JSON")
        test.advance(10_000)
        assert test.tasks("orders")[0].counts.undecodable == 1_000 and figures(test).problems == []
    assert outages(test) == []


class SomeNeedIt(Bolt):
    """Every `share`-th message needs a service that is down for `down_ms`."""

    def __init__(self, share, down_ms, error=Unavailable):
        self.share, self.down_ms, self.error = share, down_ms, error

    def prepare(self):
        self.tried = []

    def execute(self, tup):
        number = int(tup["value"])
        if number % self.share == 0:
            self.tried.append((number, self.context.now_ms))
            if self.context.now_ms < self.down_ms:
                raise self.error("maintenance")


def some_need_it(share, down_ms, rounds, **settings):
    """Run for `rounds` seconds with 100 new messages in each; return the driver."""
    config = SpoutConfig(**{f"spout_{name}": value for name, value in settings.items()})
    topology = Topology("t")
    topology.spout("orders", LogSpout("orders", config=config))
    topology.bolt("store", SomeNeedIt(share, down_ms)).shuffle("orders")
    test = TopologyDriver(topology)
    for number in range(rounds * 100):
        test.log("orders").append(b"%d" % number)
        if number % 100 == 99:
            test.advance(1_000)
    return test


def test_an_outage_of_a_service_that_few_messages_need_is_one_outage_and_the_others_go_on():
    """It was "an outage" and "is over after 0.0 s" three times a second, when 1 of 50 messages needed the service."""
    test = some_need_it(50, 15_000, 10)
    assert test.tasks("orders")[0].counts.acked == 1_000 - 20, "all that do not need it"
    assert len(outages(test)) == 2 and "other messages go on" in outages(test)[0], "the beginning, and a longer pause"
    assert not health(figures(test))[0] and figures(test).component("orders").outages[0].lasted_ms == 10_000
    test.advance(60_000)
    assert (test.tasks("orders")[0].counts.acked, test.dead_letters("orders")) == (1_000, [])
    assert health(figures(test))[0] and "is over" in outages(test)[-1]
    assert sum("is over" in text for text in outages(test)) == 1
    test.stop()


def test_messages_that_failed_in_it_are_tried_one_at_a_time_with_growing_pauses():
    test = some_need_it(50, 15_000, 1)
    test.advance(10_000)
    (store,) = test.tasks("store")
    assert store.tried == [(0, 0), (50, 0), (0, 100), (50, 300), (0, 700), (50, 1_500), (0, 3_100), (50, 6_300)]
    test.kill()


def test_when_many_in_a_row_need_it_all_emission_pauses():
    test = some_need_it(1, 2_000, 1)
    (store,) = test.tasks("store")
    assert [at_ms for _, at_ms in store.tried if at_ms] == [100, 300, 700]
    test.advance(10_000)
    assert test.tasks("orders")[0].counts.acked == 100 and sum("is over" in text for text in outages(test)) == 1
    test.stop()


def test_at_most_once_all_emission_pauses_from_the_first_unavailable_on():
    """A message that fails is dropped, so the fewest shall fail."""
    test = some_need_it(1, 15_000, 10, guarantee="at-most-once", outage_after_messages=0)
    assert test.tasks("orders")[0].counts.dropped < 110 and outages(test)
    test.kill()


def test_the_partition_of_a_message_that_waits_may_go_to_another_process():
    topology = Topology("t")
    topology.spout("orders", LogSpout("orders", store="kafka"))
    topology.bolt("store", SomeNeedIt(2, 15_000)).shuffle("orders")
    test = TopologyDriver(topology)
    for number in range(4):
        test.log("orders", partitions=2).append(b"%d" % number, number % 2)
    test.advance(1_000)
    (group,) = test.world.groups.values()
    group.revoke(("orders", 0))
    test.advance(30_000)
    assert group.released == [("orders", 0)] and health(figures(test))[0]
    group.assign(("orders", 0))
    test.advance(30_000)
    assert test.world.progress("orders")[0].offset == 2
    test.stop()
