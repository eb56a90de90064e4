"""The transactional producer against a broker without sockets, with each request or answer lost once."""

import random

import pytest

from broker.client.api_versions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    TXN_OFFSET_COMMIT,
)
from broker.client.errors import BrokerError
from broker.client.group_requests import CommittedOffset, GroupIdentity
from broker.client.transaction import (
    GROUP,
    MustAbort,
    ProducerFenced,
    TransactionalProducer,
    TransactionPhase,
    TryAgain,
)
from broker.record.records import BatchRecord
from broker.wire import produce
from broker.wire.errors import ErrorCode
from tests.broker.client.engine_shell import LOST_ANSWER, LOST_REQUEST, EngineShell, read_committed
from tests.broker.engine_client import OFFSET_FETCH, EngineBroker

STEPS = {
    "metadata": METADATA,
    "coordinator": FIND_COORDINATOR,
    "producer id": INIT_PRODUCER_ID,
    "add partitions": ADD_PARTITIONS_TO_TXN,
    "produce": produce.API_KEY,
    "add offsets": ADD_OFFSETS_TO_TXN,
    "commit offsets": TXN_OFFSET_COMMIT,
    "end": END_TXN,
}
NO_MEMBER = GroupIdentity("copiers")


def cluster(partitions=2, **settings):
    broker = EngineBroker(**settings)
    broker.create("in", 1)
    broker.create("out", partitions)
    broker.connect().ask(FIND_COORDINATOR, 3, {"key": "copiers", "key_type": GROUP})  # creates the topic of the offsets
    return broker


def producer_of(shell, name="copier", timeout_ms=60_000):
    return TransactionalProducer(shell.core, name, timeout_ms)


def add(producer, *values, partition=0, topic="out"):
    producer.add(topic, partition, [BatchRecord(n, 0, None, value) for n, value in enumerate(values)], 1_000)


def add_offset(producer, offset, identity=NO_MEMBER, metadata=""):
    producer.add_offsets(identity, {("in", 0): CommittedOffset(offset, metadata=metadata)})


def position(broker, group_id="copiers"):
    topics = [{"name": "in", "partition_indexes": [0]}]
    answer = broker.connect().ask(OFFSET_FETCH, 7, {"group_id": group_id, "topics": topics, "require_stable": True})
    (result,) = answer.topics[0].partitions
    assert result.error_code == 0, "a transaction that is still open has an offset of this group"
    return result.committed_offset, result.metadata


def seen(broker, partition=0, topic="out"):
    """Return all values that a read_committed reader gets."""
    return read_committed(broker, topic, partition)


def lose(api_key, how):
    """Return a fault that loses the first request of an API, or its answer."""
    faults = [how]

    def fault(exchange):
        return faults.pop() if faults and exchange.api_key == api_key else None

    return fault


def test_records_of_two_partitions_and_an_offset_are_committed_together():
    broker = cluster()
    shell = EngineShell(broker)
    producer = producer_of(shell)
    shell.run(producer.begin())
    add(producer, b"a", b"b")
    add(producer, b"c")
    add(producer, b"d", partition=1)
    add_offset(producer, 3, metadata="ranges")
    shell.run(producer.flush())
    assert seen(broker) == [] and producer.state is TransactionPhase.OPEN
    shell.run(producer.commit())
    assert (seen(broker), seen(broker, 1), position(broker)) == ([b"a", b"b", b"c"], [b"d"], (3, "ranges"))


def test_the_next_transaction_goes_on_in_the_same_epoch():
    broker = cluster()
    shell = EngineShell(broker)
    producer = producer_of(shell)
    for value in (b"a", b"b"):
        shell.run(producer.begin())
        add(producer, value)
        shell.run(producer.commit())
    assert seen(broker) == [b"a", b"b"] and shell.api_keys.count(INIT_PRODUCER_ID) == 1


def test_an_aborted_transaction_leaves_nothing_and_the_next_one_has_another_epoch():
    """KIP-360: the sequence numbers begin again, so a Produce of unknown outcome leaves no doubt."""
    broker = cluster()
    shell = EngineShell(broker)
    producer = producer_of(shell)
    shell.run(producer.begin())
    epoch = producer.epoch
    add(producer, b"a")
    add_offset(producer, 1)
    shell.run(producer.flush())
    shell.run(producer.abort())
    shell.run(producer.begin())
    add(producer, b"b")
    shell.run(producer.commit())
    assert (seen(broker), position(broker)[0], producer.epoch) == ([b"b"], -1, epoch + 1)


def test_an_empty_transaction_asks_the_coordinator_for_nothing():
    shell = EngineShell(cluster())
    producer = producer_of(shell)
    shell.run(producer.begin())
    shell.run(producer.commit())
    assert END_TXN not in shell.api_keys and producer.state is TransactionPhase.READY


