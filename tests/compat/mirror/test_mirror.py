"""A mirror between two brokers: what it copies, what it leaves out, where it stops, and where consumers go on."""

import pytest

from broker.client.config_admin import TOPIC, Resource, describe_configs
from broker.client.consumer import Consumer
from broker.client.group_requests import fetch_offsets, find_coordinator
from broker.client.mirror.names import MirrorRefused
from broker.client.mirror.progress import is_one_way
from broker.client.producer import Producer
from broker.client.topic_admin import add_partitions
from flakelog.operations import configs
from flakelog.operations.groups import commit
from flakelog.operations.groups import committed as offsets_of
from flakelog.operations.topics import delete_records
from tests.compat.mirror.mirror_process import end_of, has_all, records_of, send
from tests.patience import MS, until


def test_keys_headers_times_partitions_order_and_compression_are_kept(
    source, target, source_client, target_client, mirror_of, topic
):
    source_client.create_topic(topic, 3, {"cleanup.policy": "compact", "min.insync.replicas": "1"})
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        send(source.bootstrap_servers, topic, range(200), compression=codec)
    with mirror_of(topic):
        has_all(target_client, topic, 1_000)
    wanted = records_of(source.bootstrap_servers, topic, 1_000)
    assert records_of(target.bootstrap_servers, topic, 1_000) == wanted and len(wanted) == 3
    codecs = {record.codec for n in range(3) for record in target_client.fetch(topic, n, 0)[0]}
    assert codecs == {0, 1, 2, 3, 4}
    settings = target_client.run(describe_configs(target_client.core, Resource(TOPIC, topic)))
    assert {s.name: s.value for s in settings if s.source == 1} == {"cleanup.policy": "compact"}


def test_aborted_records_and_topics_that_do_not_match_are_not_copied(
    source, source_client, target_client, mirror_of, topic
):
    source_client.create_topic(topic, 1)
    source_client.create_topic(f"{topic}-other", 1)
    with Producer(source.bootstrap_servers, transactional_id=topic) as producer:
        for number in range(6):
            producer.begin()
            producer.send(topic, str(number))
            producer.abort() if number % 2 else producer.commit()
    with mirror_of(topic):
        has_all(target_client, topic, 3)
    assert [record.value for record in target_client.fetch(topic, 0, 0)[0]] == [b"0", b"2", b"4"]
    assert f"{topic}-other" not in {info.name for info in target_client.topics()}


def test_settings_that_change_at_the_source_change_at_the_target(source_client, target_client, mirror_of, topic):
    def own_settings():
        settings = describe(target_client, configs.topic_resource(topic))
        return {setting.name: setting.value for setting in settings if setting.source == configs.TOPIC_SOURCE}

    resource, describe = configs.topic_resource(topic), configs.describe_configs
    source_client.create_topic(topic, 1, {"retention.ms": "86400000", "cleanup.policy": "compact"})
    with mirror_of(topic, settings_ms=200):
        until(lambda: topic in {info.name for info in target_client.topics()}, "the topic at the target")
        configs.alter_configs(source_client, resource, {"retention.ms": "90000000", "cleanup.policy": None})
        until(lambda: own_settings() == {"retention.ms": "90000000"}, "the settings")


def test_a_topic_grows_with_its_source(source_client, target_client, mirror_of, topic):
    source_client.create_topic(topic, 1)
    with mirror_of(topic):
        until(lambda: topic in {info.name for info in target_client.topics()}, "the topic at the target")
        source_client.run(add_partitions(source_client.core, topic, 3))
        until(lambda: target_client.topic(topic).partitions == 3, "three partitions at the target")


def test_the_sources_ids_are_kept_as_headers(source, source_client, target_client, mirror_of, topic):
    source_client.create_topic(topic, 1)
    send(source.bootstrap_servers, topic, range(50), compression="zstd")
    with mirror_of(topic, source_id=True):
        has_all(target_client, topic, 50)
    ids = [record.id for record in source_client.fetch(topic, 0, 0)[0]]
    copies = target_client.fetch(topic, 0, 0)[0]
    assert [dict(copy.headers)["flakelog-source-id"] for copy in copies] == [b"%d" % id for id in ids]
    assert {copy.codec for copy in copies} == {4} and dict(copies[7].headers)["h"] == b"7"


def test_two_mirrors_in_opposite_directions_copy_each_record_once(
    source, target, source_client, target_client, mirror_of, topic
):
    for client, servers in ((source_client, source), (target_client, target)):
        client.create_topic(topic, 1)
        send(servers.bootstrap_servers, topic, range(20))
    forward, back = mirror_of(topic, two_way=True), mirror_of(topic, two_way=True, source=target, target=source)
    with forward, back:
        has_all(target_client, topic, 40)
        has_all(source_client, topic, 40)
        send(source.bootstrap_servers, topic, [20])  # behind the copies, so all of them have been looked at
        send(target.bootstrap_servers, topic, [20])
        has_all(target_client, topic, 42)
        has_all(source_client, topic, 42)
    assert end_of(source_client, topic) == end_of(target_client, topic) == 42


