"""The security of spouts and sinks: checked at once, read where the topology runs, and given to every port."""

from copy import deepcopy

import pytest

from broker.client.security.client_security import ClientSecurity
from flakelog.testing import MemoryWorld, TopologyDriver
from idgen.settings import InvalidSetting
from partition_manager.config import SpoutConfig
from spout.log_sink import LogSink
from spout.log_spout import LogSpout
from spout.topology import Topology, TopologyError
from spout.world import TwistedWorld
from tests.spout.test_world import Reactor

LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ada"}
WITH_PASSWORD = LOGIN | {"sasl.password": "engine"}
BY_VARIABLE = LOGIN | {"sasl.password": "${env:ADA_PASSWORD_OF_THE_TEST}"}
CONFIG = SpoutConfig(spout_max_attempts=1)
each_component = pytest.mark.parametrize("component", (LogSpout, LogSink), ids=("spout", "sink"))


class SecuredWorld(MemoryWorld):
    """A world that keeps the security with which each kind of port was made."""

    def __init__(self):
        super().__init__()
        self.securities = {}

    def fetcher(self, servers, config, *, security):
        self.securities["fetcher"] = security
        return super().fetcher(servers, config)

    def group_member(self, servers, group_id, component, tasks, config, *, security):
        self.securities["member"] = security
        return super().group_member(servers, group_id, component, tasks, config)

    def dead_letters(self, servers, topic, *, security):
        self.securities["dead letters"] = security
        return super().dead_letters(servers, topic)

    def producer(self, servers, *, security):
        self.securities["producer"] = security
        return super().producer(servers)

    def transactor(self, servers, sources, transactional_id, config, *, security):
        self.securities |= {"transactor": security, "sources": sources}
        return super().transactor(servers, sources, transactional_id, config)


def topology(**sink):
    made = Topology("copies")
    made.spout("in", LogSpout("in", store="kafka", config=CONFIG, security=WITH_PASSWORD))
    made.bolt("out", LogSink("out", security=WITH_PASSWORD, **sink)).shuffle("in")
    return made


def securities_of(made):
    """Run the topology over a message that its sink cannot write; return the security of each port."""
    world = SecuredWorld()
    world.topic("in").append(b"hello")
    world.topic("out")
    with TopologyDriver(made, world) as driver:
        driver.advance(1_000)
    return world.securities


def test_a_spout_gives_its_security_to_all_its_ports_and_a_sink_to_its_own():
    ports = dict.fromkeys(("fetcher", "member", "dead letters", "producer"), WITH_PASSWORD)
    assert securities_of(topology(value="no such field")) == ports


def test_a_transaction_knows_the_security_of_the_sink_and_of_the_spouts():
    ports = dict.fromkeys(("fetcher", "member", "transactor"), WITH_PASSWORD)
    assert securities_of(topology(exactly_once=True)) == ports | {"sources": {"127.0.0.1:9092": WITH_PASSWORD}}


def test_sinks_of_one_transaction_have_one_security():
    made = topology(exactly_once=True)
    made.bolt("other", LogSink("out", exactly_once=True)).shuffle("in")
    with pytest.raises(TopologyError, match="'out' and 'other' are sinks .* differ in their security"):
        TopologyDriver(made)


@each_component
def test_a_wrong_property_is_refused_at_once_and_no_error_shows_a_secret(component):
    with pytest.raises(InvalidSetting, match="sasl.pasword=.* is no setting of a client's security") as refused:
        component("in", security=LOGIN | {"sasl.pasword": "engine"})
    assert "engine" not in str(refused.value)
    with pytest.raises(InvalidSetting, match="sasl.jaas.config"):
        component("in", security=LOGIN)


@each_component
def test_a_reference_is_read_where_the_topology_runs(component, monkeypatch):
    security = component("in", security=BY_VARIABLE).security
    assert security == BY_VARIABLE
    with pytest.raises(InvalidSetting, match="the environment has no ADA_PASSWORD_OF_THE_TEST"):
        TwistedWorld(Reactor()).producer("127.0.0.1:1", security=security)
    monkeypatch.setenv("ADA_PASSWORD_OF_THE_TEST", "engine")
    TwistedWorld(Reactor()).producer("127.0.0.1:1", security=security)


def test_the_tasks_of_a_component_share_a_security_that_was_made_for_them():
    security = ClientSecurity.of(WITH_PASSWORD)
    assert deepcopy(LogSpout("in", security=security)).security is security
