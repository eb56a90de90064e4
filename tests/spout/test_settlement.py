"""Outputs and progress of settled messages in one transaction: what a cut takes, what an abort or a fence leaves."""

import pytest

from broker.client.records import Record
from partition_manager.ports import DeadLetter, Fenced, LetterRefused, Saved, SaveOffset
from spout.settlement import CannotSettle, Settlement
from spout.sink_config import SinkConfig
from spout.sink_ports import Output
from spout.transaction_ports import Aborted, Committed, FencedOut, Letter, OutputsRefused, Save


class Source:
    """A spout whose progress is the list of messages it has settled; `revoked` are ids of a partition given up."""

    def __init__(self, settlement):
        self.settlement = settlement
        self.settled, self.failed, self.answers, self.revoked = [], [], [], set()
        self.waiting = []  # saves asked for and not yet passed on
        self.is_mine = self.has_letters = True
        settlement.add_source(self)

    def message(self, id):
        return None if id in self.revoked else f"message {id}"

    def refuse(self, id, message, error):
        if not self.has_letters:
            return None
        record = Record(id, None, 0, None, message.encode(), ())
        return Letter("in.dead-letters", DeadLetter("in", 0, record, 1, "refused", 1, error))

    def settle(self, id):
        self.settled.append(id)

    def fail_with(self, id, error):
        self.failed.append((id, error))

    def flush(self, now_ms):
        for document in self.waiting:
            request = SaveOffset("in", 0, document, 1)
            self.settlement.save(Save(None, request, self.answers.append, lambda: self.is_mine))
        self.waiting = []

    def store_progress(self, now_ms):
        self.flush(now_ms)
        self.waiting.append(tuple(self.settled))
        self.flush(now_ms)


class Broker:
    """A transactor that keeps the requests; the test answers them."""

    def __init__(self):
        self.requests = []
        self.answer = None

    def ask(self, request, answer):
        self.requests.append(request)
        self.answer = answer

    def close(self):
        self.requests.append("closed")


class World:
    def __init__(self, sources=1, **settings):
        self.settlement = Settlement(SinkConfig(**settings))
        self.broker = Broker()
        self.settlement.open(lambda: self.broker)
        self.sources = [Source(self.settlement) for _ in range(sources)]
        self.now_ms = 0

    def message(self, id, *values, source=0, tuples=1):
        """Emit a message, and write outputs of it."""
        self.settlement.begin(self.sources[source], id, tuples)
        for value in values:
            self.hold(value, (source, id))

    def hold(self, value, *keys):
        keys = [(self.sources[source], id) for source, id in keys]
        return self.settlement.hold(keys, Output("out", None, value.encode()))

    def ack(self, *ids, source=0):
        for id in ids:
            self.settlement.ack(self.sources[source], id)

    def fail(self, id, source=0):
        self.settlement.fail(self.sources[source], id, "on purpose")

    def work(self, ms=100):
        """Let time pass; return the values and the progress of the transactions that begin."""
        before = len(self.broker.requests)
        self.now_ms += ms
        self.settlement.work(self.now_ms)
        return [
            ([output.value.decode() for output in request.outputs], [save.request.document for save in request.saves])
            for request in self.broker.requests[before:]
        ]

    def commit(self):
        self.broker.answer(Committed([Saved(2) for _ in self.broker.requests[-1].saves]))


def test_a_transaction_has_the_outputs_of_complete_messages_and_the_progress_that_covers_them():
    world = World()
    world.message(1, "a", "b")
    world.message(2, "c")
    world.ack(1)
    assert world.work() == [(["a", "b"], [(1,)])]
    world.commit()
    world.ack(2)
    assert world.work() == [(["c"], [(1, 2)])]
    assert world.sources[0].answers == [Saved(2)]


def test_messages_follow_the_order_in_which_they_settle_and_outputs_that_of_their_message():
    world = World()
    world.message(1)
    world.message(2)
    for value, id in (("1a", 1), ("2a", 2), ("1b", 1), ("2b", 2)):
        world.hold(value, (0, id))
    world.ack(2, 1)
    assert world.work() == [(["2a", "2b", "1a", "1b"], [(2, 1)])]


def test_a_message_of_several_tuples_waits_for_all_of_them():
    world = World()
    world.message(1, "a", tuples=2)
    world.ack(1)
    assert world.work() == []
    world.ack(1)
    assert world.work() == [(["a"], [(1,)])]


def test_a_message_without_outputs_is_settled_by_a_transaction_too():
    world = World()
    world.message(1)
    world.ack(1)
    assert world.work() == [([], [(1,)])]


def test_the_next_transaction_waits_for_the_one_before():
    world = World()
    world.message(1, "a")
    world.ack(1)
    world.work()
    world.message(2, "b")
    world.ack(2)
    assert world.work() == [] and world.sources[0].settled == [1], "progress must not cover what is not committed"
    world.commit()
    assert world.work() == [(["b"], [(1, 2)])]


