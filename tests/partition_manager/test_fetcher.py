"""What a broker's result of a fetch means for the coordinator."""

import pytest
from twisted.internet.defer import Deferred, execute, succeed
from twisted.internet.task import Clock

from broker.client.core import advance
from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchedPartition
from partition_manager.config import SpoutConfig
from partition_manager.fetcher import UNPACKED_BYTES, TwistedFetcher, answer_of
from partition_manager.ports import (
    Bounds,
    EpochEnd,
    Failed,
    Fetched,
    FindBounds,
    FindEpochEnd,
    FindId,
    FindTime,
    FoundOffset,
    OutOfRange,
)
from tests.broker.client.engine_shell import LOST_REQUEST, EngineShell
from tests.broker.client.several_nodes import Nodes, address
from tests.broker.engine_client import EngineBroker


def result(records=b"", diverging=None, log_start=0):
    return FetchedPartition("flights", 0, 0, 20, 15, log_start, records=records, diverging=diverging)


def batch(base_offset, epoch):
    made = encode_batch([BatchRecord(0, 0, None, b"v"), BatchRecord(1, 0, None, b"w")], base_timestamp_ms=1)
    made[:8], made[12:16] = base_offset.to_bytes(8, "big"), epoch.to_bytes(4, "big")
    return bytes(made)


class EngineClient:
    """A client whose broker has no sockets; `shell.api_keys` are those of its requests."""

    def __init__(self, broker, reactor):
        self.shell = EngineShell(broker)
        self.core = self.shell.core
        self.reactor = reactor

    def run(self, steps):
        return execute(self.shell.run, steps)


def ask_about(*requests):
    """Ask about partitions of a topic of 100, of which 7 is offline; return the answers, and the broker's requests."""
    broker, reactor = EngineBroker(), Clock()
    broker.create("flights", 100)
    broker.services.log_of("flights", 7).offline = "its disk is gone"
    client = EngineClient(broker, reactor)
    fetcher = TwistedFetcher("localhost:9092", SpoutConfig(), reactor, client)
    answers = []
    for request in requests:
        fetcher.ask(request, lambda answer, request=request: answers.append((request, answer)))
    reactor.advance(0)
    return dict(answers), client.shell.api_keys


