"""A log that a full disk kept from being opened: its journal is done with once it is open."""

from dataclasses import replace

from broker.log.io_jobs import SyncJournal
from tests.broker.engine_client import PRODUCE, EngineBroker, produce_request


def journaled_past_a_gap():
    """Return the storage after a power cut, and the time. The journal has offset 0, no offset 1, and offset 2, which
    was not answered.
    """
    broker = EngineBroker(journal_max_bytes=1 << 16)
    broker.create("flights", 1, flakelog_durable_acks="true")
    broker.at(broker.now_ms + 70_000)  # a checkpoint
    client = broker.connect()
    assert client.produce("flights", b"zero").error_code == 0
    broker.alter("flights", {"flakelog.durable.acks": "false"})
    broker.hold_syncs()
    assert client.produce("flights", b"one", acks=1).error_code == 0
    log = broker.services.logs.get("flights", 0)
    broker.services.logs.configure({"flights": replace(log.config, durable_acks=True)})
    client.send(PRODUCE, 9, produce_request("flights", b"two", acks=-1))
    broker.pump()
    for sync in list(broker.held):
        if isinstance(sync, SyncJournal):
            broker.held.remove(sync)
            broker.run(sync)
    assert client.replies() == []
    return broker.storage.power_cut(lambda n: 0), broker.now_ms


def test_what_was_never_answered_is_not_in_the_journal_of_a_log_that_was_opened_late():
    storage, now_ms = journaled_past_a_gap()
    storage.free_bytes = 0
    broker = EngineBroker(storage, now_ms + 10_000, journal_max_bytes=1 << 16)
    assert "it is opened when the disk has space" in broker.services.logs.offline["flights-0"]
    storage.free_bytes = None
    broker.at(broker.now_ms + 30_000)
    assert not broker.services.logs.offline and broker.services.logs.get("flights", 0).log_end_offset == 1
    assert not [path for path in storage.files if path.endswith(".journal")]
    client = broker.connect()
    assert client.produce("flights", b"another one", acks=1).error_code == 0
    broker.services.close()
    again = EngineBroker(storage, broker.now_ms + 10_000)
    assert not again.services.logs.offline and again.services.logs.get("flights", 0).log_end_offset == 2


def test_a_log_that_is_opened_late_keeps_what_only_the_journal_had():
    storage, now_ms = journaled_past_a_gap()
    storage.free_bytes = 0
    broker = EngineBroker(storage, now_ms + 10_000, journal_max_bytes=1 << 16)
    storage.free_bytes = None
    broker.at(broker.now_ms + 30_000)
    again = EngineBroker(storage.power_cut(lambda n: 0), broker.now_ms + 10_000)
    assert again.services.logs.get("flights", 0).log_end_offset == 1
