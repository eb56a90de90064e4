"""Transactions that are open in a partition although the coordinator would not end them there.

After a power cut a partition may have lost a marker, or the coordinator its record of a transaction. No read_committed
consumer would ever get past such a transaction. At start `remember` returns what the coordinator's replay shall
remember, `find` compares the result with the partitions, and the stranded transactions are ended, in slices.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker.log import log_reader
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.record.control import Marker
from broker.record.records import LONG_MAX
from broker.services.coordinator_topic import CoordinatorPorts
from broker.services.due_actions import DueActions
from broker.services.transaction_markers import LocalMarkers
from broker.txn.coordinator import Past
from broker.txn.transaction import Transaction
from broker.wire.errors import ApiError
from idgen.errors import IdError


class Open(NamedTuple):
    """A transaction that is open in a partition, with its producer's epoch there, and when it was begun there."""

    log: PartitionLog
    producer_id: int
    epoch: int | None
    written_ms: int | None


class Stranded(NamedTuple):
    """A transaction that is open in a partition and unknown to the coordinator. `commit` is its end."""

    log: PartitionLog
    producer_id: int
    commit: bool


class StrandedTransactions:
    """The stranded transactions that are not ended yet."""

    def __init__(self, ports: CoordinatorPorts, markers: LocalMarkers, due: DueActions, coordinator_epoch: int) -> None:
        self._ports = ports
        self._markers = markers
        self._due = due
        self._coordinator_epoch = coordinator_epoch
        self._open: list[Open] = []
        """The transactions that were open in partitions when the replay began."""
        self._stranded: dict[Stranded, None] = {}
        self._held_up: Counter[int] = Counter()
        """By producer id: the number of partitions in which it has a stranded transaction."""

    def remember(self) -> Mapping[int, int]:
        """Note the transactions that are open in partitions. Return for each producer since when it has one."""
        self._open = [
            Open(log, producer_id, log.producers.epoch_of(producer_id), self._written_ms(log, first_offset))
            for log in self._ports.logs.all()
            for producer_id, first_offset in log.producers.open_transactions().items()
        ]
        since_ms: dict[int, int] = {}
        for _, producer_id, _, written_ms in self._open:
            since_ms[producer_id] = min(written_ms or 0, since_ms.get(producer_id, LONG_MAX))
        return since_ms

    def find(self, past: Past, transactions: Iterable[Transaction]) -> None:
        """Find the stranded transactions, and make their ends due.

        `transactions` are all that the coordinator has. Call this only if all partitions of the coordinator's topic
        were read, so that nothing is guessed.
        """
        prepared = (transaction for transaction in transactions if transaction.state.is_prepared)
        going_on = {(end.producer_id, at, end.commits): end.producer_epoch for end in prepared for at in end.partitions}
        for log, producer_id, epoch, written_ms in self._open:
            partition = log.topic, log.partition
            commit = past.outcome(producer_id, partition, written_ms, epoch)
            if commit is None:
                continue
            marker_epoch = going_on.get((producer_id, partition, commit))  # a marker below its epoch is refused
            if marker_epoch is None or (epoch is not None and epoch > marker_epoch):
                self._stranded[Stranded(log, producer_id, commit)] = None
                outcome = "commits, as decided" if commit else "aborts, as nobody else can"
                self._ports.report(f"partition {log.name}: the broker {outcome}, what producer {producer_id} began")
        self._held_up = Counter(stranded.producer_id for stranded in self._stranded)
        self._open = []
        for stranded in self._stranded:
            self._due.add(self._end, stranded)

    def _written_ms(self, log: PartitionLog, offset: int) -> int | None:
        """Return when a record was written, by the time in its id, or None.

        The clock of ids is never behind the wall clock.
        """
        try:
            layout = self._ports.id_stamper.worker().layout
            runs = log_reader.ids_of(log, offset, offset + 1)
        except (ApiError, IdError):
            return None
        return layout.unpack(runs[0][0]).time_ms if runs else None

    def _end(self, stranded: Stranded, now: Now) -> int:
        log, producer_id, commit = stranded
        epoch = log.producers.epoch_of(producer_id)
        if epoch is None or not self._ports.logs.has(log):
            self._settle(stranded)  # the log was deleted, or forgot the producer
        elif self._markers.try_append(log, producer_id, epoch, Marker(commit, self._coordinator_epoch), now):
            self._settle(stranded)
        else:
            self._due.try_again(self._end, stranded, now)
        return 1

    def _settle(self, stranded: Stranded) -> None:
        del self._stranded[stranded]
        self._held_up[stranded.producer_id] -= 1

    def is_held_up(self, producer_id: int) -> bool:
        """Return True if a stranded transaction of the producer is not ended yet. Its late marker would end a
        transaction that the producer has begun since."""
        return self._held_up[producer_id] > 0
