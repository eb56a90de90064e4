"""Transactional producers after a power cut that took back the last records of the coordinator's log.

Without durable acks, partitions may still have batches of epochs that the coordinator no longer knows.
"""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import EngineBroker
from tests.broker.handlers.transaction_steps import STATE, state_of
from tests.broker.transactional import TransactionalProducer, committed

LATEST = 5  # the version of EndTxn in which each end takes the next epoch


@pytest.fixture
def broker():
    broker = EngineBroker(transaction_state_log_num_partitions=1)
    broker.create("flights")
    return broker


def sync(broker, *topics):
    """Sync the logs of these topics, and let the checkpoint name them."""
    broker.services.logs.syncs.start_round([broker.services.logs.get(topic, 0) for topic in topics])
    broker.pump()


def after_power_cut(broker):
    """Return a broker on what the disk has, without anything that was not synced."""
    return EngineBroker(broker.storage.power_cut(lambda n: 0), broker.now_ms + 10_000, **broker._settings)


def forgotten_epoch(broker):
    """Return a producer with its first epoch, and one with the next, which the coordinator forgets in a power cut."""
    first = TransactionalProducer(broker)
    assert first.init() == 0
    sync(broker, STATE)
    second = TransactionalProducer(broker)
    assert second.init() == 0 and (second.id, second.epoch) == (first.id, first.epoch + 1)
    return first, second


def test_a_batch_of_the_next_producer_is_no_duplicate_of_one_from_before_the_cut(broker):
    _, second = forgotten_epoch(broker)
    second.write("flights", b"before")
    assert second.end(True) == 0
    sync(broker, "flights")
    again = after_power_cut(broker)
    third = TransactionalProducer(again)
    assert third.init() == 0 and third.id != second.id
    third.write("flights", b"after")
    assert third.end(True) == 0
    assert committed(again.connect(), "flights") == [b"before", b"after"]


def test_the_forgotten_epoch_stays_doubtful_over_a_clean_restart(broker):
    _, second = forgotten_epoch(broker)
    again = after_power_cut(broker).restarted(clean=True)
    third = TransactionalProducer(again)
    assert third.init() == 0 and third.id != second.id


def test_a_new_producer_id_is_given_once_for_each_unclean_start(broker):
    TransactionalProducer(broker).init()
    again = broker.restarted(clean=False)
    producers = [TransactionalProducer(again) for _ in range(3)]
    assert [producer.init() for producer in producers] == [0, 0, 0]
    assert len({producer.id for producer in producers}) == 1 and [producer.epoch for producer in producers] == [0, 1, 2]


def test_a_producer_goes_on_over_a_crash_with_its_id_and_its_epoch(broker):
    """A crash of the process alone loses nothing, and stock clients do not survive being fenced."""
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"before")
    again = broker.restarted(clean=False)
    producer.client = again.connect()
    producer.write("flights", b"after")
    assert producer.end(True) == 0
    producer.write("flights", b"next")
    assert producer.end(True) == 0
    assert committed(again.connect(), "flights") == [b"before", b"after", b"next"]


def test_a_producer_whose_epoch_was_forgotten_is_fenced(broker):
    _, second = forgotten_epoch(broker)
    again = after_power_cut(broker)
    second.client = again.connect()
    assert second.add(("flights", 0)) == ErrorCode.PRODUCER_FENCED


