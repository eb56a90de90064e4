"""flakelog.testing: a broker whose clients need TLS or a login, and what a test gives to its clients."""

import pytest
from confluent_kafka import Producer

from broker.client.blocking import Client
from broker.client.errors import NotAuthenticated, Unreachable
from flakelog import Consumer
from flakelog.testing import Broker
from flakelog.testing.security import PASSWORD
from tests.patience import MS, SECONDS


@pytest.mark.parametrize(("security", "nodes"), [("SSL", 1), ("SASL_PLAINTEXT", 1), ("SASL_SSL", 2)])
def test_clients_with_its_properties_are_served_and_others_are_not(security, nodes):
    with Broker(topics={"flights": 3}, security=security, nodes=nodes) as broker:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        producer = Producer(settings | broker.librdkafka_properties)
        producer.produce("flights", "LH 1")
        assert producer.flush(SECONDS) == 0
        broker.kill()
        broker.restart()
        own = {"timeout_ms": MS, "security": broker.client_properties}
        with Consumer(broker.bootstrap_servers, "flights", group="readers", **own) as consumer:
            assert next(consumer).value == b"LH 1"
        with Client(broker.bootstrap_servers) as stranger, pytest.raises(Unreachable, match="security.protocol"):
            stranger.topics()


def test_a_wrong_password_and_an_authorizer_can_be_tested():
    settings = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    with Broker(topics={"flights": 1}, settings=settings, security="SASL_SSL") as broker:
        assert broker.records("flights") == []
        wrong = dict(broker.client_properties)
        wrong["sasl.jaas.config"] = wrong["sasl.jaas.config"].replace(PASSWORD, "wrong")
        with Client(broker.address, security=wrong) as client, pytest.raises(NotAuthenticated):
            client.topics()


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match="security='TLS': give one of PLAINTEXT, SSL"):
        Broker(security="TLS")
    with pytest.raises(ValueError, match="listeners: with security=SSL the broker has one of its own"):
        Broker(settings={"listeners": "SSL://127.0.0.1:0"}, security="SSL")


def test_a_plain_broker_needs_nothing_of_its_clients():
    broker = Broker()
    assert broker.client_properties == broker.librdkafka_properties == {}
