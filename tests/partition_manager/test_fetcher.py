"""What a broker's result of a fetch means for the coordinator."""

from twisted.internet.defer import execute
from twisted.internet.task import Clock

from broker.record.records import Record, encode_batch
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchedPartition
from partition_manager.config import SpoutConfig
from partition_manager.fetcher import TwistedFetcher, answer_of
from partition_manager.ports import Bounds, Failed, Fetched, FindBounds, OutOfRange
from tests.broker.client.engine_shell import EngineShell
from tests.broker.engine_client import EngineBroker


def result(records=b"", diverging=None, log_start=0):
    return FetchedPartition("flights", 0, 0, 20, 15, log_start, records=records, diverging=diverging)


def batch(base_offset, epoch):
    made = encode_batch([Record(0, 0, None, b"v"), Record(1, 0, None, b"w")], base_timestamp_ms=1)
    made[:8], made[12:16] = base_offset.to_bytes(8, "big"), epoch.to_bytes(4, "big")
    return bytes(made)


class EngineClient:
    """A client whose broker has no sockets; `shell.asked` are the keys of its requests."""

    def __init__(self, broker, reactor):
        self.shell = EngineShell(broker)
        self.core = self.shell.core
        self.reactor = reactor

    def run(self, steps):
        return execute(self.shell.run, steps)


def bounds_of(partitions):
    """Return the answers to requests for the bounds of partitions of a topic of 100, and the broker's requests."""
    broker, reactor = EngineBroker(), Clock()
    broker.create("flights", 100)
    client = EngineClient(broker, reactor)
    fetcher = TwistedFetcher("localhost:9092", SpoutConfig(), reactor, client)
    answers = {}
    for number in partitions:
        fetcher.ask(FindBounds("flights", number), lambda answer, number=number: answers.update({number: answer}))
    reactor.advance(0)
    return answers, client.shell.asked


def test_the_bounds_of_a_hundred_partitions_take_as_many_requests_as_those_of_one():
    one, asked_for_one = bounds_of([0])
    all, asked_for_all = bounds_of(range(100))
    assert all == {number: Bounds(0, 0) for number in range(100)} and one == {0: Bounds(0, 0)}
    assert asked_for_all == asked_for_one


def test_a_partition_whose_bounds_are_not_found_fails_alone():
    answers, _ = bounds_of([0, 100, 1])
    assert answers[0] == answers[1] == Bounds(0, 0) and isinstance(answers[100], Failed)


def test_records_come_with_the_next_offset_the_end_and_the_epoch_of_the_last_batch():
    answer = answer_of(result(batch(10, 3) + batch(12, 4)), 10, READ_UNCOMMITTED)
    assert [record.value for record in answer.records] == [b"v", b"w"] * 2
    assert (answer.next_offset, answer.high_watermark, answer.leader_epoch) == (14, 20, 4)


def test_at_read_committed_the_last_stable_offset_is_the_end():
    assert answer_of(result(), 15, READ_COMMITTED) == Fetched([], 15, 15)


def test_a_log_that_lost_what_was_read_last_is_out_of_range_at_the_end_of_what_is_left():
    assert answer_of(result(diverging=(3, 7)), 10, READ_UNCOMMITTED) == OutOfRange(0, 7)


def test_a_log_that_begins_after_what_is_left_is_read_from_its_start():
    assert answer_of(result(diverging=(3, 7), log_start=9), 10, READ_UNCOMMITTED) == OutOfRange(9, 9)
