"""Seeded transactions over crashes: each is visible whole or not at all, and no consumer is held back for ever.

Each seed is a life of several generations of one broker. Three transactional producers write to three partitions and
commit offsets. They commit, abort, replace each other, time out, and meet a full disk or an offline partition. Then the
process is killed or closed, or the power is cut. An oracle knows the requests and the answers.

In durable lives (flakelog.durable.acks) the power is also cut while a transaction is being ended, with some of its
syncs done. An answered transaction survives; an unanswered one is in all partitions or in none.

    replay:   FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/simulation/test_transactions.py -k one_seed
              the same with -k durable_seed for a durable life
"""

import os
from random import Random

import pytest

from tests.broker.engine_client import END_TXN, FETCH, FIND_COORDINATOR, OFFSET_FETCH, EngineBroker
from tests.broker.transactional import TransactionalProducer, committed_in, committed_request

PARTITIONS = [("flights", 0), ("flights", 1), ("storms", 0)]
IDS = ("a", "b", "c")
TIMEOUT_MS = 30_000
SETTINGS = {
    "transaction_state_log_num_partitions": 2,
    "offsets_topic_num_partitions": 2,
    "log_flush_offset_checkpoint_interval_ms": 20_000,
}
AGAIN = "FLAKELOG_SEED={} .venv/bin/python -m pytest tests/simulation/test_transactions.py -k {}_seed"
ENDED_HALF_WAY = []
"""The number of transactions being ended at each power cut."""


class Written:
    """A transaction: its values by partition, its offset, and its end as far as the producer was informed."""

    def __init__(self):
        self.values = {}
        self.offset = None
        self.asked = None  # True: a commit; False: an abort
        self.answered = False
        self.synced = False


