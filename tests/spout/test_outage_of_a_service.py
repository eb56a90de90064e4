"""A service that the bolts need is down for a while: no message is given up, and the log says so."""

import pytest

from flakelog import Bolt, LogSpout, SpoutConfig, Topology
from flakelog.testing import TopologyDriver
from spout.api import Unavailable

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
        assert len(outages(test.advance(600_000))) == 1
        test.log("orders").append(b"good")
        test.advance(60_000)
        assert test.tasks("orders")[0].counts.acked == 1 and "is over" in outages(test)[1]