@pytest.mark.parametrize("how", [LOST_REQUEST, LOST_ANSWER])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_without_an_answer_is_repeated_and_takes_effect_once(step, how):
    broker = cluster()
    shell = EngineShell(broker, lose(STEPS[step], how))
    producer = producer_of(shell)
    for value, offset in ((b"a", 1), (b"b", 2)):
        shell.persist(producer.begin)
        add(producer, value)
        add_offset(producer, offset)
        shell.persist(producer.commit)
    assert seen(broker) == [b"a", b"b"] and position(broker)[0] == 2


@pytest.mark.parametrize("how", [LOST_REQUEST, LOST_ANSWER])
def test_an_abort_without_an_answer_is_repeated(how):
    broker = cluster()
    shell = EngineShell(broker, lose(END_TXN, how))
    producer = producer_of(shell)
    shell.run(producer.begin())
    add(producer, b"a")
    shell.run(producer.flush())
    shell.persist(producer.abort)
    shell.persist(producer.begin)
    add(producer, b"b")
    shell.persist(producer.commit)
    assert seen(broker) == [b"b"]


def test_a_coordinator_that_restarts_is_found_again_and_the_end_is_asked_until_it_is_known():
    broker = cluster()
    shell = EngineShell(broker, lose(END_TXN, LOST_ANSWER))
    producer = producer_of(shell)
    shell.run(producer.begin())
    add(producer, b"a")
    with pytest.raises(TryAgain) as again:
        shell.run(producer.commit())
    assert producer.state is TransactionPhase.COMMITTING and again.value.pause_ms == 20
    shell.broker = broker.restarted(clean=False)
    shell.persist(producer.commit)
    assert seen(shell.broker) == [b"a"]


def test_a_transaction_whose_commit_began_cannot_be_aborted():
    shell = EngineShell(cluster(), lose(END_TXN, LOST_ANSWER))
    producer = producer_of(shell)
    shell.run(producer.begin())
    add(producer, b"a")
    with pytest.raises(TryAgain):
        shell.run(producer.commit())
    with pytest.raises(ValueError, match="is committing; this needs: open or to be aborted"):
        shell.run(producer.abort())


def test_pauses_double_up_to_a_second():
    shell = EngineShell(cluster(), lambda exchange: LOST_REQUEST)
    producer = producer_of(shell)
    pauses = []
    for _ in range(8):
        with pytest.raises(TryAgain) as again:
            shell.run(producer.begin())
        pauses.append(again.value.pause_ms)
    assert pauses == [20, 40, 80, 160, 320, 640, 1_000, 1_000]


def test_the_next_producer_of_a_transactional_id_fences_the_former_one():
    broker = cluster()
    shell = EngineShell(broker)
    former, latter = producer_of(shell), producer_of(shell)
    shell.run(former.begin())
    add(former, b"zombie")
    shell.run(former.flush())
    shell.persist(latter.begin)
    add(latter, b"a")
    shell.run(latter.commit())
    with pytest.raises(ProducerFenced, match="transactional id copier: PRODUCER_FENCED"):
        shell.run(former.commit())
    assert seen(broker) == [b"a"] and former.state is TransactionPhase.FENCED


def test_a_fenced_producer_that_produces_must_abort_and_learns_of_the_fence_then():
    shell = EngineShell(cluster())
    former, latter = producer_of(shell), producer_of(shell)
    shell.run(former.begin())
    add(former, b"zombie")
    shell.run(former.flush())
    shell.persist(latter.begin)
    add(former, b"again")
    with pytest.raises(MustAbort, match="out-0"):
        shell.run(former.flush())
    with pytest.raises(ProducerFenced):
        shell.run(former.abort())


def test_a_transaction_open_for_too_long_is_aborted_by_the_coordinator():
    broker = cluster()
    shell = EngineShell(broker)
    producer = producer_of(shell, timeout_ms=5_000)
    shell.run(producer.begin())
    add(producer, b"late")
    shell.run(producer.flush())
    broker.at(broker.now_ms + 20_000)
    with pytest.raises(ProducerFenced):
        shell.run(producer.commit())
    assert seen(broker) == []


