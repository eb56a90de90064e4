"""A transactional id and its transaction, as a value. Each step returns a new value, logged before it takes effect.

Epochs fence. A producer that takes over the transactional id gets the next epoch of its producer id, and requests with
an older epoch are refused. When the epochs of a producer id are used up, the next producer gets a new producer id at
epoch 0. A transaction that times out, or is open when another producer takes over, is aborted in the next epoch, so
that its producer learns of the abort.
"""

from dataclasses import dataclass, replace

from broker.txn.states import Event, TransactionState, next_state

NO_ID = -1
NO_EPOCH = -1
NO_TIME = -1
EPOCH_MAX = 2**15 - 1
EPOCH_LAST = EPOCH_MAX - 1
"""The last epoch given to a producer; one more is reserved to fence it."""

EPOCH_BUMPING = 2  # the first transaction version of a client in which each end takes the next epoch (KIP-890)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id and its transaction. Times are wall ms.

    `partitions` are the (topic, partition) of a transaction that is open or prepared.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[tuple[str, int]] = frozenset()
    started_ms: int = NO_TIME
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    """The producer id that replaces this one when an end with a new epoch (KIP-890) used up the last epoch."""
    client_version: int = 0
    last_epoch: int = NO_EPOCH
    """The former epoch, with which the producer may ask for the present one again (KIP-360). Not stored."""

    @property
    def is_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_LAST

    @property
    def commits(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def is_late(self, now_ms: int) -> bool:
        """Return True if the transaction has been open for longer than its producer's timeout."""
        return self.started_ms + self.timeout_ms < now_ms

    @property
    def goes_on_as(self) -> tuple[int, int]:
        """The (producer id, epoch) of the next transaction."""
        if self.next_producer_id != NO_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch

    def initialized(self, timeout_ms: int, now_ms: int, epoch: int, last_epoch: int) -> "Transaction":
        """Return the transaction after a producer took the transactional id, at this epoch."""
        return replace(
            self,
            state=next_state(self.state, Event.INITIALIZED),
            producer_epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
            started_ms=NO_TIME,
            previous_producer_id=self.producer_id,
            client_version=0,
        )

    def rotated(self, producer_id: int, timeout_ms: int, now_ms: int, last_epoch: int) -> "Transaction":
        """Return the transaction after a producer took the transactional id with a new producer id, at epoch 0.

        This replaces `initialized` when the epochs of the former producer id are used up or in doubt.
        """
        return replace(self.initialized(timeout_ms, now_ms, 0, last_epoch), producer_id=producer_id)

    def with_partitions(self, added: frozenset[tuple[str, int]], now_ms: int) -> "Transaction":
        """Return the open transaction with more partitions, begun if it was not open."""
        ongoing = self.state is TransactionState.ONGOING
        return replace(
            self,
            state=next_state(self.state, Event.PARTITIONS_ADDED),
            partitions=self.partitions | added,
            started_ms=self.started_ms if ongoing else now_ms,
            updated_ms=now_ms,
            previous_producer_id=self.producer_id,
            client_version=0,
        )

    def ended(self, commit: bool, now_ms: int) -> "Transaction":
        """Return the transaction prepared by its producer, to commit or abort."""
        event = Event.COMMITTED if commit else Event.ABORTED
        return replace(self, state=next_state(self.state, event), updated_ms=now_ms, client_version=0)

    def ended_with_next_epoch(self, commit: bool, now_ms: int, next_producer_id: int = NO_ID) -> "Transaction":
        """Return the transaction prepared by its producer, which takes the next epoch or producer id (KIP-890)."""
        return replace(
            self.ended(commit, now_ms),
            producer_epoch=self.producer_epoch + 1,
            last_epoch=self.producer_epoch,
            next_producer_id=next_producer_id,
            client_version=EPOCH_BUMPING,
        )

    def fenced(self, now_ms: int) -> "Transaction":
        """Return the transaction prepared to abort by the coordinator, in the next epoch.

        Its producer may ask for that epoch until another producer takes the next one (KIP-588), so that it survives a
        transaction that took too long. If the epochs are used up, it cannot.
        """
        return replace(
            self,
            state=next_state(self.state, Event.FENCED),
            producer_epoch=self.producer_epoch + 1,
            last_epoch=NO_EPOCH if self.is_exhausted else self.producer_epoch,
            updated_ms=now_ms,
            client_version=0,
        )

    def completed(self, now_ms: int) -> "Transaction":
        """Return the transaction completed: its markers are in all partitions."""
        done = replace(
            self,
            state=next_state(self.state, Event.MARKED),
            partitions=frozenset(),
            updated_ms=now_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_ID,
        )
        if self.next_producer_id == NO_ID:
            return done
        return replace(done, producer_id=self.next_producer_id, producer_epoch=0, last_epoch=self.producer_epoch)
