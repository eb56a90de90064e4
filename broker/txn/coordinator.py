"""All transactional ids of one broker: the verbs of Kafka's transaction coordinator, their answers as values.

A verb changes nothing. It gives a `Decision`: what the client is to be told, and the transaction as it would be then.
Whoever runs the coordinator appends that to `__transaction_state`, and only when it stands there calls `apply`, then
answers. So nothing is ever true in memory that a restart would not find again, and there is nothing to be taken back.

    decide -> append -> apply -> answer
                          `-> prepared? markers into each partition -> append completed -> apply

At start every record of the partitions led here goes through `load`, in order, and `loaded` ends it.
"""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from broker.now import Now
from broker.txn.config import TransactionConfig
from broker.txn.records import ID_BYTES_MAX, read_key, read_value
from broker.txn.states import TransactionState
from broker.txn.transaction import EPOCH_BUMPING, EPOCH_LAST, NO_EPOCH, Transaction
from broker.wire.errors import ErrorCode

Partition = tuple[str, int]

AHEAD_MS = 500  # how far ids, which tell when something was written, may run ahead of the clock


class Decision(NamedTuple):
    """What a verb comes to: `change` is to be logged, and when it is, the client is told `error`."""

    error: ErrorCode
    change: Transaction | None = None


class Remembered(NamedTuple):
    """The last transaction of a producer id that the records know of: `commit` is its end, None while it is on."""

    partitions: frozenset[Partition]
    commit: bool | None
    started_ms: int
    decided_ms: int


class Past(dict[int, Remembered]):
    """What the records say, by producer id, of transactions that are found open in a partition: after a power cut a
    marker may be gone that was written, or all that the coordinator knew of a transaction."""

    def outcome(self, producer_id: int, partition: Partition, written_ms: int | None) -> bool | None:
        """How one ends whose first batch was written then, None where that is not known. True: it was committed; None:
        it is still on. False: aborted, or nobody knows of it, and so nobody can ever commit it. One written before the
        last one of its producer started is an earlier one, whose abort is gone; one written after that was decided is a
        later one, of which no record is left."""
        known = self.get(producer_id)
        if known is None or partition not in known.partitions:
            return False
        if written_ms is not None and written_ms < known.started_ms:
            return False
        if written_ms is not None and known.commit is not None and written_ms > known.decided_ms + AHEAD_MS:
            return False
        return known.commit


