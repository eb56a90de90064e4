"""The transactional ids of one partition of `__transaction_state`: the operations of Kafka's transaction coordinator.

An operation changes nothing. It returns a `Decision`: the client's error code and the changed transaction. The caller
appends the change to `__transaction_state`, then calls `apply`, then answers the client. So memory never holds a state
that a restart would not find again, and no change has to be undone.

    decide -> append -> apply -> answer
                          `-> prepared? markers into each partition -> append completed -> apply

A crash may take back the last records of the log, and with them epochs that partitions have seen. A producer must never
get such an epoch a second time: its batches could be taken for duplicates of earlier ones. So after an unclean start a
transactional id continues with a new producer id, at its next InitProducerId or the next end that takes an epoch.

To load the partition, the caller replays each of its records through `load`, in order. At the start of a broker it
names the producers to `remember` before, and calls `loaded` afterwards.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from broker.now import Now
from broker.settings.transaction_config import TransactionConfig
from broker.steps import Pace
from broker.txn.records import ID_BYTES_MAX, read_key, read_value
from broker.txn.states import TransactionState
from broker.txn.transaction import EPOCH_BUMPING, EPOCH_LAST, NO_EPOCH, Transaction
from broker.wire.errors import ErrorCode

Partition = tuple[str, int]

AHEAD_MS = 500  # how far ids, which give the time of a write, may run ahead of the clock


class Decision(NamedTuple):
    """The result of an operation: the caller logs `change`, if any, and then answers the client with `error`."""

    error: ErrorCode
    change: Transaction | None = None


class Remembered(NamedTuple):
    """A transaction of a producer id in the records. `commit` says how it ended, None while it is open."""

    partitions: frozenset[Partition]
    epoch: int
    commit: bool | None
    started_ms: int
    decided_ms: int


class Past:
    """The transactions of some producer ids in the records, to decide how transactions open in a partition end.

    A power cut may lose a marker that was written, or all records of a transaction in the coordinator's log. `since_ms`
    has, for each producer with an open transaction, when its first open batch was written, by the time in its id.
    Transactions that were decided earlier are not remembered.
    """

    def __init__(self, since_ms: Mapping[int, int]) -> None:
        self._since_ms = since_ms
        self._by_producer: dict[int, list[Remembered]] = {producer_id: [] for producer_id in since_ms}
        """In the order of the records."""

    def join(self, other: "Past") -> None:
        """Add what another partition's records remember. All records of a producer are in one partition."""
        for producer_id, transactions in other._by_producer.items():
            self._by_producer.setdefault(producer_id, []).extend(transactions)

    def note(self, transaction: Transaction) -> None:
        """Remember a record of a transaction that is open or decided."""
        prepared = transaction.state.is_prepared
        transactions = self._by_producer.get(transaction.producer_id)
        if transactions is None or not (prepared or transaction.state is TransactionState.ONGOING):
            return
        remembered = Remembered(
            transaction.partitions,
            transaction.producer_epoch,
            transaction.commits if prepared else None,
            transaction.started_ms,
            transaction.updated_ms,
        )
        if (
            transactions
            and transactions[-1].started_ms == remembered.started_ms
            and (prepared or transactions[-1].commit is None)
        ):
            transactions.pop()  # an earlier record of the same transaction
        if not prepared or remembered.decided_ms + AHEAD_MS >= self._since_ms[transaction.producer_id]:
            transactions.append(remembered)

    def outcome(
        self, producer_id: int, partition: Partition, written_ms: int | None, epoch: int | None = None
    ) -> bool | None:
        """Return True if the producer's transaction committed, False if it must be aborted, None while it is open.

        `written_ms` is when its first batch was written to the partition, and `epoch` the producer's epoch there; None
        if not known. It belongs to the latest known transaction with this partition that had started by then. A batch
        of a later epoch, or written after that transaction was decided, belongs to a later one, whose records were
        lost. A transaction without a record is aborted, because no client can commit it any longer.
        """
        for remembered in reversed(self._by_producer.get(producer_id, ())):
            if epoch is not None and epoch > remembered.epoch:
                return False
            if partition in remembered.partitions and (written_ms is None or remembered.started_ms <= written_ms):
                is_later = written_ms is not None and written_ms > remembered.decided_ms + AHEAD_MS
                return False if is_later and remembered.commit is not None else remembered.commit
        return False


