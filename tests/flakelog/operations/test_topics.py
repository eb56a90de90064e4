"""Making topics: the broker chooses what the caller leaves out."""

import inspect

import pytest

from broker.client.asyncio import AsyncClient
from broker.client.blocking import Client
from broker.client.topic_admin import BROKER_DEFAULT
from broker.client.twisted import TwistedClient
from flakelog.admin import Admin
from flakelog.operations import topics
from flakelog.testing import Broker
from tests.broker.engine_client import EngineBroker
from tests.flakelog.console.world import MemoryClient


@pytest.mark.parametrize("create", (Client.create_topic, topics.create_topic))
def test_a_topic_without_a_number_of_partitions_gets_num_partitions(create):
    client = MemoryClient(EngineBroker(num_partitions=3))
    create(client, "usual")
    create(client, "single", 1)
    assert [(topic.name, topic.partitions) for topic in topics.list_topics(client)] == [("single", 1), ("usual", 3)]


@pytest.mark.parametrize("face", (Client, AsyncClient, TwistedClient, Admin, Broker))
def test_no_class_has_a_default_of_its_own(face):
    assert inspect.signature(face.create_topic).parameters["partitions"].default == BROKER_DEFAULT
