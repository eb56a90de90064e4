"""Options and a cluster to a manifest, which fixes the selection."""

import pytest

from spark_bridge.reading import cluster as asking
from spark_bridge.reading.network import addresses
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.selection.manifest import ManifestError
from spark_bridge.selection.options import OptionError, parse
from spark_bridge.selection.pinned import pin, select
from tests.spark_bridge.memory_cluster import DESCRIBE_CONFIGS, KAFKA_4_0, TOPIC_ID, Cluster

SERVERS = {"kafka.bootstrap.servers": "bootstrap:9092"}


def options(**given):
    return parse(SERVERS | ({} if "manifest" in given else {"subscribe": "t"}) | given)


def log(end=90, **more):
    return asking.Cluster(Cluster(end, **more))


def test_latest_is_the_one_there_is_when_it_is_pinned():
    pinned = pin(options(), log(90, start=10), None, "0.1.0")
    assert pinned.manifest.ranges == (OffsetRange("t", 0, 10, 90), OffsetRange("t", 1, 10, 90))
    assert pinned.manifest.selector == {"start": {"offsets": "earliest"}, "end": {"offsets": "latest"}}
    assert (pinned.manifest.cluster_id, pinned.manifest.topic_ids) == ("c", {"t": str(TOPIC_ID)})
    assert pinned.servers == addresses("bootstrap:9092")


def test_ids_select_exact_offsets():
    manifest = select(options(startingId="1020", endingId="1050"), log(), "0.1.0")
    assert [(offset_range.start, offset_range.end) for offset_range in manifest.ranges] == [(20, 50), (20, 50)]


def test_ids_of_a_broker_that_keeps_none_are_refused():
    """A selection by id is an error without ids; Apache Kafka would take ids for times, and the read would be empty."""
    with pytest.raises(OptionError, match="keeps no ids for topic 't'"):
        select(options(startingId="1020"), log(ids=False), "0.1.0")


def test_rows_must_have_ids_exactly_where_the_broker_keeps_them():
    assert pin(options(), log(), None, "0.1.0").settings.require_ids is True
    assert pin(options(), log(ids=False), None, "0.1.0").settings.require_ids is False


def test_tasks_are_split_before_they_are_written_down():
    manifest = select(options(minPartitions="4"), log(), "0.1.0")
    assert [offset_range.offsets for offset_range in manifest.ranges] == [45] * 4


def test_partitions_can_be_assigned():
    assigned = parse(SERVERS | {"assign": '{"t": [1]}', "startingOffsets": '{"t": {"1": 5}}'})
    assert select(assigned, log(), "0.1.0").ranges == (OffsetRange("t", 1, 5, 90),)
    with pytest.raises(OptionError, match=r"topic 't' has no partitions \[7\]"):
        select(parse(SERVERS | {"assign": '{"t": [1, 7]}'}), log(), "0.1.0")


def test_a_pattern_takes_whole_names_and_no_internal_topic():
    """A pattern matches whole names and no internal topic, as in Kafka's consumers (exclude.internal.topics)."""
    assert set(select(parse(SERVERS | {"subscribePattern": ".*"}), log(), "0.1.0").topic_ids) == {"t"}
    assert set(select(parse(SERVERS | {"subscribePattern": "_"}), log(), "0.1.0").topic_ids) == set()
    with pytest.raises(OptionError, match="no regular expression"):
        select(parse(SERVERS | {"subscribePattern": "("}), log(), "0.1.0")


def test_a_manifest_is_read_as_it_is_though_the_log_went_on():
    manifest = select(options(), log(50), "0.1.0")
    pinned = pin(options(manifest="m.json"), log(90), manifest, "9.9.9")
    assert pinned.manifest == manifest
    assert pinned.topic_id(manifest.ranges[0]) == str(TOPIC_ID)


def test_a_manifest_of_another_log_is_refused():
    manifest = select(options(), log(50), "0.1.0")
    network = Cluster(50)
    network.topic_id = None
    assert pin(options(manifest="m"), asking.Cluster(network), manifest, "0.1.0").manifest == manifest
    network.topic_id = type(TOPIC_ID)(int=5)
    with pytest.raises(ManifestError, match="deleted and made again"):
        pin(options(manifest="m"), asking.Cluster(network), manifest, "0.1.0")


def test_offsets_for_a_topic_that_is_not_read_are_refused():
    with pytest.raises(OptionError, match="offsets or times are given for other; the topics of this read are: t"):
        select(options(startingOffsets='{"t": {"0": 5, "1": 5}, "other": {"0": 0}}'), log(), "0.1.0")


def test_offsets_that_are_lost_are_left_out_if_the_reader_allows_it():
    """failOnDataLoss=false is for reads: what is missing is counted, and the rest is read."""
    given = {"startingOffsets": '{"t": {"0": 2, "1": 20}}', "failOnDataLoss": "false"}
    pinned = pin(options(**given), log(90, start=10), None, "0.1.0")
    assert [(offset_range.start, offset_range.end) for offset_range in pinned.manifest.ranges] == [(10, 90), (20, 90)]
    assert [lost.within for lost in pinned.lost] == [OffsetRange("t", 0, 2, 10)]


def test_a_replay_or_a_load_leaves_nothing_out():
    with pytest.raises(OptionError, match="failOnDataLoss=false is for reads only"):
        select(options(failOnDataLoss="false"), log(), "0.1.0")


@pytest.mark.parametrize(
    ("given", "may_lack"), [({}, True), ({"compacted": "false"}, False), ({"compacted": "true"}, True)]
)
def test_a_topic_that_the_broker_compacts_may_lack_offsets_unless_the_user_says_otherwise(given, may_lack):
    """The connector reads such a topic without an option."""
    cluster = Cluster(90, versions=KAFKA_4_0 | {DESCRIBE_CONFIGS: (0, 4)})
    cluster.policies = {"t": "compact"}
    pinned = pin(options(**given), asking.Cluster(cluster), None, "0.1.0")
    assert pinned.settings.may_lack_offsets("t") is may_lack
    assert pinned.settings.may_lack_offsets("other") is (given == {"compacted": "true"})


def test_the_isolation_is_in_the_manifest_and_in_the_tasks_settings():
    pinned = pin(options(**{"kafka.isolation.level": "read_committed"}), log(), None, "0.1.0")
    assert pinned.manifest.read_committed and pinned.settings.read_committed
    again = pin(options(manifest="m.json"), log(), pinned.manifest, "0.1.0")
    assert again.settings.read_committed