class Life:
    def __init__(self, seed, durable=False):
        self.random = Random(seed)
        self.durable = durable
        self.settings = SETTINGS | {"durable_acks": durable}
        self.broker = EngineBroker(**self.settings)
        for topic, partitions in (("flights", 2), ("storms", 1)):
            self.broker.create(topic, partitions)
        self.broker.connect().ask(FIND_COORDINATOR, 0, {"key": "group"})
        self.history = []  # all transactions, in the order they began
        self.value = self.forgotten_offset = 0
        self.begin()

    def begin(self):
        self.producers = [TransactionalProducer(self.broker, each, timeout_ms=TIMEOUT_MS) for each in IDS]
        self.open = {}

    def generation(self):
        steps = self.write, self.write, self.write, self.commit_offset, self.end, self.end, self.init, self.later
        for _ in range(self.random.randrange(5, 30)):
            self.trouble()
            self.random.choice(steps)()
            self.broker.storage.free_bytes = None
            for log in self.broker.services.logs.all():
                log.offline = None if log.offline == "for a while" else log.offline
        self.random.choice((self.kill, self.power_cut if self.durable else self.kill, self.close, self.power_cut))()

    # --- steps ---------------------------------------------------------------------------------------------------

    def producer(self):
        producer = self.random.choice(self.producers)
        if producer.id < 0 or producer.client.closed:
            producer.client = self.broker.connect()
            if producer.init() != 0:
                return None
        return producer

    def transaction(self, producer):
        if producer.transactional_id not in self.open:
            self.open[producer.transactional_id] = Written()
            self.history.append(self.open[producer.transactional_id])
        return self.open[producer.transactional_id]

    def lost(self, producer):
        """Begin again, as clients do after an answer that says the transaction cannot continue."""
        self.open.pop(producer.transactional_id, None)
        producer.id = producer.epoch = -1

    def write(self):
        producer = self.producer()
        place = self.random.choice(PARTITIONS)
        if producer is None or producer.add(place) != 0:
            return producer and self.lost(producer)
        self.value += 1
        values = [b"%d.%d" % (self.value, n) for n in range(self.random.choice((1, 1, 3)))]
        self.transaction(producer).values.setdefault(place, []).extend(values)
        if producer.send(place[0], *values, partition=place[1]) != 0:
            self.lost(producer)

    def commit_offset(self):
        producer = self.producer()
        if producer is None or producer.add_offsets("group") != 0:
            return producer and self.lost(producer)
        self.value += 1
        written = self.transaction(producer)
        written.offset = self.value
        if producer.commit_offset("group", "flights", self.value) != 0:
            self.lost(producer)

    def end(self):
        producer = self.producer()
        written = producer and self.open.get(producer.transactional_id)
        if not written:
            return
        written.asked = bool(self.random.randrange(3))
        if producer.end(written.asked) == 0:
            written.answered = True
            del self.open[producer.transactional_id]
        else:
            self.lost(producer)

    def init(self):
        """Replace a producer, which may be in a transaction, with another."""
        producer = self.random.choice(self.producers)
        self.lost(producer)
        self.producer()

    def later(self):
        self.broker.at(self.broker.now_ms + self.random.choice((1, 50, 2_000, 15_000)))
        for producer in self.producers:
            producer.client = self.broker.connect()

    def trouble(self):
        self.broker.now_ms += 1
        if not self.random.randrange(12):
            self.broker.storage.free_bytes = self.random.randrange(600)
        if not self.random.randrange(12):
            log = self.broker.services.log_of(*self.random.choice(PARTITIONS))
            log.offline = log.offline or "for a while"

    # --- crashes -------------------------------------------------------------------------------------------------

    def kill(self):
        self.broker = self.broker.restarted(clean=False)
        self.check(lost_power=False)

    def close(self):
        self.broker = self.broker.restarted(clean=True)
        for each in self.history:
            each.synced = each.answered
        self.check(lost_power=False)

    def power_cut(self):
        if self.random.randrange(2):
            self.broker.services.logs.close()
            for each in self.history:
                each.synced = each.answered
            self.broker = self.broker.restarted(clean=False)
            self.begin()
            for _ in range(self.random.randrange(6)):
                self.broker.now_ms += 1  # the milliseconds distinguish a transaction from the one before it
                self.random.choice((self.write, self.end, self.commit_offset))()
        if self.durable:
            self.broker.storage.free_bytes = None
            for _ in range(self.random.randrange(8)):
                self.broker.now_ms += 1
                self.write()
            self.end_half_way()
        storage = self.broker.storage.power_cut(self.random.randrange)
        self.broker = EngineBroker(storage, self.broker.now_ms + 10_000, **self.settings)
        self.check(lost_power=True)

    def end_half_way(self):
        """End the open transactions, but run only some of the syncs this takes."""
        ends = []
        for producer in self.producers:
            written = self.open.get(producer.transactional_id)
            if written is not None and not producer.client.closed:
                written.asked = bool(self.random.randrange(4))
                ends.append((producer, written))
        held = self.broker.hold_syncs()
        for producer, written in ends:
            fields = {"transactional_id": producer.transactional_id, "producer_id": producer.id}
            fields |= {"producer_epoch": producer.epoch, "committed": written.asked}
            producer.client.send(END_TXN, 4, fields)
        for _ in range(self.random.randrange(6)):
            if held:
                self.broker.run(held.pop(self.random.randrange(len(held))))
                self.broker.pump()
        for producer, written in ends:
            written.answered = [answer.error_code for _, answer in producer.client.replies()] == [0]
        if held:
            ENDED_HALF_WAY.append(len(ends))

    # --- the oracle ----------------------------------------------------------------------------------------------

    def check(self, lost_power):
        assert not self.broker.services.logs.offline
        self.broker.at(self.broker.now_ms + TIMEOUT_MS + 21_000)  # open transactions have timed out, ends were retried
        for place in PARTITIONS:
            log = self.broker.services.log_of(*place)
            assert log.last_stable_offset == log.log_end_offset, f"{log.name} is held back"
            self.check_values(place, lost_power)
        if self.durable or not lost_power:
            self.check_offset()
        self.settle(lost_power)
        self.begin()

    def found(self, place):
        answer = self.broker.connect().ask(FETCH, 12, committed_request(*place))
        return committed_in(answer)

    def check_values(self, place, lost_power):
        found = self.found(place)
        assert len(found) == len(set(found)), "a value twice"
        seen = set(found)
        for each in self.history:
            values = set(each.values.get(place, ()))
            if not values:
                continue
            if each.asked is not True:
                assert not values & seen, f"{place}: of a transaction nobody asked to commit, {values & seen} is seen"
            elif each.synced or (each.answered and (self.durable or not lost_power)):
                assert values <= seen, f"{place}: {values - seen} of a transaction that was committed is gone"

    def check_offset(self):
        """Check the committed offset: the last one answered, or a later one of a transaction that was not answered."""
        topics = [{"name": "flights", "partition_indexes": [0]}]
        fields = {"group_id": "group", "topics": topics, "require_stable": True}
        answer = self.broker.connect().ask(OFFSET_FETCH, 7, fields)
        found = answer.topics[0].partitions[0]
        assert found.error_code == 0
        if found.committed_offset <= self.forgotten_offset:
            return  # written before the power cut
        must = max((each.offset for each in self.history if each.offset and each.asked and each.answered), default=-1)
        may = {each.offset for each in self.history if each.offset and each.asked}
        assert found.committed_offset == must or (found.committed_offset in may and found.committed_offset > must)

    def settle(self, lost_power):
        """Adopt the values found as the outcome of each transaction; only offsets may remain in doubt."""
        seen = {place: set(self.found(place)) for place in PARTITIONS}
        for each in self.history:
            shown = [set(values) & seen[place] == set(values) for place, values in each.values.items()]
            if each.asked and not each.answered and shown and (self.durable or not lost_power):
                none = not any(set(values) & seen[place] for place, values in each.values.items())
                assert all(shown) or none, f"half of {each.values} is seen"
            if lost_power or (shown and not each.answered):
                each.values = {p: [v for v in values if v in seen[p]] for p, values in each.values.items()}
                each.answered = each.asked = any(each.values.values()) or None
                each.offset = None if lost_power or not each.asked else each.offset
            each.synced = False
        if lost_power:
            self.history = [each for each in self.history if any(each.values.values())]
            self.forgotten_offset = self.value


