"""CreateTopics through the wire (https://kafka.apache.org/protocol#The_Messages_CreateTopics)."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_TOPICS, EngineBroker


@pytest.fixture
def client():
    return EngineBroker().connect()


def create(client, version, **configs):
    topic = {
        "name": "flights",
        "num_partitions": 2,
        "replication_factor": 1,
        "assignments": (),
        "configs": [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()],
    }
    (answer,) = client.ask(CREATE_TOPICS, version, {"topics": [topic], "timeout": 1_000}).topics
    return answer


@pytest.mark.parametrize("version", [2, 7])
def test_a_topic_is_made_with_its_own_settings(client, version):
    assert create(client, version, segment_bytes="1048576").error_code == 0


@pytest.mark.parametrize("version", [2, 7])
def test_an_unknown_setting_is_refused_with_the_nearest_known_one(client, version):
    """A setting that is taken in silence and does nothing is worse than none; Kafka answers INVALID_CONFIG too."""
    answer = create(client, version, segment_byte="1048576")
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "segment.byte" in answer.error_message and "did you mean segment.bytes?" in answer.error_message


@pytest.mark.parametrize("version", [2, 7])
def test_an_impossible_setting_is_refused_by_name(client, version):
    answer = create(client, version, segment_bytes="1")
    assert answer.error_code == ErrorCode.INVALID_CONFIG and "segment.bytes=1" in answer.error_message
