"""The same job by MirrorMaker 2 and by our mirror, compared record by record."""

import pytest

from benchmarks.mirror_maker import MirrorMaker, mirror_maker_command
from benchmarks.native import Unavailable
from broker.client.blocking import Client
from flakelog.operations import configs
from flakelog.testing import Broker
from tests.compat.mirror.mirror_process import MirrorProcess, committed_records, records_of
from tests.compat.mirror.test_mirror_of_kafka import RECORDS, fill
from tests.patience import until

pytestmark = pytest.mark.soak
PARTITIONS = 3
SETTINGS = {"retention.ms": "86400000", "cleanup.policy": "compact,delete", "min.insync.replicas": "1"}


@pytest.fixture(autouse=True)
def _jars():
    try:
        mirror_maker_command()
    except Unavailable as why:
        pytest.skip(str(why))


def own_settings(client, topic):
    settings = configs.describe_configs(client, configs.topic_resource(topic))
    return {setting.name: setting.value for setting in settings if setting.source == configs.TOPIC_SOURCE}


@pytest.mark.parametrize("origin", ("Flakelog", "Kafka"))
def test_both_copy_the_same_records_and_settings(request, source, target, topic, tmp_path, origin):
    servers = source.bootstrap_servers if origin == "Flakelog" else request.getfixturevalue("kafka")
    with Client(servers) as client:
        client.create_topic(topic, PARTITIONS, SETTINGS)
    fill(servers, topic)
    with Broker() as theirs, Client(theirs.bootstrap_servers) as peer, Client(target.bootstrap_servers) as own:
        options = "--topics", topic, "--name", topic
        with MirrorProcess(servers, target.bootstrap_servers, *options, output=tmp_path / "mirror.log"):
            until(lambda: is_copied(own, topic), "all records by our mirror", pause_s=0.5)
        with MirrorMaker(tmp_path / "mm2", servers, theirs.bootstrap_servers, topic):
            until(lambda: is_copied(peer, topic), "all records by MirrorMaker", pause_s=0.5)
        copies = records_of(target.bootstrap_servers, topic, RECORDS)
        assert copies == records_of(theirs.bootstrap_servers, topic, RECORDS) == records_of(servers, topic, RECORDS)
        wanted = {name: value for name, value in SETTINGS.items() if name != "min.insync.replicas"}
        assert own_settings(own, topic) == own_settings(peer, topic) == wanted


def is_copied(client, topic):
    return topic in {info.name for info in client.topics()} and committed_records(client, topic) == RECORDS