def test_a_transaction_is_committed_every_interval():
    world = World(sink_commit_interval_ms=500)
    world.message(1, "a")
    world.ack(1)
    assert world.work(400) == [] and world.settlement.next_deadline_ms() == 500
    assert world.work(100) == [(["a"], [(1,)])] and world.settlement.next_deadline_ms() is None


def test_enough_bytes_do_not_wait_for_the_interval():
    world = World(sink_commit_interval_ms=500, sink_commit_bytes=50)
    world.message(1, "a")
    world.ack(1)
    assert world.work(0) == []
    world.message(2, "b")
    world.ack(2)
    assert world.work(0) == [(["a", "b"], [(1, 2)])]


# --- attempts that fail


def test_outputs_of_a_failed_attempt_are_dropped():
    world = World()
    world.message((1, "first"), "a")
    world.fail((1, "first"))
    world.message((1, "second"), "a again")
    world.ack((1, "second"))
    assert world.work() == [(["a again"], [((1, "second"),)])]


def test_an_output_that_comes_after_its_attempt_failed_is_dropped():
    world = World()
    world.message((1, "first"))
    world.fail((1, "first"))
    assert not world.hold("late", (0, (1, "first"))) and world.settlement.held_bytes == 0
    world.ack((1, "first"))
    assert world.work() == []


def test_an_output_of_several_messages_binds_them_over_partitions_and_tasks():
    world = World(sources=2)
    world.message(1, "a")
    world.message(2, "b", source=1)
    world.hold("a+b", (0, 1), (1, 2))
    world.ack(1)
    assert world.work() == [], "half of a joined pair must not be committed"
    world.ack(2, source=1)
    assert world.work() == [(["a", "b", "a+b"], [(1,), (2,)])]


def test_messages_that_share_an_output_fail_together():
    world = World(sources=2)
    world.message(1, "a")
    world.message(2, "b", source=1)
    world.hold("a+b", (0, 1), (1, 2))
    world.ack(1)
    world.fail(2, source=1)
    error = "on purpose"
    assert world.sources[0].failed == [(1, error)] and world.sources[1].failed == []
    assert world.work() == [] and world.settlement.held_bytes == 0


def test_an_output_shared_with_a_failed_message_fails_the_others():
    world = World()
    world.message(1)
    world.message(2)
    world.fail(1)
    assert not world.hold("1+2", (0, 1), (0, 2))
    assert world.sources[0].failed == [(2, "another message that it shares an output with has failed")]


# --- aborts and fences


def test_after_an_abort_the_same_transaction_is_made_again():
    world = World()
    world.message(1, "a")
    world.ack(1)
    first = world.work()
    world.broker.answer(Aborted("broker restarted"))
    world.message(2, "b")
    world.ack(2)
    assert world.work(0) == [] and world.settlement.next_deadline_ms() == 200
    assert world.work(100) == first
    assert world.settlement.take_notes() == ["a transaction was aborted: broker restarted; it is made again"]
    world.commit()
    assert world.work() == [(["b"], [(1, 2)])]


