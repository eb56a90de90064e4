"""The topics and starts that the options of a stream select."""

import pytest

from spark_bridge.reading.cluster import Description, NoSuchTopic, Topic
from spark_bridge.selection.option_table import OptionError
from spark_bridge.selection.selector import SelectionError
from spark_bridge.selection.stream_log import SelectedLog
from spark_bridge.selection.stream_options import parse_stream


class Log:
    """A cluster with flights (three partitions, offsets 5 to 20, stable to 15), planes, and an internal topic."""

    def __init__(self):
        self.names = ["__consumer_offsets", "flights", "planes"]

    def describe(self, topics=None):
        missing = set(topics or ()) - set(self.names)
        if missing:
            raise NoSuchTopic(f"there is no topic {min(missing)!r}")
        chosen = self.names if topics is None else sorted(topics)
        return Description("c", {n: Topic(n, None, dict.fromkeys(range(3)), n[:2] == "__") for n in chosen})

    def snapshot(self, description):
        return self

    def earliest(self, topic):
        return dict.fromkeys(range(3), 5)

    def latest(self, topic, *, committed=False):
        return dict.fromkeys(range(3), 15 if committed else 20)

    def first_at_time(self, topic, time_ms):
        return {0: 7, 1: 19, 2: None}

    def first_at_id(self, topic, id):
        return {0: 8, 1: 9, 2: None}

    def keeps_ids(self, topic):
        return topic == "flights"


def selected(log=None, moved=None, **options):
    dotted = {name.replace("__", "."): value for name, value in options.items()}
    given = {"kafka.bootstrap.servers": "one:9092"} | dotted
    return SelectedLog(log or Log(), parse_stream(given), (moved if moved is not None else []).append)


def start(stream):
    return stream.initial(stream.snapshot())


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({}, {0: 20, 1: 20, 2: 20}),
        ({"kafka__isolation__level": "read_committed"}, {0: 15, 1: 15, 2: 15}),
        ({"startingOffsets": "earliest"}, {0: 5, 1: 5, 2: 5}),
        ({"startingOffsets": '{"flights": {"0": 6, "1": -1, "2": -2}}'}, {0: 6, 1: 20, 2: 5}),
        ({"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "latest"}, {0: 7, 1: 19, 2: 20}),
        ({"startingId": "1"}, {0: 8, 1: 9, 2: 20}),
    ],
)
def test_a_stream_starts_where_its_options_say(options, starts):
    assert start(selected(subscribe="flights", **options)) == {"flights": starts}


def test_a_pattern_follows_the_topics_that_exist_now():
    log = Log()
    stream = selected(log, subscribePattern=".*")
    assert sorted(stream.snapshot().description.topics) == ["flights", "planes"]
    log.names.append("airports")
    assert sorted(stream.snapshot().description.topics) == ["airports", "flights", "planes"]


def test_an_assignment_sees_its_partitions_only():
    stream = selected(assign='{"flights": [2, 0]}', startingOffsets="earliest")
    assert (stream.snapshot().latest("flights"), start(stream)) == ({0: 20, 2: 20}, {"flights": {0: 5, 2: 5}})


def test_a_topic_that_was_deleted_is_no_topic_of_a_running_stream_and_no_start_of_a_new_one():
    stream = selected(subscribe="flights,gone")
    assert sorted(stream.snapshot().description.topics) == ["flights"]
    with pytest.raises(NoSuchTopic, match="there is no topic 'gone'"):
        start(stream)


def test_a_start_outside_the_log_is_an_error_or_moved_and_told():
    options = {"subscribe": "flights", "startingOffsets": '{"flights": {"0": 1, "1": 6, "2": 99}}'}
    with pytest.raises(SelectionError, match="flights-0 has offsets 5 to 20; the stream was to start at 1"):
        start(selected(**options))
    moved = []
    assert start(selected(moved=moved, failOnDataLoss="false", **options)) == {"flights": {0: 5, 1: 6, 2: 20}}
    assert moved[1] == "flights-2 has offsets 5 to 20; the stream was to start at 99, and starts at 20"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "flights", "startingOffsets": '{"planes": {"0": 5}}'}, "offsets or times are given for planes"),
        ({"subscribe": "flights", "startingOffsets": '{"flights": {"0": 5}}'}, "flights has partitions"),
        ({"subscribe": "flights", "startingTimestamp": "1"}, "flights-2 has no record with a timestamp of 1 ms"),
        ({"subscribe": "planes", "startingId": "1"}, "the broker keeps no ids for topic 'planes'"),
        ({"assign": '{"flights": [0, 7]}'}, r"assign: topic 'flights' has no partitions \[7\]"),
    ],
)
def test_a_start_that_is_not_possible_is_named(options, says):
    with pytest.raises((OptionError, SelectionError), match=says):
        start(selected(**options))