QUESTIONS = {
    "bounds": (lambda number: FindBounds("flights", number), Bounds(0, 0)),
    "epoch end": (lambda number: FindEpochEnd("flights", number, 0), EpochEnd(0, 0)),
    "time": (lambda number: FindTime("flights", number, 1_000), FoundOffset(0)),
    "id": (lambda number: FindId("flights", number, 1_000), FoundOffset(0)),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_about_a_hundred_partitions_takes_as_many_requests_as_about_one(question):
    about, answer = QUESTIONS[question]
    partitions = [number for number in range(100) if number != 7]
    answers_for_one, asked_for_one = ask_about(about(0))
    all, asked_for_all = ask_about(*map(about, partitions))
    assert answers_for_one == {about(0): answer} and all == {about(number): answer for number in partitions}
    assert asked_for_all == asked_for_one


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_partition_that_is_offline_or_not_there_fails_alone_and_takes_no_more_requests(question):
    about, answer = QUESTIONS[question]
    _, asked_for_one = ask_about(about(0))
    answers, asked_for_all = ask_about(*map(about, (0, 7, 100, 1)))
    assert answers[about(0)] == answers[about(1)] == answer
    assert answers[about(7)].error.startswith("flights-7: LEADER_NOT_AVAILABLE")
    assert answers[about(100)].error.startswith("flights-100: UNKNOWN_TOPIC_OR_PARTITION")
    assert asked_for_all == asked_for_one


def test_a_partition_is_asked_about_two_epochs_in_one_turn():
    """A task that has just lost it, and the task that has it now, may know different ones."""
    held, lost = FindEpochEnd("flights", 0, 0), FindEpochEnd("flights", 0, 9)
    assert ask_about(held, lost)[0] == {held: EpochEnd(0, 0), lost: EpochEnd(-1, -1)}


def test_questions_of_the_same_partition_in_one_turn_are_all_answered():
    broker, reactor = EngineBroker(), Clock()
    broker.create("flights")
    fetcher = TwistedFetcher("localhost:9092", SpoutConfig(), reactor, EngineClient(broker, reactor))
    answers = []
    for _ in range(2):
        fetcher.ask(FindBounds("flights", 0), answers.append)
    reactor.advance(0)
    assert answers == [Bounds(0, 0)] * 2


def test_each_question_fails_if_no_broker_answers():
    broker, reactor = EngineBroker(), Clock()
    client = EngineClient(broker, reactor)
    client.shell.fault = lambda exchange: LOST_REQUEST
    fetcher = TwistedFetcher("localhost:9092", SpoutConfig(), reactor, client)
    answers = []
    for about, _ in QUESTIONS.values():
        for number in range(2):
            fetcher.ask(about(number), answers.append)
    reactor.advance(0)
    assert [type(answer) for answer in answers] == [Failed] * 8


class HangingClient:
    """A client of several brokers, of which one accepts no connection."""

    def __init__(self, nodes, reactor, silent):
        self.core, self.reactor = nodes.core, reactor
        self._nodes, self._silent = nodes, silent

    def run(self, steps):
        outcome = None
        while True:
            try:
                exchange = advance(steps, outcome)
            except StopIteration as done:
                return succeed(done.value)
            if exchange.address == self._silent:
                return Deferred()
            outcome = self._nodes.ask(exchange)


def test_a_broker_that_does_not_answer_delays_no_answers_of_another():
    nodes, reactor = Nodes({("t", 0): 1, ("t", 1): 2, ("t", 2): 3}), Clock()
    nodes.run(nodes.core.metadata(["t"]))
    fetcher = TwistedFetcher("localhost:9092", SpoutConfig(), reactor, HangingClient(nodes, reactor, address(1)))
    answers = {}
    for number in range(3):
        fetcher.ask(FindBounds("t", number), lambda answer, number=number: answers.update({number: answer}))
    reactor.advance(0)
    assert answers == {1: Bounds(0, 10), 2: Bounds(0, 10)}


def test_records_come_with_the_next_offset_the_end_and_the_epoch_of_the_last_batch():
    answer = answer_of(result(batch(10, 3) + batch(12, 4)), 10, READ_UNCOMMITTED)
    assert [record.value for record in answer.records] == [b"v", b"w"] * 2
    assert (answer.next_offset, answer.high_watermark, answer.leader_epoch) == (14, 20, 4)


def test_an_answer_ends_with_the_batch_that_unpacks_to_much_and_the_rest_is_fetched_again():
    large = [BatchRecord(0, 0, None, bytes(UNPACKED_BYTES))]
    batches = [bytes(encode_batch(large, base_timestamp_ms=0, base_offset=at, codec=Codec.ZSTD)) for at in (10, 11)]
    answer = answer_of(result(b"".join(batches)), 10, READ_UNCOMMITTED)
    assert ([record.offset for record in answer.records], answer.next_offset, answer.high_watermark) == ([10], 11, 20)


def test_at_read_committed_the_last_stable_offset_is_the_end():
    assert answer_of(result(), 15, READ_COMMITTED) == Fetched([], 15, 15)


def test_a_log_that_lost_what_was_read_last_is_out_of_range_at_the_end_of_what_is_left():
    assert answer_of(result(diverging=(3, 7)), 10, READ_UNCOMMITTED) == OutOfRange(0, 7)


def test_a_log_that_begins_after_what_is_left_is_read_from_its_start():
    assert answer_of(result(diverging=(3, 7), log_start=9), 10, READ_UNCOMMITTED) == OutOfRange(9, 9)
