"""The states of a transactional id, and all transitions between them (KIP-98).

    InitProducerId      AddPartitions, AddOffsets        EndTxn             markers in all partitions
    ------------> Empty ------------------> Ongoing ------------> PrepareCommit ----------------> CompleteCommit
                                            |                                                        |
                                            +---> PrepareAbort -----------------> CompleteAbort      |
                                                  EndTxn, a timeout, or                |             |
                                                  another producer took over           +------+------+
                                                                                              |
                                      Ongoing (the next transaction) or Empty (InitProducerId) <

A prepared transaction is decided. A crash cannot change the decision, because a restarted broker continues to write the
markers. A producer that takes the next epoch at each end (KIP-890) may abort without an open transaction, because it
cannot always know whether one is open.
"""

from enum import Enum, IntEnum


class TransactionState(IntEnum):
    """The state of a transactional id. Numbers are those in Kafka's records; `title` is the name that Kafka shows."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def title(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """True if the transaction is decided and its markers are not yet in all its partitions."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def may_expire(self) -> bool:
        return (self, Event.EXPIRED) in TRANSITIONS


class Event(Enum):
    """An event that changes the state of a transactional id."""

    INITIALIZED = "a producer took the transactional id"
    PARTITIONS_ADDED = "the producer named partitions it will write to"
    COMMITTED = "the producer asked for a commit"
    ABORTED = "the producer asked for an abort"
    FENCED = "the transaction timed out, or another producer took over"
    MARKED = "the markers are in all partitions"
    EXPIRED = "nobody has used the transactional id for long"


TRANSITIONS: dict[tuple[TransactionState, Event], TransactionState] = {
    (TransactionState.EMPTY, Event.INITIALIZED): TransactionState.EMPTY,
    (TransactionState.EMPTY, Event.PARTITIONS_ADDED): TransactionState.ONGOING,
    (TransactionState.EMPTY, Event.ABORTED): TransactionState.PREPARE_ABORT,
    (TransactionState.EMPTY, Event.EXPIRED): TransactionState.DEAD,
    (TransactionState.ONGOING, Event.PARTITIONS_ADDED): TransactionState.ONGOING,
    (TransactionState.ONGOING, Event.COMMITTED): TransactionState.PREPARE_COMMIT,
    (TransactionState.ONGOING, Event.ABORTED): TransactionState.PREPARE_ABORT,
    (TransactionState.ONGOING, Event.FENCED): TransactionState.PREPARE_ABORT,
    (TransactionState.PREPARE_COMMIT, Event.MARKED): TransactionState.COMPLETE_COMMIT,
    (TransactionState.PREPARE_ABORT, Event.MARKED): TransactionState.COMPLETE_ABORT,
    (TransactionState.COMPLETE_COMMIT, Event.INITIALIZED): TransactionState.EMPTY,
    (TransactionState.COMPLETE_COMMIT, Event.PARTITIONS_ADDED): TransactionState.ONGOING,
    (TransactionState.COMPLETE_COMMIT, Event.ABORTED): TransactionState.PREPARE_ABORT,
    (TransactionState.COMPLETE_COMMIT, Event.EXPIRED): TransactionState.DEAD,
    (TransactionState.COMPLETE_ABORT, Event.INITIALIZED): TransactionState.EMPTY,
    (TransactionState.COMPLETE_ABORT, Event.PARTITIONS_ADDED): TransactionState.ONGOING,
    (TransactionState.COMPLETE_ABORT, Event.ABORTED): TransactionState.PREPARE_ABORT,
    (TransactionState.COMPLETE_ABORT, Event.EXPIRED): TransactionState.DEAD,
}


class InvalidTransition(AssertionError):
    """An event that cannot happen in this state: a bug of the coordinator, never a fault of a client."""


def next_state(state: TransactionState, event: Event) -> TransactionState:
    """Return the state after `event`. Raise InvalidTransition if the table has no entry."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        possible = sorted(e.name for s, e in TRANSITIONS if s is state)
        raise InvalidTransition(f"{event.name} in state {state.title}; possible: {', '.join(possible)}") from None
