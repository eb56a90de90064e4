"""A data directory knows the coordinator of the cluster that it belongs to."""

from broker.log.storage.memory_storage import MemoryStorage
from broker.metadata.document import FILE
from tests.broker.engine_client import EngineBroker


def test_a_directory_keeps_its_cluster_its_coordinator_and_its_broker():
    broker = EngineBroker(MemoryStorage())
    broker.services.local.join("a cluster", "zookeeper a:2181/x")
    local = broker.restarted().services.local
    assert (local.image.cluster_id, local.coordinator) == ("a cluster", "zookeeper a:2181/x")
    assert local.joined_id == broker.services.node.id


def test_the_document_of_a_server_alone_names_no_coordinator():
    storage = EngineBroker(MemoryStorage()).storage
    file = storage.open(FILE)
    document = bytes(file.read(0, file.size))
    assert b"coordinator" not in document and b"broker_id" not in document