class TransactionCoordinator:
    """See the module. `new_producer_id` gives an id nobody had; what it raises comes out of the verbs."""

    def __init__(self, config: TransactionConfig, new_producer_id: Callable[[], int], now_ms: int = 0) -> None:
        self._config = config
        self._new_producer_id = new_producer_id
        self._transactions: dict[str, Transaction] = {}
        self._ongoing: dict[str, None] = {}
        self._past = Past()
        self._abort_ms = now_ms + config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._expire_ms = now_ms + config.transaction_remove_expired_transaction_cleanup_interval_ms

    def __len__(self) -> int:
        """How many transactional ids there are."""
        return len(self._transactions)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(list(self._transactions.values()))

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    # --- verbs ---------------------------------------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None, now: Now
    ) -> Decision:
        """InitProducerId: `expected` are the producer id and epoch the client had (KIP-360).

        A transaction that is open is aborted in the next epoch: CONCURRENT_TRANSACTIONS has the client ask again.
        """
        if not transactional_id or len(transactional_id.encode()) > ID_BYTES_MAX:
            return Decision(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            return Decision(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        known = self._transactions.get(transactional_id)
        if known is None:
            if len(self._transactions) >= self._config.transactional_ids_max:
                return Decision(ErrorCode.POLICY_VIOLATION)
            new = Transaction(
                transactional_id=transactional_id,
                producer_id=self._new_producer_id(),
                producer_epoch=NO_EPOCH,
                timeout_ms=timeout_ms,
                updated_ms=now.wall_ms,
            )
            return Decision(ErrorCode.NONE, new.initialized(timeout_ms, now.wall_ms, 0, NO_EPOCH))
        if expected is not None and not _may_expect(known, *expected):
            return Decision(ErrorCode.PRODUCER_FENCED)
        if known.state.is_prepared:
            return Decision(ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.state is TransactionState.ONGOING:
            return Decision(ErrorCode.CONCURRENT_TRANSACTIONS, known.fenced(now.wall_ms))
        return self._take_over(known, timeout_ms, None if expected is None else expected[1], now.wall_ms)

    def _take_over(self, known: Transaction, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> Decision:
        """The next epoch, or the one that a client asks for once more because it did not get the answer."""
        epoch = known.producer_epoch
        if expected_epoch not in (None, epoch):
            again = known if expected_epoch == known.last_epoch else None
            return Decision(ErrorCode.PRODUCER_FENCED if again is None else ErrorCode.NONE, again)
        keeps_last = expected_epoch is not None
        if known.is_exhausted:
            producer_id = self._new_producer_id()
            return Decision(ErrorCode.NONE, known.rotated(producer_id, timeout_ms, now_ms, keeps_last))
        last_epoch = epoch if keeps_last else NO_EPOCH
        return Decision(ErrorCode.NONE, known.initialized(timeout_ms, now_ms, epoch + 1, last_epoch))

    def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[Partition], now: Now
    ) -> Decision:
        """AddPartitionsToTxn and AddOffsetsToTxn: begins the transaction where none is on."""
        if not transactional_id:
            return Decision(ErrorCode.INVALID_REQUEST)
        known, error = self._of_producer(transactional_id, producer_id, epoch)
        if known is None:
            return Decision(error)
        if known.state is TransactionState.ONGOING and known.partitions.issuperset(partitions):
            return Decision(ErrorCode.NONE)
        return Decision(ErrorCode.NONE, known.with_partitions(frozenset(partitions), now.wall_ms))

    def verify(self, transactional_id: str, producer_id: int, epoch: int, partition: Partition) -> ErrorCode:
        """Whether a batch may be written to a partition in the name of this transaction (KIP-890):
        TRANSACTION_ABORTABLE where the partition was not added to it."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        known, error = self._of_producer(transactional_id, producer_id, epoch)
        if known is None:
            return error
        return ErrorCode.NONE if partition in known.partitions else ErrorCode.TRANSACTION_ABORTABLE

    def _of_producer(
        self, transactional_id: str, producer_id: int, epoch: int
    ) -> tuple[Transaction | None, ErrorCode]:
        """The transactional id, where this producer has it and no end of a transaction is on; else why not."""
        known = self._transactions.get(transactional_id)
        if known is None or known.producer_id != producer_id:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if known.producer_epoch != epoch:
            return None, ErrorCode.PRODUCER_FENCED
        if known.state.is_prepared:
            return None, ErrorCode.CONCURRENT_TRANSACTIONS
        return known, ErrorCode.NONE

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool, bumps_epoch: bool, now: Now
    ) -> Decision:
        """EndTxn. `bumps_epoch`: the producer goes on in the next epoch (KIP-890). An end that is asked for again is
        NONE when it is done, CONCURRENT_TRANSACTIONS while it is not; the other end is INVALID_TXN_STATE. With
        `bumps_epoch` there may be nothing to abort: the producer does not know whether anything was begun."""
        if not transactional_id:
            return Decision(ErrorCode.INVALID_REQUEST)
        known = self._transactions.get(transactional_id)
        if known is None:
            return Decision(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        repeats = bumps_epoch and _repeats_end(known, producer_id, epoch)
        error = ErrorCode.NONE if repeats else _check_end(known, producer_id, epoch, bumps_epoch)
        if error:
            return Decision(error)
        of_nothing = bumps_epoch and not (commit or repeats or known.state.is_prepared)
        if known.state is not TransactionState.ONGOING and not of_nothing:
            same = known.state is not TransactionState.EMPTY and known.commits == commit
            told = repeats or not bumps_epoch or known.state.is_prepared
            done = ErrorCode.CONCURRENT_TRANSACTIONS if known.state.is_prepared else ErrorCode.NONE
            return Decision(done if same and told else ErrorCode.INVALID_TXN_STATE)
        if not bumps_epoch:
            return Decision(ErrorCode.NONE, known.ended(commit, now.wall_ms))
        following = (self._new_producer_id(),) if known.is_exhausted else ()
        return Decision(ErrorCode.NONE, known.ended_with_next_epoch(commit, now.wall_ms, *following))

    def apply(self, change: Transaction) -> None:
        """The change stands in the log: it counts from now on."""
        self._transactions[change.transactional_id] = change
        if change.state is TransactionState.ONGOING:
            self._ongoing[change.transactional_id] = None
        else:
            self._ongoing.pop(change.transactional_id, None)

    def forget(self, transactional_id: str) -> None:
        """Its tombstone stands in the log."""
        self._transactions.pop(transactional_id, None)
        self._ongoing.pop(transactional_id, None)

    # --- time ----------------------------------------------------------------------------------------------------

    def timed_out(self, now: Now) -> list[str]:
        """The ids of transactions that are on for too long, where it is time to look for them."""
        if now.ms < self._abort_ms:
            return []
        self._abort_ms = now.ms + self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        ongoing = (self._transactions[each] for each in self._ongoing)
        return [each.transactional_id for each in ongoing if each.is_late(now.wall_ms)]

    def time_out(self, transactional_id: str, now: Now) -> Decision:
        """Abort its transaction, if that is on for too long still."""
        known = self._transactions.get(transactional_id)
        late = known is not None and known.state is TransactionState.ONGOING and known.is_late(now.wall_ms)
        return Decision(ErrorCode.NONE, known.fenced(now.wall_ms) if known is not None and late else None)

    def expired(self, now: Now) -> list[str]:
        """Transactional ids nobody has used for long, where it is time to look for them."""
        if now.ms < self._expire_ms:
            return []
        self._expire_ms = now.ms + self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        return [each for each in self._transactions if self.is_expired(each, now)]

    def is_expired(self, transactional_id: str, now: Now) -> bool:
        known = self._transactions.get(transactional_id)
        unused_since_ms = now.wall_ms - self._config.transactional_id_expiration_ms
        return known is not None and known.state.may_expire and known.updated_ms <= unused_since_ms

    def next_deadline_ms(self) -> int | None:
        """When one of the two is wanted, on the monotonic clock."""
        if not self._transactions:
            return None
        return min(self._abort_ms, self._expire_ms) if self._ongoing else self._expire_ms

    # --- start ---------------------------------------------------------------------------------------------------

    def load(self, key: bytes, value: bytes | None) -> None:
        """Replay one record; kinds only a newer Kafka writes are passed over. BadTransactionRecord."""
        transactional_id = read_key(key)
        if transactional_id is None:
            return
        if value is None:
            self.forget(transactional_id)
            return
        transaction = read_value(transactional_id, value)
        self.apply(transaction)
        prepared = transaction.state.is_prepared
        if prepared or transaction.state is TransactionState.ONGOING:
            commit = transaction.commits if prepared else None
            times_ms = transaction.started_ms, transaction.updated_ms
            self._past[transaction.producer_id] = Remembered(transaction.partitions, commit, *times_ms)

    def loaded(self) -> Past:
        """All records have been replayed."""
        past, self._past = self._past, Past()
        return past


def _may_expect(known: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether a client that names this producer id and epoch can be the one that has the transactional id: by the id,
    or by the one before, which it had when its epochs were used up and the answer got lost (KIP-360)."""
    if producer_id == known.producer_id:
        return True
    return producer_id == known.previous_producer_id and epoch >= EPOCH_LAST


def _repeats_end(known: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether a producer that goes on in the next epoch, or with the next producer id, asks for its last end again."""
    if known.client_version < EPOCH_BUMPING or known.state is TransactionState.ONGOING:
        return False
    if (producer_id, epoch) == (known.previous_producer_id, EPOCH_LAST) and known.producer_epoch == 0:
        return True
    return (producer_id, epoch) == (known.producer_id, known.producer_epoch - 1)


def _check_end(known: Transaction, producer_id: int, epoch: int, bumps_epoch: bool) -> ErrorCode:
    """Whether it is this producer's to end. What is being ended by one that goes on in the next epoch has that
    already, and only its last one may ask for it (`_repeats_end`)."""
    if known.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    over = bumps_epoch and known.state.is_prepared
    return ErrorCode.NONE if epoch == known.producer_epoch and not over else ErrorCode.PRODUCER_FENCED
