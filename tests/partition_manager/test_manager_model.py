"""In any order of reads, acks, fails, retention, truncation and restarts, no message is lost or settled twice.

The oracle is the log. Each message is a value written once. Only an ack or a confirmed dead letter of an emission of
that value may settle it.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from partition_manager.config import SpoutConfig
from partition_manager.manager import PartitionManager
from partition_manager.progress import Progress
from tests.partition_manager.world import record

CONFIG = SpoutConfig(
    spout_max_uncommitted=8,
    spout_max_settled_ranges=2,
    spout_max_pending_bytes=2_000,
    spout_fetch_max_records=5,
    spout_max_attempts=3,
    spout_done_ranges_max=3,
    spout_retry_jitter=0.0,
)


class Lives(RuleBasedStateMachine):
    """A partition over several runs of its manager."""

    def __init__(self):
        super().__init__()
        self.log = []  # values by offset, None for an offset removed by compaction
        self.start = 0
        self.written = 0
        self.settled = set()  # values
        self.given_up = []
        self.in_flight = []  # (offset, ticket, value)
        self.stale = []
        self.now_ms = 0
        self.stored = Progress(0)
        self.tickets = iter(range(1, 10**9))
        self.manager = self.manager_from(Progress(0))

    def manager_from(self, progress):
        return PartitionManager("t", 0, progress, CONFIG, tickets=self.tickets, stored=progress)

    @rule(count=st.integers(1, 8))
    def append(self, count):
        for _ in range(count):
            self.log.append(self.written)
            self.written += 1

    @rule(data=st.data())
    def fetch(self, data):
        wanted = self.manager.wanted()
        if wanted is None:
            return
        if not self.start <= wanted.offset <= len(self.log):
            self.lose_below(self.start)
            self.manager.out_of_range(self.start, len(self.log))
            return
        begin = data.draw(st.integers(max(self.start, wanted.offset - 3), wanted.offset), label="batch begins")
        end = min(len(self.log), wanted.offset + data.draw(st.integers(0, 7), label="read"))
        records = [record(o, value=self.log[o]) for o in range(begin, end) if self.log[o] is not None]
        sized = [r._replace(value=b"", headers=((str(r.value), None),)) for r in records]
        self.manager.fetched(sized, max(end, wanted.offset), len(self.log))

    def lose_below(self, offset):
        """Count the messages that retention removed before they were read as settled: they are lost by necessity."""
        position = self.manager.emitted
        self.lost = {v for v in self.log[position:offset] if v is not None}
        self.settled |= self.lost

    @rule()
    def emit(self):
        message = self.manager.next(self.now_ms)
        if message is not None:
            value = int(message.record.headers[0][0])
            assert value not in self.settled, "emitted after it was settled, in one life"
            self.in_flight.append((message.record.offset, message.ticket, value))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def ack(self, data):
        offset, ticket, value = self.take(data)
        if self.manager.ack(offset, ticket):
            self.settled.add(value)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def ack_many(self, data):
        count = data.draw(st.integers(1, len(self.in_flight)))
        taken = [self.take(data) for _ in range(count)]
        current = {value for offset, ticket, value in taken if self.manager.message(offset, ticket) is not None}
        stale = self.manager.ack_many([(offset, ticket) for offset, ticket, _ in taken + taken[:1]])
        assert stale == count + 1 - len(current), "of two acks of one emission, the second is stale"
        self.settled |= current

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), unavailable=st.booleans())
    def fail(self, data, unavailable):
        offset, ticket, _ = self.take(data)
        self.manager.fail(offset, ticket, self.now_ms, unavailable=unavailable)
        letters = self.manager.take_dead_letters()
        assert not (letters and unavailable), "given up although the attempt does not count"
        self.given_up += letters

    def take(self, data):
        index = data.draw(st.integers(0, len(self.in_flight) - 1))
        self.stale.append(self.in_flight.pop(index))
        return self.stale[-1]

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def answer_again(self, data):
        offset, ticket, _ = data.draw(st.sampled_from(self.stale))
        assert not self.manager.ack(offset, ticket) and not self.manager.fail(offset, ticket, self.now_ms)

    @precondition(lambda self: self.given_up)
    @rule(refused=st.booleans())
    def bury(self, refused):
        letter = self.given_up.pop(0)
        settle = self.manager.refused if refused else self.manager.buried
        if settle(letter.record.offset, letter.ticket):
            self.settled.add(int(letter.record.headers[0][0]))

    @rule(ms=st.integers(0, 1000))
    def wait(self, ms):
        self.now_ms += ms

    @rule()
    def commit(self):
        progress = self.manager.commit()
        if progress is not None:
            self.manager.stored(progress)
            self.stored = progress

    @rule()
    def restart(self):
        """Kill the manager: unstored progress is forgotten, but acks of the old run may still come."""
        self.stale += self.in_flight
        self.in_flight, self.given_up = [], []
        done = {v for o, v in enumerate(self.log) if v is not None and self.is_stored(o)}
        assert done <= self.settled, "stored as settled, and was not"
        self.settled = done
        self.manager = self.manager_from(self.stored)

    def is_stored(self, offset):
        return offset < self.stored.offset or any(a <= offset < b for a, b in self.stored.done)

    @precondition(lambda self: self.start < len(self.log))
    @rule(data=st.data())
    def compact(self, data):
        self.log[data.draw(st.integers(self.start, len(self.log) - 1))] = None

    @precondition(lambda self: self.start < len(self.log))
    @rule(data=st.data())
    def retention(self, data):
        self.start = data.draw(st.integers(self.start, len(self.log)))

    @invariant()
    def nothing_is_lost(self):
        self.manager.check()
        progress = self.manager.progress()
        assert len(progress.done) <= 2, "more ranges than the limit"
        for offset, value in enumerate(self.log[: self.manager.emitted]):
            covered = offset < progress.offset or any(a <= offset < b for a, b in progress.done)
            if covered and value is not None:
                assert value in self.settled, f"offset {offset} is called settled and never was"

    def teardown(self):
        """Settle every message in the end if all emissions are acked from here on."""
        for _ in range(10 * len(self.log) + 100):
            self.now_ms += 10_000
            wanted = self.manager.wanted()
            if wanted is not None:
                if not self.start <= wanted.offset <= len(self.log):
                    self.manager.out_of_range(self.start, len(self.log))
                else:
                    end = min(len(self.log), wanted.offset + wanted.max_records)
                    records = [
                        record(o, headers=((str(self.log[o]), None),))
                        for o in range(wanted.offset, end)
                        if self.log[o] is not None
                    ]
                    self.manager.fetched(records, end, len(self.log))
            while (message := self.manager.next(self.now_ms)) is not None:
                self.manager.ack(message.record.offset, message.ticket)
            for offset, ticket, _ in self.in_flight:
                self.manager.ack(offset, ticket)
            for letter in self.given_up + self.manager.take_dead_letters():
                self.manager.buried(letter.record.offset, letter.ticket)
        assert self.manager.pending == 0
        assert self.manager.watermark == max(len(self.log), self.manager.emitted)


Lives.TestCase.settings = settings(max_examples=100, stateful_step_count=60)
TestLives = Lives.TestCase