def test_a_mirror_is_refused_that_would_send_records_round_without_end(
    source, target, source_client, target_client, mirror_of, topic
):
    source_client.create_topic(topic, 1)
    send(source.bootstrap_servers, topic, range(20))
    with mirror_of(topic):
        has_all(target_client, topic, 20)
    for two_way in (False, True):
        back = mirror_of(topic, source=target, target=source, two_way=two_way)
        with pytest.raises(MirrorRefused, match=f"copies {topic} back, .* give both mirrors --two-way"), back:
            pass
    with mirror_of(topic, two_way=True) as forward:
        until(lambda: is_two_way(source_client, forward.group, topic), "a commit with two_way")
        with mirror_of(topic, source=target, target=source, two_way=True) as back:
            until(lambda: back.figures().partitions, "the partition")


def is_two_way(client, group, topic):
    """Return True once the commit of a mirror says that it is one of two."""
    coordinator = client.run(find_coordinator(client.core, group))
    stored = client.run(fetch_offsets(client.core, coordinator, group, [(topic, 0)]))
    return is_one_way(stored[topic, 0].metadata) is False


def test_a_cluster_is_not_copied_onto_itself(source, mirror_of):
    with pytest.raises(MirrorRefused, match="are one cluster .*; give --prefix"), mirror_of(".*", target=source):
        pass


def test_a_topic_that_is_made_again_is_stopped_by_name_until_its_loss_is_accepted(
    source, source_client, target_client, mirror_of, topic, caplog
):
    source_client.create_topic(topic, 1)
    send(source.bootstrap_servers, topic, range(20))
    with mirror_of(topic) as mirror:
        has_all(target_client, topic, 20)
        make_again(source_client, source, topic)
        reason = until(lambda: mirror.figures().stopped.get(topic), "the stop")
        assert "made again" in reason and "--skip-lost" in reason
        assert f"topic {topic} is no longer copied: {reason}" in caplog.text
    with mirror_of(topic) as mirror:
        reason = until(lambda: mirror.figures().stopped.get(topic), "the stop")
        assert reason.startswith("it was made again") and "--skip-lost" in reason
    assert end_of(target_client, topic) == 20
    with mirror_of(topic, skip_lost=True):
        has_all(target_client, topic, 70)


def make_again(client, broker, topic):
    client.delete_topic(topic)
    client.create_topic(topic, 1)
    send(broker.bootstrap_servers, topic, range(50))


def test_lost_records_stop_the_topic_by_name_until_the_loss_is_accepted(
    source, source_client, target_client, mirror_of, topic
):
    source_client.create_topic(topic, 1)
    send(source.bootstrap_servers, topic, range(20))
    with mirror_of(topic):
        has_all(target_client, topic, 20)
    send(source.bootstrap_servers, topic, range(20, 40))
    delete_records(source_client, {(topic, 0): 30})
    with mirror_of(topic) as mirror:
        reason = until(lambda: mirror.figures().stopped.get(topic), "the stop")
        assert reason.startswith("partition 0 was to go on at offset 20") and "--skip-lost" in reason
    with mirror_of(topic, skip_lost=True):
        has_all(target_client, topic, 30)
    assert [record.value for record in target_client.fetch(topic, 0, 20)[0]] == [b"%d" % n for n in range(30, 40)]


def test_a_consumer_that_moves_to_the_target_misses_no_record(
    source, target, source_client, target_client, mirror_of, topic
):
    source_client.create_topic(topic, 1)
    for start in range(0, 60, 10):
        send(source.bootstrap_servers, topic, range(start, start + 10))
    delete_records(source_client, {(topic, 0): 10})  # so that offsets differ
    group = f"{topic}-readers"
    with mirror_of(topic):
        has_all(target_client, topic, 50)
        commit(source_client, group, {(topic, 0): 43})
        translated = until(lambda: offsets_of(target_client, group), "the offset at the target")[topic, 0]
    assert 0 < translated <= 33  # record 43 is at offset 33
    with Consumer(target.bootstrap_servers, topic, group=group, timeout_ms=MS) as consumer:
        values = [int(next(consumer).value) for _ in range(50 - translated)]
    assert values == list(range(translated + 10, 60))


def test_mirrors_of_one_name_share_the_partitions_and_hand_them_over(
    source, target, source_client, target_client, mirror_of, topic
):
    source_client.create_topic(topic, 2)
    send(source.bootstrap_servers, topic, range(100))
    first, second = mirror_of(topic), mirror_of(topic)
    with second:
        with first:
            until(lambda: len(first.figures().partitions) == len(second.figures().partitions) == 1, "a share of each")
            send(source.bootstrap_servers, topic, range(100, 200))
            has_all(target_client, topic, 200)
        until(lambda: len(second.figures().partitions) == 2, "all partitions")
        send(source.bootstrap_servers, topic, range(200, 300))
        has_all(target_client, topic, 300)
    copies = records_of(source.bootstrap_servers, topic, 300)
    assert records_of(target.bootstrap_servers, topic, 300) == copies and end_of(target_client, topic) == 300
