"""flush.messages and flush.ms: the log manager syncs a log after this number of messages, or this time."""

import pytest

from broker.now import Now
from tests.broker.log.conftest import BROKER, NOW, START_MS
from tests.broker.log.manager_world import MINUTE_MS, Broker, kinds


@pytest.fixture
def broker():
    return Broker()


def test_messages_make_a_sync_due():
    broker = Broker(flush_messages=3)
    log = broker.open()
    broker.append(log, b"a", b"b")
    assert broker.manager.take_syncs() == []
    broker.append(log, b"c")
    assert kinds(broker.manager.take_syncs()) == ["SyncLog"]


def test_messages_that_came_while_a_sync_was_out_are_synced_when_it_is_back():
    broker = Broker(flush_messages=1)
    log = broker.open()
    broker.append(log)
    (sync,) = broker.manager.take_syncs()
    broker.append(log)
    assert broker.manager.take_syncs() == [], "one sync of a log is out at a time"
    broker.run(sync)
    (sync,) = broker.manager.take_syncs()
    broker.run(sync)
    assert (log.unflushed, broker.manager.take_syncs()) == (0, [])


def test_age_makes_a_sync_due_from_the_first_message_on():
    broker = Broker(flush_ms=50)
    log = broker.open()
    broker.manager.tick(Now(1_000, START_MS))
    broker.append(log, ms=1_000)
    broker.append(log, ms=1_030)
    assert broker.manager.next_deadline_ms(1_030) == 1_050
    broker.manager.tick(Now(1_049, START_MS))
    assert broker.manager.take_syncs() == []
    broker.manager.tick(Now(1_050, START_MS))
    (sync,) = broker.manager.take_syncs()
    broker.append(log, ms=1_060)
    broker.run(sync)
    assert broker.manager.next_deadline_ms(1_060) == 1_110


def test_age_is_not_forgotten_while_a_slow_sync_is_out():
    broker = Broker(flush_ms=50)
    log = broker.open()
    broker.append(log, ms=1_000)
    broker.manager.tick(Now(1_050, START_MS))
    (sync,) = broker.manager.take_syncs()
    broker.append(log, ms=1_060)
    broker.manager.tick(Now(1_200, START_MS))
    assert broker.manager.take_syncs() == []
    broker.run(sync)
    assert broker.manager.next_deadline_ms(1_200) == 1_110
    broker.manager.tick(Now(1_201, START_MS))
    assert kinds(broker.manager.take_syncs()) == ["SyncLog"]


def test_many_appends_leave_one_note_of_when_a_flush_is_due():
    """Memory must not grow with the number of messages (rule 4 of CONTRIBUTING.md)."""
    broker = Broker(flush_ms=50)
    log = broker.open()
    for _ in range(100):
        broker.append(log)
    assert len(broker.manager.syncs._flush_due) == 1


def test_silent_producers_expire_by_the_brokers_clock():
    """The limit is producer.id.expiration.ms; old timestamps do not show that a producer is silent."""
    broker = Broker()
    log = broker.open()
    broker.append(log, producer_id=7, producer_epoch=0, base_sequence=0, timestamp_ms=0)
    minute, day = broker.manager.next_deadline_ms(NOW.ms), BROKER.producer_id_expiration_ms
    broker.manager.tick(Now(minute, START_MS + day))
    assert len(log.producers) == 1
    broker.manager.tick(Now(minute + MINUTE_MS, START_MS + day + 1))
    assert len(log.producers) == 0
