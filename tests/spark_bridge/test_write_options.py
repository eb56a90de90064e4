"""The options of a write, and the producer's settings that follow from them."""

import pytest

from spark_bridge.selection.option_table import OptionError
from spark_bridge.selection.write_options import parse_write

HERE = {"kafka.bootstrap.servers": "one:9092,two"}


def test_the_defaults_are_those_of_the_java_producer():
    options = parse_write(HERE)
    assert (options.topic, options.block_ms, options.warnings) == (None, 60_000, ())
    assert dict(options.producer) == {
        "bootstrap.servers": "one:9092,two:9092",
        "client.id": "flakelog-spark",
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": "none",
        "delivery.timeout.ms": 120_000,
        "partitioner": "murmur2_random",
        "message.max.bytes": 1_048_576,
        "queue.buffering.max.kbytes": 65_536,
    }


def test_a_producers_settings_are_honoured_by_their_java_names():
    given = {
        "topic": " t ", "kafka.acks": "-1", "kafka.compression.type": "ZSTD", "kafka.linger.ms": "20",
        "kafka.batch.size": "5000", "kafka.client.id": "me", "kafka.max.request.size": "2000000",
        "kafka.buffer.memory": "1048576", "kafka.max.block.ms": "9",
    }  # fmt: skip
    options = parse_write(HERE | given)
    producer = dict(options.producer)
    assert (options.topic, options.block_ms) == ("t", 9)
    assert producer["acks"] == "all"
    assert producer["compression.type"] == "zstd"
    assert (producer["linger.ms"], producer["batch.size"], producer["message.max.bytes"]) == (20, 5_000, 2_000_000)
    assert (producer["client.id"], producer["queue.buffering.max.kbytes"]) == ("me", 1_024)


@pytest.mark.parametrize(
    "more", [{"acks": "1"}, {"acks": "0"}, {"retries": "0"}, {"max.in.flight.requests.per.connection": "6"}]
)
def test_a_producer_is_idempotent_unless_another_setting_excludes_it(more):
    given = HERE | {f"kafka.{name}": value for name, value in more.items()}
    assert dict(parse_write(given).producer)["enable.idempotence"] is False
    with pytest.raises(OptionError, match=f"kafka.enable.idempotence=true needs .*kafka.{next(iter(more))} is"):
        parse_write(given | {"kafka.enable.idempotence": "true"})


def test_other_options_are_ignored_with_a_warning_each():
    """A job may share the options of its reads and writes, as with the connector."""
    given = {"kafka.send.buffer.bytes": "5", "failOnDataLoss": "false", "checkpointLocation": "/there"}
    assert len(parse_write(HERE | given).warnings) == 2, "the checkpoint is Spark's own"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"kafka.key.serializer": "x"}, "kafka.key.serializer is refused for a write: keys and values are bytes"),
        ({"kafka.partitioner.class": "x"}, "kafka.partitioner.class is refused for a write: it names a Java class"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id is refused for a write: writes are at least once"),
        ({"kafka.security.protocol": "TLS"}, "kafka.security.protocol=TLS: must be one of"),
        ({"kafka.compression.type": "rar"}, "kafka.compression.type is none or gzip or snappy or lz4 or zstd"),
        ({"kafka.acks": "two"}, "kafka.acks is all or -1 or 1 or 0; got 'two'"),
        ({"topics": "t"}, "option topics is not known; is topic meant?"),
        ({"topic": " "}, "topic is empty"),
    ],
)
def test_what_a_write_cannot_have_is_refused(more, says):
    with pytest.raises(OptionError, match=says):
        parse_write(HERE | more)
