"""Which topics a mirror copies, their names at the target, and the settings that go along."""

import re

import pytest

from broker.client.config_admin import ConfigValue
from broker.client.core import TopicInfo
from broker.client.mirror.names import MirrorRefused, check_targets, leads_to, mirror_group, topics_to_copy
from broker.client.mirror.topic_settings import settings_to_copy


def test_topics_match_by_their_whole_name_and_internal_ones_are_left_out():
    topics = [TopicInfo(name, None, 1) for name in ("web", "web-2", "a-web", "__consumer_offsets")]
    topics.append(TopicInfo("web-internal", None, 1, is_internal=True))
    assert topics_to_copy(topics, re.compile("web.*")) == ["web", "web-2"]
    assert topics_to_copy(topics, re.compile(".*")) == ["a-web", "web", "web-2"]


def test_two_sources_with_one_topic_name_need_prefixes():
    with pytest.raises(MirrorRefused, match="sources a:9092 and b:9092 both have a topic for web .* --prefix"):
        check_targets({"a:9092": ("", ["web"]), "b:9092": ("", ["orders", "web"])})
    check_targets({"a:9092": ("a.", ["web"]), "b:9092": ("b.", ["web"])})


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
