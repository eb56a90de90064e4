"""The figures of a mirror by topic, their rates, and the document that a process publishes."""

import json

from broker.client.mirror.document import ROWS_MAX, MirrorProcess, document_of, fields_of
from broker.client.mirror.figures import PAUSED, MirrorFigures, MirrorRates, PartitionLag, TopicCounts
from broker.client.mirror.settings import ClusterSettings, MirrorSettings

SETTINGS = MirrorSettings(source=ClusterSettings(servers="a:1"), target=ClusterSettings(servers="b:2"), name="eu")
BEFORE = MirrorFigures(10.0, {"web": TopicCounts(100, 1_000)}, {}, {})
AFTER = MirrorFigures(
    12.0,
    {"web": TopicCounts(300, 3_000, 1), "new": TopicCounts(20, 200)},
    {("web", 0): PartitionLag(300, 350), ("web", 1): PartitionLag(None, 9), ("new", 0): PartitionLag(20, 20)},
    {"old": "it was made again"},
)


def test_rates_are_those_between_two_figures():
    rates = MirrorRates(BEFORE, AFTER)
    assert (rates.records("web"), rates.records("new"), rates.records(), rates.size("web")) == (100, 10, 110, 1_000)
    assert MirrorRates(None, AFTER).records("web") == 25 and MirrorRates(AFTER, AFTER).records() == 0


def test_fields_tell_lag_rates_and_errors_of_each_topic():
    fields = fields_of(SETTINGS, "group", BEFORE, AFTER)
    assert (fields["records"], fields["errors"], fields["lag"], fields["records_per_s"]) == (320, 1, 50, 110.0)
    names = "topic", "records", "records_per_s", "lag", "errors"
    topics = [tuple(row[name] for name in names) for row in fields["topics"]]
    assert topics == [("new", 20, 10.0, 0, 0), ("old", 0, 0.0, None, 0), ("web", 300, 100.0, 50, 1)]


def test_a_document_holds_for_ten_seconds_and_has_the_rows_with_the_most_lag():
    lags = {("web", number): PartitionLag(0, number) for number in range(ROWS_MAX + 5)}
    fields = fields_of(SETTINGS, "group", None, AFTER._replace(partitions=lags))
    document = json.loads(document_of(fields, MirrorProcess("run", "host", 7, 1_000), 5_000))
    assert (document["v"], document["run_id"], document["pid"], document["expires_ms"]) == (1, "run", 7, 15_000)
    assert len(document["partitions"]) == ROWS_MAX and document["partitions"][0]["lag"] == ROWS_MAX + 4


def test_a_lag_that_is_not_known_is_none_and_not_0():
    unknown = AFTER._replace(partitions={("web", 0): PartitionLag(300, None)}, state=PAUSED)
    fields = fields_of(SETTINGS, "group", None, unknown)
    assert (fields["lag"], {row["topic"]: row["lag"] for row in fields["topics"]}["web"]) == (None, None)
    assert fields_of(SETTINGS, "group", None, AFTER._replace(partitions={}))["lag"] is None