def live(seed, generations, durable=False):
    try:
        life = Life(seed, durable)
        for _ in range(generations):
            life.generation()
    except BaseException as error:
        error.add_note("again: " + AGAIN.format(seed, "durable" if durable else "one"))
        raise


@pytest.mark.parametrize("start", range(0, 24, 6))
def test_transactions_are_whole_or_not_at_all_after_crashes(start):
    for seed in range(start, start + 6):
        live(seed, generations=4)


@pytest.mark.parametrize("start", range(0, 24, 6))
def test_with_durable_acks_what_was_answered_survives_every_power_cut(start):
    """A commit is visible in all its partitions, an abort in none, and no transaction in only some of them."""
    ENDED_HALF_WAY.clear()
    for seed in range(start, start + 6):
        live(seed, generations=4, durable=True)
    assert sum(ENDED_HALF_WAY) > 3


def test_durable_seed():
    """The seed of FLAKELOG_SEED, or 0, passes in a durable life."""
    live(int(os.environ.get("FLAKELOG_SEED", "0")), generations=10, durable=True)


def test_one_seed():
    """The seed of FLAKELOG_SEED, or 0, passes."""
    live(int(os.environ.get("FLAKELOG_SEED", "0")), generations=10)


@pytest.mark.soak
@pytest.mark.parametrize("durable", [False, True])
def test_transactions_are_whole_after_crashes_for_2000_seeds(durable):
    for seed in range(1_000, 3_000):
        live(seed, generations=10, durable=durable)
