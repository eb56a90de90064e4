"""Options of a read: the Kafka connector's names and rules, and Flakelog's; none is ignored."""

import pytest

from spark_bridge.reading.network import Address
from spark_bridge.reading.row import DEFAULT, STORED
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.selection.options import OptionError, Topics, parse
from spark_bridge.selection.selector import EARLIEST, LATEST, TimeBound, by_id, by_offset, by_time

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
FLIGHTS = SERVERS | {"subscribe": "flights"}


def test_the_least_that_can_be_asked_is_all_of_a_topic():
    options = parse(FLIGHTS)
    assert options.servers == (Address("127.0.0.1", 9092),)
    assert options.topics == Topics(names=("flights",))
    assert options.selector == by_offset(EARLIEST, LATEST)
    assert options.columns == DEFAULT
    assert (options.manifest, options.settings.compacted) == (None, None)


def test_names_of_options_are_of_any_case():
    """Names match in any case, because Spark folds the case of the names it passes."""
    folded = {name.lower(): value for name, value in (FLIGHTS | {"startingId": "5", "minPartitions": "3"}).items()}
    options = parse(folded)
    assert (options.selector, options.min_partitions) == (by_id(5, None), 3)


@pytest.mark.parametrize(
    ("more", "selector"),
    [
        ({"startingOffsets": "Earliest", "endingOffsets": "latest"}, by_offset(EARLIEST, LATEST)),
        ({"startingOffsets": '{"flights": {"0": 17, "1": -2}}'}, by_offset({"flights": {0: 17, 1: -2}}, LATEST)),
        ({"startingTimestamp": "100", "endingTimestamp": "200"}, by_time(100, 200)),
        ({"endingTimestamp": "200", "startingOffsetsByTimestampStrategy": "latest"}, by_time(None, 200)),
        ({"startingId": "100"}, by_id(100, None)),
        ({"startingId": "100", "endingId": "9223372036854775807"}, by_id(100, (1 << 63) - 1)),
    ],
)
def test_what_is_selected(more, selector):
    assert parse(FLIGHTS | more).selector == selector


@pytest.mark.parametrize(
    ("option", "topics"),
    [
        ({"subscribe": "a, b,"}, Topics(names=("a", "b"))),
        ({"subscribePattern": "fl.*"}, Topics(pattern="fl.*")),
        ({"assign": '{"a": [1, 0, 1]}'}, Topics(partitions={"a": (0, 1)})),
    ],
)
def test_topics_are_named_in_one_of_three_ways(option, topics):
    assert parse(SERVERS | option).topics == topics


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"\p{Alpha}+", r"bad escape \\p at position 0"),
        (r"\Qa.b\E", r"bad escape \\Q at position 0"),
        ("(?<name>a)", "unknown extension"),
        ("a(?i)b", "global flags not at the start"),
        ("[a-z&&[^bc]]", r"it has \[ or && between \[ and \], which is a set within a set in Java only"),
        ("[a-c[x-z]]", r"it has \[ or && between"),
    ],
)
def test_a_pattern_that_java_reads_in_another_way_is_refused(pattern, reason):
    with pytest.raises(OptionError, match=f"is no regular expression of Python's: {reason}.*lacks Java's"):
        parse(SERVERS | {"subscribePattern": pattern})


@pytest.mark.parametrize(
    "option",
    [
        {"startingTimestamp": "9" * 5_000},
        {"startingOffsetsByTimestamp": '{"flights": {"0": 9223372036854775808}}'},
        {"startingOffsets": '{"flights": {"2147483648": 5}}'},
    ],
)
def test_a_number_that_fits_no_request_is_refused_by_the_name_of_its_option(option):
    with pytest.raises(OptionError, match=next(iter(option))):
        parse(FLIGHTS | option)


@pytest.mark.parametrize("pattern", ["[a-z]+", r"flights\.[^_]*", r"[\[\]]a", "(?:a|b)-[0-9]{2}[x-z]"])
def test_a_pattern_that_java_reads_alike_is_taken(pattern):
    assert parse(SERVERS | {"subscribePattern": pattern}).topics.pattern == pattern


def test_columns_and_headers_are_chosen():
    """A read names its columns, because Spark prunes no columns of a Python source (SPARK-51713)."""
    assert parse(FLIGHTS | {"columns": "value, OFFSET"}).columns == ("value", "offset")
    assert parse(FLIGHTS | {"includeHeaders": "true"}).columns == STORED


