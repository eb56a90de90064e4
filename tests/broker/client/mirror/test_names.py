"""Which topics a mirror copies, their names at the target, and the settings that go along."""

import re

import pytest

from broker.client.config_admin import ConfigValue
from broker.client.mirror.names import (
    MirrorRefused,
    TargetNames,
    check_sources,
    leads_to,
    mirror_group,
    topic_pattern,
)
from broker.client.mirror.settings import ClusterSettings, MirrorSettings
from broker.client.mirror.topic_settings import settings_to_change, settings_to_copy


def matching(pattern, *names):
    return [name for name in names if pattern.fullmatch(name)]


def test_topics_match_by_their_whole_name_and_internal_ones_are_left_out():
    names = "web", "web-2", "a-web", "__consumer_offsets"
    assert matching(topic_pattern(re.compile("web.*")), *names) == ["web", "web-2"]
    assert matching(topic_pattern(re.compile(".*")), *names) == ["web", "web-2", "a-web"]
    assert matching(topic_pattern(re.compile("web|__.*")), *names) == ["web"]


def test_a_pattern_keeps_its_flags():
    assert matching(topic_pattern(re.compile("(?i)web.*")), "WEB-1", "__web") == ["WEB-1"]
    assert matching(topic_pattern(re.compile("web.*", re.IGNORECASE)), "WEB-1") == ["WEB-1"]


def test_copies_within_one_cluster_are_not_copied_again():
    assert matching(topic_pattern(re.compile(".*"), "copy."), "web", "copy.web", "copy-web") == ["web", "copy-web"]


def test_two_sources_with_one_topic_name_need_prefixes():
    names = TargetNames()
    names.claim("a:9092", ["web"])
    with pytest.raises(MirrorRefused, match="sources a:9092 and b:9092 both have a topic for web .* --prefix"):
        names.claim("b:9092", ["orders", "web"])
    names.claim("b:9092", ["b.web", "orders"])
    names.claim("a:9092", ["web"])


def test_two_addresses_of_one_source_are_refused():
    with pytest.raises(MirrorRefused, match="sources a:9092 and b:9092 are one cluster .X.*; give it once"):
        check_sources({"a:9092": "X", "c:9092": "Y", "b:9092": "X"})
    check_sources({"a:9092": "X", "b:9092": "Y"})


@pytest.mark.parametrize(
    "wrong, reason",
    (
        ({"name": ""}, "--name '': give 1 to 200 characters"),
        ({"prefix": "far/"}, "--prefix 'far/': names of topics have letters"),
        ({"prefix": "p" * 201}, "give at most 200"),
        ({"prefix": "__far."}, "topics that begin with __ are internal"),
        ({"instance": "a b"}, "--instance 'a b' must be 1 to"),
        ({"two_way": True, "prefix": "far."}, "--two-way copies topics of one name in both directions"),
    ),
)
def test_settings_that_cannot_work_are_refused_with_what_would_be_right(wrong, reason):
    clusters = {"source": ClusterSettings(servers="a:1"), "target": ClusterSettings(servers="b:1")}
    with pytest.raises(ValueError, match=reason):
        MirrorSettings(**clusters, **wrong)


def test_a_group_names_the_mirror_and_its_target():
    group = mirror_group("eu.to.us", "cluster-1")
    assert group == "flakelog-mirror.eu.to.us.cluster-1"
    assert leads_to(group, "cluster-1") and not leads_to(group, "cluster-2") and not leads_to("readers", "cluster-1")


def test_settings_of_the_topic_itself_are_copied_as_mirror_maker_does():
    settings = [
        ConfigValue("cleanup.policy", "compact", 1, False, None),
        ConfigValue("min.insync.replicas", "2", 1, False, None),
        ConfigValue("message.timestamp.type", "LogAppendTime", 1, False, None),
        ConfigValue("retention.ms", "1000", 5, False, None),  # the broker's default
    ]
    assert settings_to_copy(settings) == {"cleanup.policy": "compact"}


def test_settings_that_changed_are_copied_again_and_defaults_are_restored():
    source = [
        ConfigValue("retention.ms", "1000", 1, False, None),
        ConfigValue("segment.bytes", "5000", 3, False, None),  # altered for all brokers
        ConfigValue("cleanup.policy", "delete", 5, False, None),
        ConfigValue("flush.ms", "9", 4, False, None),  # of the broker's file
        ConfigValue("min.insync.replicas", "1", 5, False, None),
    ]
    own = {"retention.ms": "7", "segment.bytes": "5000", "cleanup.policy": "compact", "flush.ms": "3",
           "min.insync.replicas": "2"}  # fmt: skip
    target = [ConfigValue(name, value, 1, False, None) for name, value in own.items()]
    assert settings_to_change(source, target) == {"retention.ms": "1000", "cleanup.policy": None}
    assert settings_to_change(source, []) == {"retention.ms": "1000", "segment.bytes": "5000"}
