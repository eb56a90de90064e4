"""Two brokers for the tests of this folder, and a mirror between them for each test."""

import pytest

from broker.client.blocking import Client
from flakelog.testing import Broker
from tests.compat.mirror.mirror_process import MirrorProcess


@pytest.fixture(scope="module")
def source():
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def target():
    with Broker() as broker:
        yield broker


@pytest.fixture
def source_client(source):
    with Client(source.bootstrap_servers) as client:
        yield client


@pytest.fixture
def target_client(target):
    with Client(target.bootstrap_servers) as client:
        yield client


@pytest.fixture
def mirror_of(source, target, name, tmp_path):
    """Return a function that makes a mirror of topics, under the test's name."""

    def make(topics, *options, source=source, target=target, log="mirror.log"):
        servers = source.bootstrap_servers, target.bootstrap_servers
        return MirrorProcess(
            *servers, "--topics", topics, "--name", name, *options, output=tmp_path / log
        )

    return make


@pytest.fixture
def topic(name):
    """Return a topic's name; each test makes the topic itself."""
    return name