class Totals:
    """The numbers of transactional ids of all coordinators of one broker."""

    __slots__ = ("ids", "ongoing")

    def __init__(self) -> None:
        self.ids = 0
        self.ongoing = 0
        """The ids whose transaction is open."""


class TransactionCoordinator:
    """The transaction coordinator of one partition; see the module.

    `new_producer_id` returns a producer id that was never used; operations pass on its exceptions. Epochs of producer
    ids below that of `doubtful_end` may be lost (an unclean start), so that no further epoch of them is given away.
    `totals` are those of its broker.
    """

    def __init__(
        self,
        config: TransactionConfig,
        new_producer_id: Callable[[], int],
        doubtful_end: Callable[[], int] = lambda: 0,
        totals: Totals | None = None,
    ) -> None:
        self._config = config
        self._new_producer_id = new_producer_id
        self._doubtful_end = doubtful_end
        self._transactions: dict[str, Transaction] = {}
        self._ongoing: dict[str, None] = {}
        self._prepared: dict[str, None] = {}
        self._past = Past({})
        self._totals = Totals() if totals is None else totals

    def __len__(self) -> int:
        """Return the number of transactional ids."""
        return len(self._transactions)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(list(self._transactions.values()))

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def prepared(self) -> list[Transaction]:
        """Return the transactions whose end is decided, and not completed."""
        return [self._transactions[transactional_id] for transactional_id in self._prepared]

    # --- verbs ---------------------------------------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None, now: Now
    ) -> Decision:
        """Answer InitProducerId. `expected` is the (producer id, epoch) the client had (KIP-360), or None.

        An open transaction is aborted in the next epoch, and CONCURRENT_TRANSACTIONS makes the client retry.
        """
        if not transactional_id or len(transactional_id.encode()) > ID_BYTES_MAX:
            return Decision(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            return Decision(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            if self._totals.ids >= self._config.transactional_ids_max:
                return Decision(ErrorCode.POLICY_VIOLATION)
            new = Transaction(
                transactional_id=transactional_id,
                producer_id=self._new_producer_id(),
                producer_epoch=NO_EPOCH,
                timeout_ms=timeout_ms,
                updated_ms=now.wall_ms,
            )
            return Decision(ErrorCode.NONE, new.initialized(timeout_ms, now.wall_ms, 0, NO_EPOCH))
        if expected is not None and not _may_expect(transaction, *expected):
            return Decision(ErrorCode.PRODUCER_FENCED)
        if transaction.state.is_prepared:
            return Decision(ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction.state is TransactionState.ONGOING:
            return Decision(ErrorCode.CONCURRENT_TRANSACTIONS, transaction.fenced(now.wall_ms))
        return self._take_over(transaction, timeout_ms, expected, now.wall_ms)

    def _take_over(
        self, transaction: Transaction, timeout_ms: int, expected: tuple[int, int] | None, now_ms: int
    ) -> Decision:
        """Give the producer the next epoch, or the present one again if it retries because the answer was lost."""
        last_epoch = NO_EPOCH if expected is None else expected[1]
        if expected not in (None, (transaction.producer_id, transaction.producer_epoch)):
            if last_epoch != transaction.last_epoch:
                return Decision(ErrorCode.PRODUCER_FENCED)
            if not self._is_doubtful(transaction):
                return Decision(ErrorCode.NONE, transaction)
        if transaction.is_exhausted or self._is_doubtful(transaction):
            producer_id = self._new_producer_id()
            return Decision(ErrorCode.NONE, transaction.rotated(producer_id, timeout_ms, now_ms, last_epoch))
        return Decision(
            ErrorCode.NONE, transaction.initialized(timeout_ms, now_ms, transaction.producer_epoch + 1, last_epoch)
        )

    def _is_doubtful(self, transaction: Transaction) -> bool:
        """Return True if partitions may have seen epochs of the producer id that this coordinator forgot."""
        return transaction.producer_id < self._doubtful_end()

    def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[Partition], now: Now
    ) -> Decision:
        """Answer AddPartitionsToTxn and AddOffsetsToTxn; begin a transaction if none is open."""
        if not transactional_id:
            return Decision(ErrorCode.INVALID_REQUEST)
        transaction, error = self._of_producer(transactional_id, producer_id, epoch)
        if transaction is None:
            return Decision(error)
        if transaction.state is TransactionState.ONGOING and transaction.partitions.issuperset(partitions):
            return Decision(ErrorCode.NONE)
        return Decision(ErrorCode.NONE, transaction.with_partitions(frozenset(partitions), now.wall_ms))

    def verify(self, transactional_id: str, producer_id: int, epoch: int, partition: Partition) -> ErrorCode:
        """Check that the producer may write to a partition in its transaction (KIP-890): return NONE or an error code.

        The error is TRANSACTION_ABORTABLE if the partition was not added to the transaction.
        """
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        transaction, error = self._of_producer(transactional_id, producer_id, epoch)
        if transaction is None:
            return error
        return ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE

    def _of_producer(
        self, transactional_id: str, producer_id: int, epoch: int
    ) -> tuple[Transaction | None, ErrorCode]:
        """Return the transaction if this producer owns the id and no end is in progress, else None and an error code.
        """
        transaction = self._transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != producer_id:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if transaction.producer_epoch != epoch:
            return None, ErrorCode.PRODUCER_FENCED
        if transaction.state.is_prepared:
            return None, ErrorCode.CONCURRENT_TRANSACTIONS
        return transaction, ErrorCode.NONE

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool, bumps_epoch: bool, now: Now
    ) -> Decision:
        """Answer EndTxn. With `bumps_epoch` the producer continues in the next epoch (KIP-890).

        A repeated end is answered with NONE once it is done and with CONCURRENT_TRANSACTIONS before. The opposite end
        is INVALID_TXN_STATE. With `bumps_epoch` a producer may abort without an open transaction, because it does not
        know whether one was begun.
        """
        if not transactional_id:
            return Decision(ErrorCode.INVALID_REQUEST)
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return Decision(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        repeats = bumps_epoch and _repeats_end(transaction, producer_id, epoch)
        error = ErrorCode.NONE if repeats else _check_end(transaction, producer_id, epoch, bumps_epoch)
        if error:
            return Decision(error)
        of_nothing = bumps_epoch and not (commit or repeats or transaction.state.is_prepared)
        if transaction.state is not TransactionState.ONGOING and not of_nothing:
            same = transaction.state is not TransactionState.EMPTY and transaction.commits == commit
            is_returned = repeats or not bumps_epoch or transaction.state.is_prepared
            done = ErrorCode.CONCURRENT_TRANSACTIONS if transaction.state.is_prepared else ErrorCode.NONE
            return Decision(done if same and is_returned else ErrorCode.INVALID_TXN_STATE)
        if not bumps_epoch:
            return Decision(ErrorCode.NONE, transaction.ended(commit, now.wall_ms))
        is_over = transaction.is_exhausted or self._is_doubtful(transaction)
        following = (self._new_producer_id(),) if is_over else ()
        return Decision(ErrorCode.NONE, transaction.ended_with_next_epoch(commit, now.wall_ms, *following))

    def apply(self, change: Transaction) -> None:
        """Apply a change that is in the log."""
        ids, ongoing = len(self._transactions), len(self._ongoing)
        self._transactions[change.transactional_id] = change
        if change.state is TransactionState.ONGOING:
            self._ongoing[change.transactional_id] = None
        else:
            self._ongoing.pop(change.transactional_id, None)
        if change.state.is_prepared:
            self._prepared[change.transactional_id] = None
        else:
            self._prepared.pop(change.transactional_id, None)
        self._totals.ids += len(self._transactions) - ids
        self._totals.ongoing += len(self._ongoing) - ongoing

    def forget(self, transactional_id: str) -> None:
        """Remove a transactional id, whose tombstone is in the log."""
        if self._transactions.pop(transactional_id, None) is not None:
            self._totals.ids -= 1
            self._prepared.pop(transactional_id, None)
        if transactional_id in self._ongoing:
            del self._ongoing[transactional_id]
            self._totals.ongoing -= 1

    # --- time ----------------------------------------------------------------------------------------------------

    def timed_out(self, now: Now) -> list[str]:
        """Return the ids whose transactions have timed out."""
        ongoing = (self._transactions[transactional_id] for transactional_id in self._ongoing)
        return [transaction.transactional_id for transaction in ongoing if transaction.is_late(now.wall_ms)]

    def time_out(self, transactional_id: str, now: Now) -> Decision:
        """Abort the id's transaction if it is still open and has timed out."""
        transaction = self._transactions.get(transactional_id)
        late = (
            transaction is not None
            and transaction.state is TransactionState.ONGOING
            and transaction.is_late(now.wall_ms)
        )
        return Decision(ErrorCode.NONE, transaction.fenced(now.wall_ms) if transaction is not None and late else None)

    def expired(self, now: Now) -> list[str]:
        """Return the transactional ids that have expired."""
        return [transactional_id for transactional_id in self._transactions if self.is_expired(transactional_id, now)]

    def is_expired(self, transactional_id: str, now: Now) -> bool:
        transaction = self._transactions.get(transactional_id)
        unused_since_ms = now.wall_ms - self._config.transactional_id_expiration_ms
        return transaction is not None and transaction.state.may_expire and transaction.updated_ms <= unused_since_ms

    # --- loading ---------------------------------------------------------------------------------------------------

    def remember(self, since_ms: Mapping[int, int]) -> None:
        """Have the replay remember the transactions of these producers; see `Past`."""
        self._past = Past(since_ms)

    def load(self, key: bytes, value: bytes | None) -> None:
        """Replay one record. Skip kinds that only a newer Kafka writes. Raise BadTransactionRecord if it is damaged."""
        transactional_id = read_key(key)
        if transactional_id is None:
            return
        if value is None:
            self.forget(transactional_id)
            return
        transaction = read_value(transactional_id, value)
        self.apply(transaction)
        self._past.note(transaction)

    def loaded(self) -> Past:
        """End the replay; return the transactions to remember."""
        past, self._past = self._past, Past({})
        return past

    def unload(self, pace: Pace) -> Iterator[None]:
        """Forget all transactional ids, in slices, because another broker coordinates them."""
        self._totals.ids -= len(self._transactions)
        self._totals.ongoing -= len(self._ongoing)
        transactions, self._transactions, self._ongoing, self._prepared = self._transactions, {}, {}, {}
        while transactions:
            transactions.popitem()
            if pace.is_over():
                yield


def _may_expect(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Return True if a client with this producer id and epoch can be the owner of the transactional id.

    The owner has the present producer id, or the previous one if that was replaced and the answer with the new id got
    lost (KIP-360): because its epochs were used up, or in doubt after an unclean start.
    """
    if producer_id == transaction.producer_id:
        return True
    return producer_id == transaction.previous_producer_id and (epoch >= EPOCH_LAST or epoch == transaction.last_epoch)


def _repeats_end(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Return True if a producer that takes a new epoch or producer id at each end repeats its last EndTxn."""
    if transaction.client_version < EPOCH_BUMPING or transaction.state is TransactionState.ONGOING:
        return False
    if producer_id == transaction.previous_producer_id and transaction.producer_epoch == 0:
        return epoch == EPOCH_LAST or epoch == transaction.last_epoch - 1
    return (producer_id, epoch) == (transaction.producer_id, transaction.producer_epoch - 1)


def _check_end(transaction: Transaction, producer_id: int, epoch: int, bumps_epoch: bool) -> ErrorCode:
    """Check that this producer may end the transaction: return NONE or an error code.

    With `bumps_epoch`, a prepared end has already taken the next epoch, so only a repeated request of the former epoch
    may ask for it (`_repeats_end`).
    """
    if transaction.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    over = bumps_epoch and transaction.state.is_prepared
    return ErrorCode.NONE if epoch == transaction.producer_epoch and not over else ErrorCode.PRODUCER_FENCED
