"""From what the user names to the sink of a load."""

import pytest

from spark_bridge.load.destination import Destination
from spark_bridge.load.ledger import LoadOptions
from spark_bridge.load.load import LoadError
from spark_bridge.load.topic_sink import COLUMNS
from spark_bridge.output.storage import store_config

SECRET = "s3://key:se%2Fcret@bucket/flights?region=eu-west-1&scheme=http&endpoint_override=store:9000"


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_a_password_in_a_uri_is_in_no_message_and_in_no_topic(format):
    """The place of a load is in messages and in the topic of replays."""
    destination = Destination(SECRET, format)
    shown = "s3://bucket/flights?region=eu-west-1&scheme=http&endpoint_override=store:9000"
    assert (str(destination), destination.open(LoadOptions("t")).location) == (shown, shown)


def test_a_uri_is_taken_apart_for_other_libraries():
    assert store_config(SECRET) == (
        "s3://bucket/flights",
        {
            "endpoint": "http://store:9000",
            "allow_http": "true",
            "region": "eu-west-1",
            "access_key_id": "key",
            "secret_access_key": "se/cret",
        },
    )
    assert store_config("gs://bucket/a") == ("gs://bucket/a", {})


def test_a_property_of_a_topics_cluster_that_librdkafka_lacks_is_refused_by_name(tmp_path):
    security = ("security.protocol", "SSL"), ("ssl.enabled.protocols", "TLSv1.3")
    destination = Destination("kafka://127.0.0.1:1/copies", "topic", str(tmp_path), security)
    with pytest.raises(LoadError, match="topic .copies. at 127.0.0.1:1: ssl.enabled.protocols=.* cannot choose"):
        destination.open(LoadOptions("orders", columns=COLUMNS))