def test_pauses_between_aborts_grow_and_only_the_first_is_noted():
    world = World()
    world.message(1, "a")
    world.ack(1)
    world.work()
    pauses = []
    for _ in range(8):
        world.broker.answer(Aborted("again"))
        world.work(0)
        pauses.append(world.settlement.next_deadline_ms() - world.now_ms)
        world.work(pauses[-1])
    assert pauses == [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    assert len(world.settlement.take_notes()) == 1


def test_after_an_abort_a_transaction_of_a_partition_given_up_is_discarded():
    """Its new owner makes these outputs."""
    world = World(sources=2)
    world.message(1, "a")
    world.ack(1)
    world.message(2, "b", source=1)
    world.ack(2, source=1)
    world.work()
    world.sources[0].is_mine = False
    world.broker.answer(Aborted("group copiers, in-0: ILLEGAL_GENERATION"))
    assert world.work() == [] and world.settlement.held_bytes == 0
    assert world.sources[1].answers == [Fenced("group copiers, in-0: ILLEGAL_GENERATION")]


def test_after_a_fence_the_transaction_is_discarded():
    world = World()
    world.message(1, "a")
    world.ack(1)
    world.work()
    world.broker.answer(FencedOut("transactional id t-1: PRODUCER_FENCED"))
    assert world.work() == [] and world.settlement.counts["discarded"] == 1
    assert world.sources[0].answers == [Fenced("transactional id t-1: PRODUCER_FENCED")]


def test_a_message_of_a_partition_given_up_is_dropped_at_the_cut_with_those_it_is_bound_to():
    world = World(sources=2)
    world.message(1)
    world.message(2, source=1)
    world.hold("a+b", (0, 1), (1, 2))
    world.message(3, "c", source=1)
    world.ack(1)
    world.ack(2, 3, source=1)
    world.sources[0].revoked.add(1)
    assert world.work() == [(["c"], [(), (3,)])]
    assert [id for id, _ in world.sources[1].failed] == [2]


def test_a_transaction_that_can_never_succeed_ends_the_topology():
    world = World()
    world.message(1, "a")
    world.ack(1)
    world.work()
    world.broker.answer(LetterRefused("the spout reads another cluster"))
    with pytest.raises(CannotSettle, match="the spout reads another cluster"):
        world.work()


# --- progress and dead letters


def test_progress_asked_for_before_a_cut_is_stored_before_the_cut():
    """A partition has one save at a time; one computed earlier would not cover the cut's messages."""
    world = World()
    world.message(1, "a")
    world.sources[0].waiting.append("before")
    world.ack(1)
    assert world.work() == [([], ["before"])] and world.sources[0].settled == []
    world.commit()
    assert world.work() == [(["a"], [(1,)])]


def test_a_dead_letter_is_part_of_the_transaction_that_settles_its_message():
    world = World()
    buried = []
    record = Record(1, None, 0, None, b"x", ())
    letters = [DeadLetter("in", 0, record, ticket, "attempts", 5, "on purpose") for ticket in (1, 2)]
    world.settlement.bury("dead", letters[0], buried.append, lambda: True)
    world.settlement.bury("dead", letters[1], buried.append, lambda: False)
    assert world.work() == [([], [()])] and len(buried) == 1
    assert world.broker.requests[-1].letters == [Letter("dead", letters[0])]
    world.commit()
    world.work()
    assert world.settlement.held_bytes == 0


# --- limits and the end


def test_when_too_much_is_held_spouts_wait_and_what_is_complete_is_committed_at_once():
    world = World(sink_held_bytes=100, sink_commit_interval_ms=500)
    world.message(1, "a")
    world.message(2, "b")
    world.message(3, "c")
    assert world.settlement.is_full
    world.ack(1)
    assert world.work(0) == [(["a"], [(1,)])] and world.settlement.is_full
    world.commit()
    world.work(0)
    assert not world.settlement.is_full


def test_at_the_end_what_is_complete_is_committed_at_once():
    world = World(sink_commit_interval_ms=500)
    world.message(1, "a")
    world.ack(1)
    world.settlement.finish()
    assert not world.settlement.is_settled and world.work(0) == [(["a"], [(1,)])]
    world.commit()
    world.work(0)
    assert world.settlement.is_settled


# --- outputs that a topic will never take


def letters(request):
    return [(letter.topic, letter.letter.record.value.decode(), letter.letter.error) for letter in request.letters]


def test_a_message_of_a_refused_output_becomes_a_dead_letter_in_the_same_transaction():
    world = World()
    for id, *values in ((1, "a", "b"), (2, "large", "c"), (3, "d")):
        world.message(id, *values)
    world.ack(1, 2, 3)
    assert world.work() == [(["a", "b", "large", "c", "d"], [(1, 2, 3)])]
    world.broker.answer(OutputsRefused({2: "out-0 refuses a record"}))
    assert world.work() == [(["a", "b", "d"], [(1, 2, 3)])]
    assert letters(world.broker.requests[-1]) == [("in.dead-letters", "message 2", "out-0 refuses a record")]
    assert "out-0 refuses a record; 1 of its messages go to the dead letters" in world.settlement.take_notes()[0]
    world.broker.answer(OutputsRefused({2: "out-1 refuses a record"}))
    assert world.work() == [(["a", "b"], [(1, 2, 3)])], "the numbers are those of the second transaction"
    assert [value for _, value, _ in letters(world.broker.requests[-1])] == ["message 2", "message 3"]
    world.commit()
    world.work()
    assert world.settlement.held_bytes == 0 and world.sources[0].answers == [Saved(2)]


def test_all_messages_of_a_refused_output_become_dead_letters():
    world = World(sources=2)
    world.message(1)
    world.message(1, source=1)
    world.hold("pair", (0, 1), (1, 1))
    world.ack(1)
    world.ack(1, source=1)
    world.work()
    world.broker.answer(OutputsRefused({0: "refused"}))
    assert [outputs for outputs, _ in world.work()] == [[]] and len(world.broker.requests[-1].letters) == 2


def test_without_dead_letters_a_refused_output_ends_the_topology():
    world = World()
    world.sources[0].has_letters = False
    world.message(1, "large")
    world.ack(1)
    world.work()
    world.broker.answer(OutputsRefused({0: "out-0 refuses a record of 2,000 bytes"}))
    with pytest.raises(CannotSettle, match="out-0 refuses a record of 2,000 bytes; flakelog.spout.dead.letter.topic"):
        world.work()
