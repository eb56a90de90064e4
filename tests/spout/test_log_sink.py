"""LogSink writes a topic at least once: a tuple is acked when the broker has its record."""

from dataclasses import replace
from zlib import crc32

import pytest

from broker.record.compression import Codec
from flakelog.testing import MemoryWorld, TopologyDriver
from idgen.settings import InvalidSetting
from spout.api import Bolt
from spout.config import SpoutConfig
from spout.log_sink import LogSink
from spout.log_spout import LogSpout
from spout.partitioner import murmur2, partition_of
from spout.sink_batches import SinkBatches
from spout.sink_config import SinkConfig
from spout.sink_ports import Counted, Output
from spout.topology import Topology

SPOUT = SpoutConfig(spout_max_attempts=2, spout_retry_initial_ms=10)


class Change(Bolt):
    """Emits each message's key and a value made from it."""

    output_fields = ("key", "value")

    def __init__(self, change):
        self.change = change

    def execute(self, tup):
        self.emit((tup["key"], self.change(tup["value"])))


def world_of(*values, partitions=2):
    world = MemoryWorld()
    for number, value in enumerate(values):
        world.topic("in").append(value, key=b"%d" % (number % 3))
    world.topic("out", partitions=partitions)
    return world


def copying(change=lambda value: value, spout=SPOUT, **sink):
    topology = Topology("copy")
    topology.spout("in", LogSpout("in", config=spout))
    topology.bolt("change", lambda: Change(change)).shuffle("in")
    topology.bolt("out", LogSink("out", **sink)).fields("change", "key")
    return topology


def written(world):
    log = world.topic("out")
    return [record.value for partition in log.kept for record in log.records(partition)]


def test_each_tuple_becomes_a_record():
    world = world_of(b"a", b"b", None, "text")
    with TopologyDriver(copying(), world) as driver:
        driver.advance(100)
    assert sorted(written(world), key=str) == sorted([b"a", b"b", None, b"text"], key=str)
    assert world.progress("in")[0].offset == 4


def test_records_of_a_key_keep_their_order_and_their_partition():
    world = world_of(*(b"%d" % n for n in range(30)))
    with TopologyDriver(copying(), world) as driver:
        driver.advance(100)
    for partition in (0, 1):
        records = world.topic("out").records(partition)
        for key in {record.key for record in records}:
            numbers = [int(record.value) for record in records if record.key == key]
            assert numbers == list(range(int(key), 30, 3))


def test_while_the_broker_is_down_messages_wait_and_the_outage_is_reported():
    world = world_of(b"a", b"b")
    world.topic("out").down = "broker down"
    with TopologyDriver(copying(spout=replace(SPOUT, spout_max_attempts=0)), world) as driver:
        driver.advance(60_000)
        assert not written(world)
        world.topic("out").down = None
        driver.advance(120_000)
    assert sorted(written(world)) == [b"a", b"b"] and world.progress("in")[0].offset == 2
    assert ("out[0]", "topic out: broker down") in driver.reports


def test_a_missing_topic_is_named():
    world = world_of(b"a")
    topology = Topology("copy")
    topology.spout("in", LogSpout("in", config=SPOUT))
    topology.bolt("out", LogSink("nowhere")).shuffle("in")
    driver = TopologyDriver(topology, world).advance(10)
    assert ("out[0]", "topic nowhere: topic nowhere: UNKNOWN_TOPIC_OR_PARTITION") in driver.reports


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda value: {"a": 1}, "TypeError: field 'value' holds a dict: LogSink writes bytes and text"),
        (lambda value: b"x" * 200, "ValueError: a record of 241 bytes is over the 100 of flakelog.sink.record.bytes"),
    ],
)
def test_a_tuple_that_makes_no_record_fails_by_name_and_becomes_a_dead_letter(change, error):
    world = world_of(b"a")
    with TopologyDriver(copying(change, config=SinkConfig(sink_record_bytes=100)), world) as driver:
        driver.advance(1_000)
    (letter,) = driver.dead_letters("in")
    assert letter.error.startswith(error) and not written(world)


def test_a_field_that_the_tuples_do_not_have_is_named():
    world = world_of(b"a")
    with TopologyDriver(copying(value="total"), world) as driver:
        driver.advance(1_000)
    (letter,) = driver.dead_letters("in")
    assert "change emits no 'total' to 'default'; its fields are: key, value" in letter.error


def test_a_full_sink_refuses_tuples_as_unavailable():
    world = world_of(b"a", b"b")
    with TopologyDriver(copying(config=SinkConfig(sink_held_bytes=1)), world) as driver:
        driver.advance(60_000)
    assert sorted(written(world)) == [b"a", b"b"]


@pytest.mark.parametrize("topic", ["", None, 7])
def test_a_sink_without_the_name_of_a_topic_is_refused(topic):
    with pytest.raises(ValueError, match="a LogSink needs the name of a topic"):
        LogSink(topic)


def test_servers_that_are_no_addresses_are_refused():
    with pytest.raises(ValueError, match="'nonsense' is no address; give host:port"):
        LogSink("out", servers="nonsense")


def test_a_record_that_the_topic_never_takes_becomes_a_dead_letter_that_names_size_and_limit():
    world = world_of(b"a", b"large" * 10, b"b")
    world.topic("out").record_bytes_max = 40
    with TopologyDriver(copying(), world) as driver:
        driver.advance(5_000)
    (letter,) = world.letters("in")
    assert "refuses a record of 51 bytes: its limit is 40" in letter.error
    assert sorted(written(world)) == [b"a", b"b"]


def test_batches_have_the_codec_that_is_set():
    config = SinkConfig(sink_compression="zstd")
    batches = SinkBatches("out", config)
    batches.add(Output("out", None, b"a"), "a")
    batches.take()
    batches.answered(0, Counted(1))
    ((_, request),) = batches.take()
    assert request.codec is Codec.ZSTD
    with pytest.raises(InvalidSetting, match="flakelog.sink.compression"):
        SinkConfig(sink_compression="brotli")


@pytest.mark.parametrize(
    "key, hashed",
    [(b"21", 1173551340), (b"foobar", 1357151166), (b"a-little-bit-long-string", 1161502112), (b"abc", 479470107)],
)
def test_the_partition_of_a_key_can_be_that_of_kafkas_java_clients(key, hashed):
    """The first three are of Kafka's UtilsTest.testMurmur2, without the highest bit; librdkafka has the last."""
    assert murmur2(key) == hashed
    assert partition_of(key, 7, 0, "murmur2") == hashed % 7
    assert partition_of(key, 7, 0, "crc32") == crc32(key) % 7


@pytest.mark.parametrize("partitioner, partition", [("crc32", crc32(b"0") % 5), ("murmur2", murmur2(b"0") % 5)])
@pytest.mark.parametrize("exactly_once", [False, True])
def test_the_records_lie_where_the_partitioner_says(exactly_once, partitioner, partition):
    world = MemoryWorld()
    world.topic("in").append(b"a", key=b"0")
    world.topic("out", partitions=5)
    config = SinkConfig(sink_partitioner=partitioner)
    topology = Topology("copy")
    topology.spout("in", LogSpout("in", store="kafka"))
    topology.bolt("out", LogSink("out", exactly_once=exactly_once, config=config)).shuffle("in")
    with TopologyDriver(topology, world) as driver:
        driver.advance(1_000)
    assert [record.value for record in world.topic("out").records(partition)] == [b"a"]
