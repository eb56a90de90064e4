"""Arguments of operations that cannot work: each gets an error that names it, and the broker changes nothing."""

import pytest

from broker.client.config_admin import alter_configs
from flakelog.operations import configs, groups, topics, transactions
from flakelog.operations.configs import topic_resource
from tests.broker.engine_client import EngineBroker
from tests.flakelog.console.world import MemoryClient


@pytest.fixture
def client():
    made = MemoryClient(EngineBroker())
    topics.create_topic(made, "orders", 1)
    return made


def test_settings_are_text(client):
    wanted = "retention.ms=5: give the name and the value as text, such as '5'"
    with pytest.raises(TypeError, match=wanted):
        topics.create_topic(client, "others", 1, {"retention.ms": 5})
    with pytest.raises(TypeError, match=wanted):
        client.run(alter_configs(client.core, topic_resource("orders"), {"retention.ms": 5}))
    assert [topic.name for topic in topics.list_topics(client)] == ["orders"]


def test_one_text_is_not_several_names(client):
    with pytest.raises(TypeError, match=r"names='retention.ms': give several names, such as \['retention.ms'\]"):
        configs.describe_configs(client, topic_resource("orders"), "retention.ms")


@pytest.mark.parametrize("offset", (-3, -1, 1.5, True, None))
def test_a_group_is_moved_to_offsets_only(client, offset):
    with pytest.raises(ValueError, match=f"orders-0: {offset} is no offset; give a number of at least 0"):
        groups.commit(client, "readers", {("orders", 0): offset})
    assert groups.list_groups(client) == []


def test_a_state_that_no_transaction_has_is_named(client):
    assert transactions.list_transactions(client, ("Ongoing",)) == []
    with pytest.raises(ValueError, match="Foo: no state of a transaction that node 1 knows"):
        transactions.list_transactions(client, ("Ongoing", "Foo"))
