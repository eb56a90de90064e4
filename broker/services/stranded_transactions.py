"""Transactions that are open in a partition although the coordinator would not end them there.

After a power cut a partition may have lost a marker, or the coordinator its record of a transaction. No read_committed
consumer would ever get past such a transaction. At start `remember` notes the open transactions, the coordinators hand
in what their replays remember of them, `find` compares both, and the stranded transactions are ended, in slices.

Only a node that coordinates all transactional ids can know that a transaction is stranded. Elsewhere nothing is
guessed, and an administrator ends such transactions (`kafka-transactions find-hanging`, KIP-664).
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
    first_offset: int
    epoch: int | None
    written_ms: int | None


class Stranded(NamedTuple):
    """A transaction that is open in a partition and unknown to the coordinator. `commit` is its end."""

    log: PartitionLog
    producer_id: int
    commit: bool


class StrandedTransactions:
    """The stranded transactions that are not ended yet."""

    def __init__(self, ports: CoordinatorPorts, markers: LocalMarkers, due: DueActions) -> None:
        self._ports = ports
        self._markers = markers
        self._due = due
        markers.end_earlier = self.end_earlier
        self._open: dict[tuple[PartitionLog, int], Open] = {}
        """The transactions that were open in partitions when the search began, by log and producer id."""
        self._past: Past | None = None
        """The transactions in the coordinators' records; None without a search."""
        self.since_ms: Mapping[int, int] = {}
        """The producers whose transactions the coordinators shall remember, and since when each has one open."""
        self._stranded: dict[Stranded, None] = {}
        self._held_up: Counter[int] = Counter()
        """By producer id: the number of partitions in which it has a stranded transaction."""

    def remember(self) -> None:
        """Begin a search: note the transactions that are open in the partitions led here."""
        self._open = {
            (log, producer_id): Open(
                log, producer_id, first, log.producers.epoch_of(producer_id), self._written_ms(log, first)
            )
            for log in self._ports.logs.all()
            if self._is_led(log)
            for producer_id, first in log.producers.open_transactions().items()
        }
        since_ms: dict[int, int] = {}
        for _, producer_id, _, _, written_ms in self._open.values():
            since_ms[producer_id] = min(written_ms or 0, since_ms.get(producer_id, LONG_MAX))
        self.since_ms, self._past = since_ms, Past(since_ms)

    def _is_led(self, log: PartitionLog) -> bool:
        topic = self._ports.hosted.topic(log.topic)
        return topic is not None and topic.is_led_by(self._ports.node_id, log.partition)

    def loaded(self, past: Past) -> None:
        """Add what one coordinator's records remember."""
        if self._past is not None:
            self._past.join(past)

    def give_up(self) -> None:
        """End a search without a result, because it would be a guess."""
        self._open, self._past, self.since_ms = {}, None, {}

    def find(self, prepared: Iterable[Transaction]) -> None:
        """Find the stranded transactions and make their ends due. Do nothing without a search.

        `prepared` are the transactions that are being ended. Call this only if all partitions of the coordinator's
        topic were loaded, so that nothing is guessed.
        """
        past, transactions = self._past, self._open.values()
        if past is None:
            return
        self.give_up()
        going_on = {(end.producer_id, at, end.commits): end.producer_epoch for end in prepared for at in end.partitions}
        for log, producer_id, first_offset, epoch, written_ms in transactions:
            if log.producers.first_offset_of(producer_id) != first_offset:
                continue  # ended meanwhile
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
        """Write the marker, in the coordinator's epoch that the partition has seen, because no transactional id names
        another."""
        if stranded not in self._stranded:
            return 0
        log, producer_id, commit = stranded
        epoch = log.producers.epoch_of(producer_id)
        marker = Marker(commit, max(log.producers.coordinator_epoch_of(producer_id), 0))
        if epoch is None or not (self._ports.logs.has(log) and self._is_led(log)):
            self._settle(stranded)  # the log was deleted or has another leader, or forgot the producer
        elif self._markers.try_append(log, producer_id, epoch, marker, now):
            self._settle(stranded)
        else:
            self._due.try_again(self._end, stranded, now)
        return 1

    def _settle(self, stranded: Stranded) -> None:
        del self._stranded[stranded]
        self._held_up[stranded.producer_id] -= 1

    @property
    def is_searching(self) -> bool:
        """True from `remember` until the search has ended."""
        return self._past is not None

    def end_earlier(self, log: PartitionLog, producer_id: int, now: Now) -> bool:
        """End a stranded transaction of a producer in a log before the log takes a marker of its present transaction.

        A marker ends all that the producer has open there. So the commit of the present transaction would commit an
        earlier one whose abort was lost. Return False if the earlier one cannot be ended now, or if the search has not
        said yet what is stranded.
        """
        if self.is_searching:
            return (log, producer_id) not in self._open
        if not self.is_held_up(producer_id):
            return True
        for stranded in (Stranded(log, producer_id, commit) for commit in (True, False)):
            self._end(stranded, now)
            if stranded in self._stranded:
                return False
        return True

    def is_held_up(self, producer_id: int) -> bool:
        """Return True if a stranded transaction of the producer is not ended yet. Its late marker would end a
        transaction that the producer has begun since."""
        return self._held_up[producer_id] > 0
