"""From what the user names to the sink of a load."""

import pytest

from spark_bridge.load.destination import Destination
from spark_bridge.load.ledger import LoadOptions
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
