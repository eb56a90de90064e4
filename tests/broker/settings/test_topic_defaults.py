"""The defaults of a topic's settings stand twice: as Kafka's names of a broker, and as those of a topic."""

from broker.settings.config import BrokerConfig, TopicConfig


def test_a_topic_has_the_same_defaults_with_a_server_and_without_one():
    assert BrokerConfig().topic_defaults == TopicConfig()
