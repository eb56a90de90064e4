"""Topics that `flakelog server --topic` creates."""

import pytest

from flakelog.new_topic import NewTopic, make, parse_topic
from tests.broker.engine_client import EngineBroker


@pytest.mark.parametrize(
    "text, topic",
    [
        ("a", NewTopic("a", None, {})),
        ("a:3", NewTopic("a", 3, {})),
        ("a::retention.ms=5", NewTopic("a", None, {"retention.ms": "5"})),
        (
            "a:3:cleanup.policy=compact,delete,retention.ms=5",
            NewTopic("a", 3, {"cleanup.policy": "compact,delete", "retention.ms": "5"}),
        ),
    ],
)
def test_a_topic_is_a_name_partitions_and_settings(text, topic):
    assert parse_topic(text) == topic


@pytest.mark.parametrize("text", ["", ":3", "a:0", "a:x", "a:3:retention.ms", "a:3:retention.m=5"])
def test_what_is_no_topic_is_refused(text):
    with pytest.raises(ValueError, match="is no topic|is no setting|did you mean"):
        parse_topic(text)


def test_a_topic_that_is_there_stays_as_it_is():
    broker = EngineBroker(num_partitions=4)
    for text in ("a", "a:4", "a:7"):
        make(broker.services, parse_topic(text), broker.now)
    assert len(broker.services.metadata.topic("a").partitions) == 4
    assert broker.reported == ["topic a is there, and keeps its 4 partitions"]
