"""InitProducerId through the wire (KIP-98; https://kafka.apache.org/protocol#The_Messages_InitProducerId)."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import INIT_PRODUCER_ID, EngineBroker


@pytest.fixture
def broker():
    return EngineBroker()


def ask(client, version, transactional_id=None):
    return client.ask(INIT_PRODUCER_ID, version, {"transactional_id": transactional_id, "transaction_timeout": 1_000})


@pytest.mark.parametrize("version", [0, 4])
def test_each_producer_gets_an_id_nobody_had_also_after_a_crash(broker, version):
    first, second = ask(broker.connect(), version), ask(broker.connect(), version)
    third = ask(broker.restarted(clean=False).connect(), version)
    assert first.error_code == second.error_code == third.error_code == 0
    assert first.producer_id < second.producer_id < third.producer_id
    assert first.producer_epoch == 0


@pytest.mark.parametrize("version", [0, 4])
def test_a_full_disk_is_an_answer_and_the_next_asker_is_served_when_there_is_space(broker, version):
    """A disk error is a normal answer with the protocol's code (rule 3 of CONTRIBUTING.md)."""
    client = broker.connect()
    broker.storage.free_bytes = 0
    assert ask(client, version).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.storage.free_bytes = None
    assert ask(client, version).error_code == 0