def test_a_manifest_is_the_whole_selection():
    assert parse(SERVERS | {"manifest": "/m.json"}).manifest == "/m.json"
    with pytest.raises(OptionError, match="a manifest says what is read; subscribe, minPartitions cannot"):
        parse(FLIGHTS | {"manifest": "/m.json", "minPartitions": "2"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers is needed"),
        (SERVERS, "exactly one of subscribe, assign, subscribePattern is needed; got none"),
        (FLIGHTS | {"assign": '{"a": [0]}'}, r"exactly one of .* got \['subscribe', 'assign'\]"),
        (SERVERS | {"subscribe": " ,"}, "subscribe names no topic; give names with a comma between"),
        (SERVERS | {"assign": "[]"}, "assign is JSON like"),
        (SERVERS | {"assign": '{"a": ["0"]}'}, "assign is JSON like"),
        (SERVERS | {"assign": "{"}, "assign is no JSON"),
        (FLIGHTS | {"startingOffset": "5"}, "option startingOffset is not known; is startingOffsets meant?"),
        (FLIGHTS | {"kafka.security.protocol": "TLS"}, "kafka.security.protocol=TLS: must be one of PLAINTEXT, SSL"),
        (FLIGHTS | {"kafka.sasl.mechanism": "PLAIN"}, "kafka.sasl.mechanism=.hidden.: is not used by security.proto"),
        (FLIGHTS | {"startingOffsets": "latest"}, "cannot start at latest"),
        (FLIGHTS | {"startingOffsets": "newest"}, "startingOffsets is no JSON"),
        (FLIGHTS | {"endingOffsets": '{"flights": 5}'}, "endingOffsets is earliest, latest or JSON"),
        (FLIGHTS | {"startingId": "1", "startingOffsets": "earliest"}, "startingId is exact; startingOffsets cannot"),
        (FLIGHTS | {"startingTimestamp": "5", "endingTimestamp": "4"}, "the end lies before the start"),
        (FLIGHTS | {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "x"}, "error or latest; got 'x'"),
        (FLIGHTS | {"startingId": "-5"}, "startingId is a whole number from 0"),
        (FLIGHTS | {"minPartitions": "many"}, "minPartitions is a whole number"),
        (FLIGHTS | {"kafka.max.partition.fetch.bytes": "0"}, "partition.fetch.bytes is a whole number from 1"),
        (FLIGHTS | {"includeHeaders": "yes"}, "includeHeaders is true or false; got 'yes'"),
        (FLIGHTS | {"columns": "value,colour"}, "columns colour asked for; there are key, value"),
        (FLIGHTS | {"kafka.bootstrap.servers": "host:x"}, "kafka.bootstrap.servers: 'host:x' is no address"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_named(options, says):
    with pytest.raises(OptionError, match=says):
        parse(options)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"startingOffsets": '{"flights": {"0": -1}}'}, "flights-0 is -1, latest: a batch read cannot start there"),
        ({"endingOffsets": '{"flights": {"0": -2}}'}, "flights-0 is -2, earliest: a batch read cannot end there"),
        ({"startingOffsets": '{"flights": {"0": 1.7}}'}, "startingOffsets is earliest, latest or JSON"),
        ({"startingOffsets": '{"flights": {"0": true}}'}, "startingOffsets is earliest, latest or JSON"),
        ({"endingOffsets": '{"flights": {"0": "17"}}'}, "endingOffsets is earliest, latest or JSON"),
        ({"minPartitions": "0"}, "minPartitions is a whole number from 1"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition is a whole number from 1"),
    ],
)
def test_what_the_connector_refuses_is_refused(more, says):
    with pytest.raises(OptionError, match=says):
        parse(FLIGHTS | more)


def test_an_empty_pattern_is_refused():
    with pytest.raises(OptionError, match="subscribePattern is empty"):
        parse(SERVERS | {"subscribePattern": " "})


@pytest.mark.parametrize(
    ("more", "start"),
    [
        ({"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"t": {"0": 6}}'}, TimeBound(5)),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 6}}', "startingOffsets": "latest"}, TimeBound({"t": {0: 6}})),
    ],
)
def test_a_time_for_all_comes_before_times_for_each_and_these_before_offsets(more, start):
    """The precedence of the Structured Streaming + Kafka Integration Guide, on each side."""
    assert parse(FLIGHTS | more).selector.start == start


def test_settings_of_the_connector_reach_the_tasks_and_the_driver():
    options = parse(
        FLIGHTS
        | {
            "fetchOffset.numRetries": "2",
            "fetchOffset.retryIntervalMs": "30",
            "kafkaConsumer.pollTimeoutMs": "400",
            "kafka.request.timeout.ms": "5000",
            "kafka.client.id": "me",
            "kafka.max.partition.fetch.bytes": "2000",
            "kafka.fetch.max.bytes": "1000",
            "kafka.fetch.max.wait.ms": "60",
        }
    )
    driver, tasks = options.driver_settings, options.settings
    assert [driver.patience.attempts, driver.patience.pause_after(1), driver.patience.pause_after(9)] == [2, 30, 30]
    assert (driver.request_timeout_ms, tasks.request_timeout_ms) == (5000, 400)
    assert (driver.client_id, tasks.client_id) == ("me", "me")
    assert (tasks.fetch_bytes, tasks.fetch_wait_ms) == (1000, 60)
    assert tasks.patience == ReadSettings().patience


def test_isolation_and_data_loss_reach_the_tasks():
    options = parse(FLIGHTS | {"kafka.isolation.level": "read_committed", "failOnDataLoss": "false"})
    assert (options.settings.read_committed, options.settings.fail_on_data_loss) == (True, False)
    assert not parse(FLIGHTS).settings.read_committed and parse(FLIGHTS).settings.fail_on_data_loss


def test_binding_is_pinned_unless_it_is_late():
    assert [parse(FLIGHTS | {"flakelog.binding": binding}).late for binding in ("late", "pinned")] == [True, False]
    with pytest.raises(OptionError, match="flakelog.binding cannot be given beside it"):
        parse(SERVERS | {"manifest": "m.json", "flakelog.binding": "late"})