@pytest.mark.parametrize(
    "identity, code",
    [
        (GroupIdentity("copiers", 1, "gone"), ErrorCode.UNKNOWN_MEMBER_ID),
        (GroupIdentity("copiers", 3), ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_offsets_of_a_membership_that_has_ended_abort_the_transaction(identity, code):
    """KIP-447: the group's generation fences a member that lost its partitions."""
    broker = cluster()
    shell = EngineShell(broker)
    producer = producer_of(shell)
    shell.run(producer.begin())
    add(producer, b"a")
    add_offset(producer, 1, identity)
    with pytest.raises(MustAbort, match=f"group copiers, in-0: {code.name}|group copiers, in-0: ") as stop:
        shell.run(producer.commit())
    assert stop.value.member_fenced
    shell.run(producer.abort())
    assert seen(broker) == [] and position(broker)[0] == -1


def test_a_missing_topic_is_waited_for():
    broker = cluster()
    shell = EngineShell(broker)
    producer = producer_of(shell)
    shell.run(producer.begin())
    add(producer, b"a", topic="new")
    with pytest.raises(TryAgain, match="UNKNOWN_TOPIC_OR_PARTITION"):
        shell.run(producer.commit())
    broker.create("new")
    shell.persist(producer.commit)
    assert seen(broker, topic="new") == [b"a"]


def test_a_record_that_the_topic_refuses_aborts_the_transaction():
    broker = cluster()
    broker.create("small", max_message_bytes=100)
    shell = EngineShell(broker)
    producer = producer_of(shell)
    shell.run(producer.begin())
    add(producer, b"x" * 200, topic="small")
    with pytest.raises(MustAbort, match="small-0: MESSAGE_TOO_LARGE") as stop:
        shell.run(producer.commit())
    assert not stop.value.member_fenced


def test_a_setting_that_the_broker_refuses_ends_the_producer():
    shell = EngineShell(cluster())
    producer = producer_of(shell, timeout_ms=1 << 30)
    with pytest.raises(BrokerError, match="transactional id copier: INVALID_TRANSACTION_TIMEOUT"):
        shell.run(producer.begin())
    assert producer.state is TransactionPhase.BROKEN
    with pytest.raises(ValueError, match="the producer of 'copier' is broken; this needs: ready"):
        shell.run(producer.begin())


def test_records_are_added_to_an_open_transaction_only():
    producer = producer_of(EngineShell(cluster()))
    with pytest.raises(ValueError, match="is ready; this needs: open"):
        add(producer, b"a")


# --- a model: copy a topic, with faults anywhere


class Copier:
    """Copies numbers from a list to a topic, one transaction for several, and is killed and replaced at any exchange.

    The broker restarts, requests and answers are lost, and the copier is fenced by its successor in mid-transaction.
    """

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.shell = EngineShell(cluster(), self._fault)
        self.zombies = []
        self.faults = self.aborts = 0
        self.calm = False
        self.begin_life()

    def _fault(self, exchange):
        if self.calm or self.chance.random() < 0.85:
            return None
        self.faults += 1
        return self.chance.choice([LOST_REQUEST, LOST_ANSWER])

    def begin_life(self):
        self.producer = producer_of(self.shell, timeout_ms=30_000)

    def work(self, total):
        while True:
            if not self.calm and self.chance.random() < 0.1:
                self.shell.broker = self.shell.broker.restarted(later_ms=100, clean=self.chance.random() < 0.5)
            self.shell.persist(self.producer.begin)  # ends what a predecessor left open, so that the offset is stable
            done = max(0, position(self.shell.broker)[0])
            if done == total:
                self._end(self.producer.abort)
                return
            try:
                self._copy(done, min(total, done + self.chance.randint(1, 4)))
            except MustAbort:
                self.aborts += 1
                self._end(self.producer.abort)
            except ProducerFenced:
                self.begin_life()

    def _copy(self, first, end):
        for number in range(first, end):
            add(self.producer, b"%d" % number, partition=number % 2)
        add_offset(self.producer, end)
        dice = 1.0 if self.calm else self.chance.random()
        if dice < 0.1:
            self._end(self.producer.flush)
            self._end(self.producer.abort)
        elif dice < 0.2:  # killed: a successor takes over while this one still runs
            self._end(self.producer.flush)
            self.zombies.append(self.producer)
            self.begin_life()
        else:
            self._end(self.producer.commit)
        if self.zombies and dice > 0.5:
            self._haunt(self.zombies.pop())

    def _haunt(self, zombie):
        try:
            self.shell.persist(zombie.commit)
        except (ProducerFenced, MustAbort):
            pass  # if it was not fenced, because its successor has not begun, its transaction counts

    def _end(self, operation):
        self.shell.persist(operation)


@pytest.mark.parametrize("seed", range(12))
def test_a_read_committed_reader_sees_each_copied_number_once_and_in_order(seed):
    copier = Copier(seed)
    copier.work(30)
    copier.calm = True
    copier.work(40)
    values = [seen(copier.shell.broker, partition) for partition in (0, 1)]
    assert values == [[b"%d" % number for number in range(40) if number % 2 == partition] for partition in (0, 1)]
    assert copier.faults > 5
