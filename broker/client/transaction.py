"""A producer whose records and consumer offsets count all or not at all, without sockets (KIP-98, KIP-360, KIP-447).

    producer = TransactionalProducer(client.core, "orders-7")
    client.run(producer.begin())
    producer.add("orders", 0, records, timestamp_ms)
    producer.add_offsets(member.identity, {("prices", 0): CommittedOffset(42)})
    client.run(producer.commit())

`add` and `add_offsets` only collect. The other operations are generators of exchanges, as those of `ClientCore`, for a
shell to run.

    READY -- begin --> OPEN -- commit --> COMMITTING -- outcome known --> READY
                        |                     |
                        +-- MustAbort --------+--> ABORTABLE -- abort --> READY, in the next epoch
                        +-- ProducerFenced ---+--> FENCED
                        +-- BrokerError ------+--> BROKEN

The error of an operation says what to do:

    TryAgain         call the same operation again after a pause: it goes on where it stopped
    MustAbort        call `abort`; then the records and offsets may be added to the next transaction
    ProducerFenced   drop the records, and read the stored offsets to learn the outcome; make another producer
    others           no attempt can succeed: an authorization is missing, or the broker lacks a version

A request without an answer is sent again, unchanged: its sequence numbers make a repeated Produce harmless, and the end
of a transaction is asked for until its outcome is known. So `commit` returns only after the transaction is committed.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from broker.client.api_versions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from broker.client.core import Address, ClientCore, Steps
from broker.client.errors import (
    RETRIABLE,
    BrokerError,
    ClientError,
    MustAbort,
    ProducerFenced,
    TryAgain,
    Unreachable,
)
from broker.client.group_requests import GROUP, TRANSACTION, CommittedOffset, GroupIdentity, find_coordinator
from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from broker.wire.errors import ErrorCode
from broker.wire.produce import PartitionRecords, PartitionResult

TIMEOUT_MS = 60_000  # transaction.timeout.ms of Kafka's producer
PAUSE_MS, PAUSE_MAX_MS = 20, 1_000  # pauses before TryAgain's repetition: the first, and the limit of its doubling
REQUEST_BYTES_MAX = 4 << 20  # records in one Produce, except for a single larger batch; brokers allow 100 MiB
SEQUENCES = 1 << 31  # sequence numbers wrap around to 0 here

NO_ID = NO_EPOCH = -1

Partition = tuple[str, int]
T = TypeVar("T")

WAIT = RETRIABLE | {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,  # the former transaction is still being ended
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}
MOVED = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
FENCED = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,  # the coordinator has forgotten the id and the outcome
}
FATAL = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_GROUP_ID,
}
NOT_COMMITTED = {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}  # answers to EndTxn that say so


class TransactionPhase(Enum):
    """State of a TransactionalProducer; see the module."""

    READY = "ready"
    OPEN = "open"
    COMMITTING = "committing"
    ABORTABLE = "to be aborted"
    FENCED = "fenced"
    BROKEN = "broken"


class ProducedBatch(Protocol):
    """A batch that is encoded when its sequence number is known."""

    @property
    def record_count(self) -> int: ...

    def sealed(self, producer_id: int, epoch: int, sequence: int, transactional: bool) -> bytearray: ...


class _Batch(NamedTuple):
    records: Sequence[BatchRecord]
    timestamp_ms: int
    codec: Codec

    @property
    def record_count(self) -> int:
        return len(self.records)

    def sealed(self, producer_id: int, epoch: int, sequence: int, transactional: bool) -> bytearray:
        return encode_batch(
            self.records,
            base_timestamp_ms=self.timestamp_ms,
            codec=self.codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )


class TransactionalProducer:
    """The only producer of a transactional id: `begin` of another one with the same id fences this one."""

    def __init__(self, core: ClientCore, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        """Create the producer. The coordinator aborts a transaction that is open for longer than `timeout_ms`."""
        self.transactional_id = transactional_id
        self.state = TransactionPhase.READY
        self.producer_id, self.epoch = NO_ID, NO_EPOCH
        self._core = core
        self._timeout_ms = timeout_ms
        self._next_epoch = True  # the next transaction needs InitProducerId
        self._sequences: dict[Partition, int] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._tries = 0  # in a row, for the pause
        self._clear()

    def _clear(self) -> None:
        self._batches: dict[Partition, deque[ProducedBatch]] = {}
        self.base_offsets: dict[Partition, list[int]] = {}
        """Of the batches of the transaction that are in the log; -1 if the broker does not say it of a repeated one."""
        self._offsets: dict[GroupIdentity, dict[Partition, CommittedOffset]] = {}
        self._added: set[Partition] = set()
        self._added_groups: set[str] = set()
        self._touched = False  # the coordinator may know of this transaction

    # --- collecting

    def add(
        self,
        topic: str,
        partition: int,
        records: Iterable[BatchRecord],
        timestamp_ms: int,
        codec: Codec = Codec.NONE,
    ) -> None:
        """Add a batch of records; their offset deltas are 0, 1, 2, ... Raise ValueError if no transaction is open."""
        self._require(TransactionPhase.OPEN)
        self.add_batch(topic, partition, _Batch(tuple(records), timestamp_ms, codec))

    def add_batch(self, topic: str, partition: int, batch: ProducedBatch) -> None:
        """Add a batch that exists already. Raise ValueError if no transaction is open."""
        self._require(TransactionPhase.OPEN)
        self._batches.setdefault((topic, partition), deque()).append(batch)

    def add_offsets(self, identity: GroupIdentity, offsets: Mapping[Partition, CommittedOffset]) -> None:
        """Add positions, to be committed for the group with the transaction. Raise ValueError if none is open."""
        self._require(TransactionPhase.OPEN)
        self._offsets.setdefault(identity, {}).update(offsets)

    def batches_left(self, topic: str, partition: int) -> int:
        """Return the number of added batches that the broker has not taken. After MustAbort the first was refused."""
        return len(self._batches.get((topic, partition), ()))

    # --- operations

    def begin(self) -> Steps[None]:
        """Begin a transaction. The first one aborts and fences what an earlier producer of this id left open.

        Raise ValueError if a transaction is open.
        """
        self._require(TransactionPhase.READY)
        if self._next_epoch:
            yield from self._guarded(self._initialize())
        self._clear()
        self.state = TransactionPhase.OPEN

    def flush(self) -> Steps[None]:
        """Send the added records and offsets now. Raise ValueError if no transaction is open."""
        self._require(TransactionPhase.OPEN)
        yield from self._guarded(self._send())

    def commit(self) -> Steps[None]:
        """Send the records and offsets that are left, and commit. Raise ValueError if no transaction is open."""
        self._require(TransactionPhase.OPEN, TransactionPhase.COMMITTING)
        if self.state is TransactionPhase.OPEN:
            yield from self._guarded(self._send())
            self.state = TransactionPhase.COMMITTING
        yield from self._guarded(self._end(True))
        self._clear()
        self.state = TransactionPhase.READY

    def abort(self) -> Steps[None]:
        """Abort the transaction, and drop what was added. Raise ValueError if none is open or `commit` has begun."""
        self._require(TransactionPhase.OPEN, TransactionPhase.ABORTABLE)
        self.state = TransactionPhase.ABORTABLE
        yield from self._guarded(self._end(False))
        self._clear()
        # A Produce whose outcome is not known leaves the sequence in doubt; a new epoch begins them again (KIP-360).
        self._next_epoch = True
        self.state = TransactionPhase.READY

    # --- internals

    def _require(self, *states: TransactionPhase) -> None:
        if self.state not in states:
            wanted = " or ".join(state.value for state in states)
            raise ValueError(f"the producer of {self.transactional_id!r} is {self.state.value}; this needs: {wanted}")

    def _guarded(self, steps: Steps[T]) -> Steps[T]:
        """Run steps, and turn each error into the one that says what to do."""
        try:
            result = yield from steps
        except Unreachable as error:
            self._coordinators.clear()
            raise self._again(str(error)) from error
        except BrokerError as error:
            raise self._verdict(error) from error
        self._tries = 0
        return result

    def _again(self, reason: str) -> TryAgain:
        pause_ms = min(PAUSE_MS << min(self._tries, 10), PAUSE_MAX_MS)
        self._tries += 1
        return TryAgain(reason, pause_ms)

    def _verdict(self, error: BrokerError) -> ClientError:
        code = error.code
        if code in MOVED:
            self._coordinators.clear()
        if code in WAIT:
            return self._again(str(error))
        if code in FENCED:
            self.state = TransactionPhase.FENCED
            return ProducerFenced(str(error))
        if code in FATAL:
            self.state = TransactionPhase.BROKEN
            return error
        if self.state is TransactionPhase.OPEN or (self.state is TransactionPhase.COMMITTING and code in NOT_COMMITTED):
            self.state = TransactionPhase.ABORTABLE
            return MustAbort(error)
        return self._again(str(error))  # the outcome is not known yet

    def _initialize(self) -> Steps[None]:
        address = yield from self._coordinator(TRANSACTION, self.transactional_id)
        fields = {
            "transactional_id": self.transactional_id,
            "transaction_timeout": self._timeout_ms,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }
        answer = yield from self._core.ask(address, INIT_PRODUCER_ID, fields)
        _check(answer.error_code, f"transactional id {self.transactional_id}")
        self.producer_id, self.epoch = int(answer.producer_id), int(answer.producer_epoch)
        self._sequences.clear()
        self._next_epoch = False

    def _send(self) -> Steps[None]:
        wanted = [partition for partition in self._batches if partition not in self._added]
        if wanted:
            yield from self._add_partitions(wanted)
        while self._batches:
            yield from self._produce_some()
        for identity, offsets in list(self._offsets.items()):
            if identity.group_id not in self._added_groups:
                yield from self._add_group(identity.group_id)
            yield from self._commit_offsets(identity, offsets)
            del self._offsets[identity]

    def _add_partitions(self, partitions: Sequence[Partition]) -> Steps[None]:
        address = yield from self._coordinator(TRANSACTION, self.transactional_id)
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        fields = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": numbers} for topic, numbers in topics.items()],
        }
        self._touched = True
        answer = yield from self._core.ask(address, ADD_PARTITIONS_TO_TXN, fields)
        codes = {
            f"{topic.name}-{row.partition_index}": int(row.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        }
        _check_all(codes)
        self._added.update(partitions)

    def _produce_some(self) -> Steps[None]:
        """Send the first batch of each partition, as many as fit into a request for each leader."""
        batches: dict[Address, list[PartitionRecords]] = {}
        size = 0
        for (topic, number), queue in self._batches.items():
            data = self._encoded((topic, number), queue[0])
            if size and size + len(data) > REQUEST_BYTES_MAX:
                break
            size += len(data)
            leader = yield from self._core.leader(topic, number)
            batches.setdefault(leader, []).append((topic, number, memoryview(data)))
        codes: dict[str, int] = {}
        for leader, records in batches.items():
            results = yield from self._core.produce_in_transaction(leader, self.transactional_id, records)
            codes |= {f"{result.topic}-{result.partition}": self._produced(result) for result in results}
        _check_all(codes)

    def _encoded(self, partition: Partition, batch: ProducedBatch) -> bytearray:
        return batch.sealed(self.producer_id, self.epoch, self._sequences.get(partition, 0), True)

    def _produced(self, result: PartitionResult) -> int:
        """Drop a batch that is in the log. Return the error code of one that is not."""
        code = result.error_code
        if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            # An old epoch here is no proof of a fence: the coordinator says so when the transaction is aborted.
            return ErrorCode.TRANSACTION_ABORTABLE if code == ErrorCode.INVALID_PRODUCER_EPOCH else code
        partition = str(result.topic), result.partition
        batch = self._batches[partition].popleft()
        self._sequences[partition] = (self._sequences.get(partition, 0) + batch.record_count) % SEQUENCES
        self.base_offsets.setdefault(partition, []).append(result.base_offset)
        if not self._batches[partition]:
            del self._batches[partition]
        return ErrorCode.NONE

    def _add_group(self, group_id: str) -> Steps[None]:
        address = yield from self._coordinator(TRANSACTION, self.transactional_id)
        self._touched = True
        answer = yield from self._core.ask(address, ADD_OFFSETS_TO_TXN, self._named() | {"group_id": group_id})
        _check(answer.error_code, f"group {group_id}")
        self._added_groups.add(group_id)

    def _commit_offsets(self, identity: GroupIdentity, offsets: Mapping[Partition, CommittedOffset]) -> Steps[None]:
        address = yield from self._coordinator(GROUP, identity.group_id)
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, number), position in offsets.items():
            partition = {
                "partition_index": number,
                "committed_offset": position.offset,
                "committed_leader_epoch": position.leader_epoch,
                "committed_metadata": position.metadata,
            }
            topics.setdefault(topic, []).append(partition)
        member = {
            "group_id": identity.group_id,
            "member_id": identity.member_id,
            "generation_id": identity.generation,
            "group_instance_id": identity.instance_id,
            "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
        }
        answer = yield from self._core.ask(address, TXN_OFFSET_COMMIT, self._named() | member)
        _check_all(
            {
                f"group {identity.group_id}, {topic.name}-{partition.partition_index}": int(partition.error_code)
                for topic in answer.topics
                for partition in topic.partitions
            }
        )

    def _end(self, commit: bool) -> Steps[None]:
        if not self._touched:
            return
        address = yield from self._coordinator(TRANSACTION, self.transactional_id)
        answer = yield from self._core.ask(address, END_TXN, self._named() | {"committed": commit})
        if not commit and answer.error_code in NOT_COMMITTED:
            return  # it never began at the coordinator, or was aborted before
        _check(answer.error_code, f"transactional id {self.transactional_id}")

    def _named(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def _coordinator(self, kind: int, key: str) -> Steps[Address]:
        """Return the coordinator of a group or a transactional id; look it up if it is not known."""
        known = self._coordinators.get((kind, key))
        if known is None:
            known = yield from find_coordinator(self._core, key, kind)
            self._coordinators[kind, key] = known
        return known


def _check(code: int, what: str) -> None:
    if code:
        raise BrokerError(int(code), what)


def _check_all(codes: Mapping[str, int]) -> None:
    """Raise BrokerError for the gravest of the codes: one that ends the transaction before one that passes."""
    failed = {what: code for what, code in codes.items() if code}
    for what, code in sorted(failed.items(), key=lambda failure: failure[1] in WAIT):
        raise BrokerError(code, what)
