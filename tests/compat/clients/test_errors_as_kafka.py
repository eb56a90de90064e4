"""The errors of tests/broker/every_error and the sources of settings are those of a real Apache Kafka node."""

from broker.settings.config_entries import ConfigSource
from tests.broker.any_api import World, codes_of
from tests.broker.every_error.table import CASES
from tests.broker.every_error.texts import Heard
from tests.compat.raw_connection import SocketLine

# Kafka has no default for node.id.
# Without a default the start knows whether security.inter.broker.protocol is given beside inter.broker.listener.name.
DIFFERENT = {"node.id", "security.inter.broker.protocol"}


def codes_or_exception(address, case, version, topic):
    """Return the error codes of Kafka's answer, or the exception that prevented an answer."""
    try:
        return codes_of(case.ask(World(SocketLine(address), case.api, version, topic)))
    except Exception as error:
        return [repr(error)]


def test_kafka_refuses_each_request_with_the_same_error(kafka):
    topic = World(SocketLine(kafka)).topic
    differ = []
    for case in CASES:
        for version in () if case.inside else case.versions:
            codes = codes_or_exception(kafka, case, version, topic)
            if case.kafkas not in codes:
                differ.append(f"{case.api} v{version}: {case.code.name}, Kafka {codes}")
    assert not differ, "\n".join(differ)


def test_kafka_says_what_our_messages_begin_with(kafka):
    heard, topic = Heard(), World(SocketLine(kafka)).topic
    for case in CASES:
        heard.ask(case, World(SocketLine(kafka), case.api, case.versions[-1], topic))
    assert not heard.missing
    assert not heard.others, "\n".join(heard.others)


def sources(address, kind, name):
    """Return {setting: names of its synonyms in order}, without those configured on either server."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    fields = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
    (result,) = World(SocketLine(address), "DescribeConfigs", 4).ask("DescribeConfigs", fields).results
    defaults = ConfigSource.TOPIC, ConfigSource.DEFAULT
    return {config.name: [syn.name for syn in config.synonyms if syn.source in defaults] for config in result.configs}


def test_settings_come_from_where_they_do_in_kafka(kafka, broker):
    for kind in ("topic", "broker"):
        kafkas, ours = (of_one(address, kind) for address in (kafka, broker.address))
        both = (kafkas.keys() & ours.keys()) - DIFFERENT
        assert len(both) > 20 and {name: ours[name] for name in both} == {name: kafkas[name] for name in both}


def of_one(address, kind):
    if kind == "broker":
        return sources(address, 4, "1")
    topic = World(SocketLine(address)).create(1, segment_ms=60_000, preallocate="true", segment_bytes=1 << 20)
    return sources(address, 2, topic)
