"""Two brokers for the tests of this folder, and mirrors between them for each test."""

import re

import pytest

from broker.client.blocking import Client
from broker.client.mirror.settings import ClusterSettings, MirrorSettings
from flakelog.testing import Broker
from tests.compat.mirror.mirror_process import MirrorProcess
from tests.compat.mirror.mirror_thread import MirrorThread

# How often the mirror of a test commits, looks for topics, writes the offsets of groups, and looks for orders.
BY_TIME_MS = {"commit_ms": 200, "refresh_ms": 200, "groups_ms": 200, "control_ms": 200}
SESSION_MS = 6_000  # the shortest that brokers take; a member learns of a rebalance within a quarter of it


@pytest.fixture(scope="package")
def source():
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="package")
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
def mirror_of(source, target, name):
    """Return a function that makes a mirror of topics in a thread, under the test's name."""

    def make(topics, *, source=source, target=target, names=None, **settings):
        clusters = {
            "source": ClusterSettings(servers=source.bootstrap_servers),
            "target": ClusterSettings(servers=target.bootstrap_servers),
        }
        fields = {"name": name, "topics": re.compile(topics), "session_ms": SESSION_MS, **BY_TIME_MS, **settings}
        return MirrorThread(MirrorSettings(**clusters, **fields), names)

    return make


@pytest.fixture
def process_of(source, target, name, tmp_path):
    """Return a function that makes a mirror of topics in a process, under the test's name."""

    def make(topics, *options, target=target):
        servers = source.bootstrap_servers, target.bootstrap_servers
        options = "--topics", topics, "--name", name, *options
        return MirrorProcess(*servers, *options, output=tmp_path / "mirror.log")

    return make


@pytest.fixture
def topic(name):
    """Return a topic's name; each test makes the topic itself."""
    return name