def test_the_next_producer_fences_both_who_came_before_the_cut(broker):
    first, second = forgotten_epoch(broker)
    again = after_power_cut(broker)
    third = TransactionalProducer(again)
    assert third.init() == 0
    for earlier in (first, second):
        earlier.client = again.connect()
        assert earlier.add(("flights", 0)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert earlier.send("flights", b"late") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert earlier.init(keeps=True) == ErrorCode.PRODUCER_FENCED


def test_a_producer_that_keeps_its_place_gets_a_new_id_and_may_ask_again(broker):
    """KIP-360: it names the id and epoch that it has, and repeats that if the answer got lost."""
    producer = TransactionalProducer(broker)
    producer.init()
    again = broker.restarted(clean=False)
    before = producer.id, producer.epoch
    producer.client = again.connect()
    assert producer.init(keeps=True) == 0 and producer.id != before[0] and producer.epoch == 0
    now_is = producer.id, producer.epoch
    producer.id, producer.epoch = before
    assert producer.init(keeps=True) == 0 and (producer.id, producer.epoch) == now_is


def test_a_producer_that_took_too_long_gets_a_new_id_when_it_asks_for_its_place(broker):
    """KIP-588. The epoch of the abort may be one that a partition has from before the cut."""
    producer = TransactionalProducer(broker, timeout_ms=1_000)
    producer.init()
    producer.write("flights", b"late")
    again = broker.restarted(clean=False)
    again.at(again.now_ms + 60_000)
    assert state_of(again) == "CompleteAbort"
    before = producer.id
    producer.client = again.connect()
    assert producer.init(keeps=True) == 0 and producer.id != before


def test_an_end_that_takes_the_next_epoch_takes_a_new_producer_id(broker):
    """KIP-890. The end may be repeated, and has the same answer."""
    producer = TransactionalProducer(broker)
    producer.init()
    again = broker.restarted(clean=False)
    producer.client = again.connect()
    producer.write("flights", b"a")
    before = producer.id, producer.epoch
    assert producer.end(True, version=LATEST) == 0 and producer.id != before[0] and producer.epoch == 0
    following = producer.id, producer.epoch
    producer.id, producer.epoch = before
    assert producer.end(True, version=LATEST) == 0 and (producer.id, producer.epoch) == following
    producer.write("flights", b"b")
    assert producer.end(True, version=LATEST) == 0 and (producer.id, producer.epoch) == (following[0], 1)
    assert committed(again.connect(), "flights") == [b"a", b"b"]


def test_a_transaction_of_a_forgotten_epoch_is_aborted_though_an_earlier_one_is_open(broker):
    """Otherwise the abort of the earlier epoch is refused there, and read_committed consumers wait for ever."""
    first, _ = forgotten_epoch(broker)
    first, second = TransactionalProducer(broker), TransactionalProducer(broker)
    assert first.init() == 0
    first.write("flights", b"first")
    sync(broker, STATE, "flights")
    assert second.init() == ErrorCode.CONCURRENT_TRANSACTIONS and second.init() == 0
    second.write("flights", b"second")
    sync(broker, "flights")
    again = after_power_cut(broker)
    assert state_of(again) == "Ongoing"
    again.at(again.now_ms + 120_000)
    log = again.services.log_of("flights", 0)
    assert log.last_stable_offset == log.log_end_offset
    assert committed(again.connect(), "flights") == []


def test_a_transaction_of_a_forgotten_epoch_is_aborted_though_an_earlier_one_is_being_aborted(broker):
    """Found by the simulation (seed 2159): the abort of the earlier epoch goes on after the start, and is refused."""
    first, second = TransactionalProducer(broker), TransactionalProducer(broker)
    first.init()
    first.write("flights", b"first")
    log = broker.services.log_of("flights", 0)
    log.offline = "for a while"
    assert second.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    sync(broker, STATE)
    log.offline = None
    broker.at(broker.now_ms + 10_000)
    assert second.init() == 0
    second.write("flights", b"second")
    sync(broker, "flights")
    again = after_power_cut(broker)
    again.at(again.now_ms + 120_000)
    log = again.services.log_of("flights", 0)
    assert log.last_stable_offset == log.log_end_offset
    assert committed(again.connect(), "flights") == []


def test_a_commit_whose_marker_was_lost_is_a_commit_though_its_producer_has_begun_the_next(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"a")
    sync(broker, "flights")
    assert producer.end(True) == 0
    broker.at(broker.now_ms + 1)
    assert producer.add(("flights", 0)) == 0
    sync(broker, STATE)
    again = after_power_cut(broker)
    assert committed(again.connect(), "flights") == [b"a"]


def test_a_lost_abort_is_an_abort_though_its_producer_has_committed_the_next(broker):
    """Found by the simulation (seed 2127): the commit went on at the start, and took the aborted records with it."""
    first, second = TransactionalProducer(broker), TransactionalProducer(broker)
    first.init()
    first.write("flights", b"first")
    sync(broker, "flights")
    assert second.init() == ErrorCode.CONCURRENT_TRANSACTIONS and second.init() == 0
    broker.at(broker.now_ms + 1)
    second.write("flights", b"second")
    broker.services.log_of("flights", 0).offline = "for a while"
    second.end(True)
    assert state_of(broker) == "PrepareCommit"
    sync(broker, STATE)
    again = after_power_cut(broker)
    again.at(again.now_ms + 10_000)
    assert state_of(again) == "CompleteCommit"
    log = again.services.log_of("flights", 0)
    assert log.last_stable_offset == log.log_end_offset
    assert committed(again.connect(), "flights") == []


def test_producer_ids_are_never_given_twice(broker):
    """A block of ids is on the disk before its first id is given away, whatever a power cut takes."""
    given = []
    for _ in range(3):
        producers = [TransactionalProducer(broker, f"t{len(given) + n}") for n in range(3)]
        assert [producer.init() for producer in producers] == [0, 0, 0]
        given += [producer.id for producer in producers]
        broker = after_power_cut(broker)
    assert len(set(given)) == len(given)
