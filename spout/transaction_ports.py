"""A sink's transactions and their outcomes, as values; see partition_manager.ports."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from partition_manager.ports import Answer, DeadLetter, LetterRefused, OffsetStore, Saved, SaveOffset
from spout.sink_ports import Output

if TYPE_CHECKING:  # it loads kio, and a program that only builds a topology should start quickly
    from broker.client.group_requests import CommittedOffset, GroupIdentity


class TransactionalStore(OffsetStore, Protocol):
    """A store of progress in the offsets of a consumer group, so that a transaction can write it."""

    def committed_offset(self, request: SaveOffset) -> "tuple[GroupIdentity, CommittedOffset]":
        """Return what the transaction commits for this progress, and the member that commits it, as of now."""


class Save(NamedTuple):
    """The progress of a partition. `is_wanted` returns False once this process has given the partition up."""

    store: TransactionalStore
    request: SaveOffset
    answer: Callable[[Answer], None]
    is_wanted: Callable[[], bool]


class Letter(NamedTuple):
    """A dead letter, and the topic it is for."""

    topic: str
    letter: DeadLetter


class Transact(NamedTuple):
    """Commit outputs, dead letters and progress in one transaction.

    Answer: Committed, Aborted, OutputsRefused, FencedOut, or LetterRefused if no transaction can ever succeed.
    """

    outputs: Sequence[Output]
    letters: Sequence[Letter]
    saves: Sequence[Save]


class Committed(NamedTuple):
    """The transaction is committed; `saved` answers each save, in order."""

    saved: Sequence[Saved]


class Aborted(NamedTuple):
    """Nothing of the transaction counts. It may be made again."""

    error: str


class OutputsRefused(NamedTuple):
    """Nothing of the transaction counts. The topics will never take the outputs whose numbers are here, with reasons.

    The transaction may be made again without them.
    """

    errors: Mapping[int, str]


class FencedOut(NamedTuple):
    """Another process may have taken over, or the outcome cannot be known: only the stored progress tells."""

    error: str


TransactAnswer = Committed | Aborted | OutputsRefused | FencedOut | LetterRefused


class Transactor(Protocol):
    """The transactional producer of a process; it carries out one transaction at a time."""

    def ask(self, request: Transact, answer: Callable[[TransactAnswer], None]) -> None: ...

    def close(self) -> None: ...
