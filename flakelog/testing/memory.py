"""A log, dead letters and stored progress in memory, with which a topology over `LogSpout` runs without a broker.

    world = MemoryWorld()
    sentences = world.topic("sentences", partitions=2)
    sentences.append("a b a", partition=1)
    TopologyDriver(word_count, world).run().stop()
    assert world.progress("sentences")[1].offset == 1

A test can also remove, truncate and recreate, and make each part fail, as a cluster does in production.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from uuid import NAMESPACE_URL, uuid5

from broker.client.group_config import GroupMemberConfig
from broker.client.records import PoisonBatch, Record
from broker.client.security.client_security import Security
from broker.record.batch import read_header
from broker.record.records import Headers
from coordination.access import Access
from coordination.memory import Ensemble, MemoryCoordinator
from flakelog.testing.memory_group import MemoryGroup, MemoryGroupStore
from partition_manager.dead_letter import dead_letter_headers
from partition_manager.offset_document import BadOffsetDocument, OffsetDocument
from partition_manager.offset_store import CoordinatedOffsetStore, blocking
from partition_manager.ports import (
    Answer,
    Bounds,
    Buried,
    Bury,
    DeadLetter,
    DeadLetterSink,
    EpochEnd,
    Failed,
    Fetch,
    Fetched,
    FetcherRequest,
    FindBounds,
    FindEpochEnd,
    FindId,
    FindTime,
    FoundOffset,
    GroupStore,
    LetterRefused,
    ListPartitions,
    ListTopics,
    Loaded,
    LoadOffset,
    OffsetStore,
    OutOfRange,
    Partitions,
    RecordFetcher,
    Recreated,
    Saved,
    Topics,
)
from partition_manager.progress import Progress
from partition_manager.source import KAFKA
from spout.config import SpoutConfig
from spout.partitioner import CRC32, partition_of
from spout.sink_config import SinkConfig
from spout.sink_ports import Counted, CountPartitions, Output, Produced, RecordProducer, SinkAnswer, SinkRequest
from spout.transaction_ports import (
    Aborted,
    Committed,
    FencedOut,
    OutputsRefused,
    Transact,
    TransactAnswer,
    Transactor,
)

FIRST_ID = 1_000
IDS_OF_A_PARTITION = 10**9  # the ids of partition n begin at FIRST_ID + n * IDS_OF_A_PARTITION
BETWEEN_MESSAGES_MS = 10

Answering = Callable[[Answer], None]


class MemoryLog:
    """A topic in memory. Ids and timestamps rise with the offset, as in Flakelog's log.

    A fetch at the end of a partition is held until a message is appended. `starts` and `ends` are the bounds of each
    partition, and `epochs` its leader epochs in order, each as (epoch, first offset). While `down` holds a text, every
    request fails with it. `fetches` counts the fetches answered with records. `record_bytes_max` is the longest key and
    value together that `LogSink` may write, as a topic's max.message.bytes; None: no limit.
    """

    def __init__(self, partitions: int = 1, topic: str = "flights") -> None:
        self.topic = topic
        self.down: str | None = None
        self.fetches = 0
        self.record_bytes_max: int | None = None
        self._ids: defaultdict[int, int] = defaultdict(int)  # ids given by each partition so far
        self._held: list[tuple[Fetch, Answering]] = []
        self._creations = 0
        self._create(partitions)

    def _create(self, partitions: int) -> None:
        self._creations += 1
        self.topic_id = str(uuid5(NAMESPACE_URL, f"memory:{self.topic}:{self._creations}"))
        self.kept: dict[int, dict[int, Record]] = {number: {} for number in range(partitions)}
        self.poison: defaultdict[int, list[PoisonBatch]] = defaultdict(list)
        self.starts: defaultdict[int, int] = defaultdict(int)
        self.ends: defaultdict[int, int] = defaultdict(int)
        self.epochs: defaultdict[int, list[tuple[int, int]]] = defaultdict(lambda: [(0, 0)])

    # --- calls of a test

    def append(
        self,
        value: bytes | str | None = b"v",
        partition: int = 0,
        key: bytes | str | None = None,
        *,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> int:
        """Append a message and return its offset; text becomes UTF-8.

        The default timestamp is 10 ms after the message before. Raise LookupError if there is no such partition.
        """
        if partition not in self.kept:
            raise LookupError(f"{self.topic} has no partition {partition}; it has {sorted(self.kept)}")
        offset, id = self.ends[partition], self._take_ids(partition, 1)
        at_ms = offset * BETWEEN_MESSAGES_MS if timestamp_ms is None else timestamp_ms
        self.kept[partition][offset] = Record(offset, id, at_ms, _bytes(key), _bytes(value), headers)
        self.ends[partition] = offset + 1
        self._answer_held()
        return offset

    def append_poison(self, batch: bytes, partition: int = 0) -> PoisonBatch:
        """Append a batch whose records cannot be decoded; it takes as many offsets as its header says."""
        base, delta = self.ends[partition], read_header(batch).last_offset_delta
        first_id = self._take_ids(partition, delta + 1)
        data = base.to_bytes(8, "big") + bytes(batch[8:])
        poison = PoisonBatch(self.topic, partition, base, base + delta, first_id, "a field is cut off", data)
        self.poison[partition].append(poison)
        self.ends[partition] = base + delta + 1
        self._answer_held()
        return poison

    def records(self, partition: int = 0) -> list[Record]:
        """Return the messages that a partition holds, in order of offset."""
        return list(self.kept[partition].values())

    def retain_from(self, partition: int, offset: int) -> None:
        """Remove the messages below `offset`, as retention does."""
        self.starts[partition] = offset
        self.ends[partition] = max(offset, self.ends[partition])
        self._keep(partition, lambda first, last: last >= offset)

    def compact(self, partition: int, offset: int) -> None:
        """Remove one message, as compaction does; its offset stays empty."""
        del self.kept[partition][offset]

    def truncate(self, partition: int, end: int) -> None:
        """Remove the messages from `end` on, as an unclean election of a leader does, and begin a leader epoch.

        Ids of the removed messages are not given again.
        """
        self.ends[partition] = end
        self.starts[partition] = min(end, self.starts[partition])
        self._keep(partition, lambda first, last: last < end)
        epoch = self.epochs[partition][-1][0] + 1
        self.epochs[partition] = [*(entry for entry in self.epochs[partition] if entry[1] < end), (epoch, end)]
        self._answer_held()

    def recreate(self, *, partitions: int | None = None) -> None:
        """Delete the topic and create it again, empty and with another topic id, by default with as many partitions."""
        self._create(len(self.kept) if partitions is None else partitions)
        self._answer_held()

    # --- the fetcher's port

    def ask(self, request: FetcherRequest, answer: Answering) -> None:
        """Answer a request at once, unless it is a fetch at the end."""
        if self.down:
            answer(Failed(self.down))
        elif isinstance(request, ListTopics):
            answer(Topics((self.topic,)))
        elif isinstance(request, ListPartitions):
            answer(Partitions(tuple(self.kept), "127.0.0.1", 9092, self.topic_id))
        elif request.partition not in self.kept:
            answer(Failed(f"{self.topic} has no partition {request.partition}"))
        elif isinstance(request, FindBounds):
            answer(Bounds(self.starts[request.partition], self.ends[request.partition]))
        elif isinstance(request, FindEpochEnd):
            answer(self._epoch_end(request.partition, request.leader_epoch))
        elif isinstance(request, FindTime):
            time_ms = request.timestamp_ms
            answer(self._find(request.partition, lambda record: record.timestamp_ms >= time_ms))
        elif isinstance(request, FindId):
            id = request.id
            answer(self._find(request.partition, lambda record: (record.id or 0) >= id))
        else:
            self._fetch(request, answer)

    def hold(self, is_held: bool) -> None:
        """Do nothing: a fetch here costs as much now as later."""

    def close(self) -> None:
        """Do nothing: the log outlives its readers."""

    # --- internals

    def _take_ids(self, partition: int, count: int) -> int:
        first = FIRST_ID + partition * IDS_OF_A_PARTITION + self._ids[partition]
        self._ids[partition] += count
        return first

    def _keep(self, partition: int, wanted: Callable[[int, int], bool]) -> None:
        self.kept[partition] = {o: record for o, record in self.kept[partition].items() if wanted(o, o)}
        self.poison[partition] = [b for b in self.poison[partition] if wanted(b.base_offset, b.last_offset)]

    def _answer_held(self) -> None:
        held, self._held = self._held, []
        for request, answer in held:
            self.ask(request, answer)

    def _find(self, partition: int, wanted: Callable[[Record], bool]) -> FoundOffset:
        return FoundOffset(min((o for o, record in self.kept[partition].items() if wanted(record)), default=None))

    def _epoch_end(self, partition: int, epoch: int) -> EpochEnd:
        """Answer as Kafka does: the largest epoch up to `epoch`, and where the next one begins.

        Both are -1 if the log has no epoch as late. Of an epoch before the first, nothing is left.
        """
        epochs = self.epochs[partition]
        if not 0 <= epoch <= epochs[-1][0]:
            return EpochEnd(-1, -1)
        end = next((first for later, first in epochs if later > epoch), self.ends[partition])
        return EpochEnd(max((known_epoch for known_epoch, _ in epochs if known_epoch <= epoch), default=epoch), end)

    def _fetch(self, request: Fetch, answer: Answering) -> None:
        number, (offset, max_records, _) = request.partition, request.wanted
        start, end = self.starts[number], self.ends[number]
        if request.topic_id not in ("", self.topic_id):
            answer(Recreated(self.topic_id))
        elif offset == end:
            self._held.append((request, answer))
        elif not start <= offset <= end:
            answer(OutOfRange(start, end))
        else:
            self.fetches += 1
            answer(self._read(number, offset, min(end, offset + max_records)))

    def _read(self, number: int, offset: int, upto: int) -> Fetched:
        poison = [batch for batch in self.poison[number] if batch.base_offset < upto and batch.last_offset >= offset]
        upto = max([upto, *(batch.last_offset + 1 for batch in poison)])
        kept, epoch = self.kept[number], max(epoch for epoch, first in self.epochs[number] if first < upto)
        return Fetched([kept[o] for o in range(offset, upto) if o in kept], upto, self.ends[number], poison, epoch)


class MemoryDeadLetters:
    """A dead-letter topic in memory: `letters`, and `log` with the records that a broker would hold.

    While `down` holds a text, every request fails with it. While `refuses` holds one, the topic says that it will never
    take the letter, which `refused` then holds. While it is `slow`, answers wait for `confirm`.
    """

    def __init__(self, log: MemoryLog | None = None) -> None:
        self.log = log if log is not None else MemoryLog()
        self.letters: list[DeadLetter] = []
        self.refused: list[DeadLetter] = []
        self.down: str | None = None
        self.refuses: str | None = None
        self.slow = False
        self._unconfirmed: list[Answering] = []

    def ask(self, request: Bury, answer: Answering) -> None:
        """Keep a letter, fail, or refuse it."""
        if self.down:
            answer(Failed(self.down))
            return
        if self.refuses:
            self.refused.append(request.letter)
            answer(LetterRefused(self.refuses))
            return
        letter = request.letter
        self.letters.append(letter)
        self.log.append(letter.record.value, key=letter.record.key, headers=dead_letter_headers(letter))
        if self.slow:
            self._unconfirmed.append(answer)
        else:
            answer(Buried())

    def confirm(self) -> None:
        """Answer the requests that wait since the sink is slow."""
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for answer in unconfirmed:
            answer(Buried())

    def close(self) -> None:
        """Do nothing: the letters outlive the spout."""


class MemoryWorld:
    """The ports of a topology, in memory: topics, their dead letters, and stored progress.

    It ignores addresses and credentials: every spout sees the same topics. Two runs of a topology in one world share
    its progress, as after a restart. `session` is the connection to the store of progress, with faults on demand.
    """

    def __init__(self) -> None:
        self.topics: dict[str, MemoryLog] = {}
        self.sinks: dict[str, MemoryDeadLetters] = {}
        self.groups: dict[str, MemoryGroup] = {}
        self.ensemble = Ensemble()
        self.session = MemoryCoordinator(self.ensemble)

    # --- calls of a test

    def topic(self, name: str, *, partitions: int | None = None) -> MemoryLog:
        """Return the topic, and create it if there is none, by default with one partition.

        Raise ValueError if it exists with another number of partitions.
        """
        log = self.topics.get(name)
        if log is None:
            log = self.topics[name] = MemoryLog(1 if partitions is None else partitions, name)
        if partitions not in (None, len(log.kept)):
            raise ValueError(f"{name} exists with {len(log.kept)} partitions, not {partitions}")
        return log

    def letters(self, topic: str) -> list[DeadLetter]:
        """Return the dead letters of a topic's messages, in order of burial."""
        return [letter for sink in self.sinks.values() for letter in sink.letters if letter.topic == topic]

    def progress(self, topic: str) -> dict[int, Progress]:
        """Return the stored progress of each partition; the progress of several spouts is that of the last one made."""
        progress = {}
        for node in self.ensemble.nodes.values():
            try:
                document = OffsetDocument.decode(node.data)
            except BadOffsetDocument:
                continue  # a folder of the store, or a document that the spout refuses
            if document.topic == topic:
                progress[document.partition] = document.progress
        return progress

    # --- the engine's ports

    def fetcher(self, servers: str, config: SpoutConfig, *, security: Security = None) -> RecordFetcher:
        """Return a reader of all topics."""
        return _Fetcher(self.topics)

    def offset_store(self, store: str, path: str, access: Access) -> OffsetStore:
        """Return the store at `path`."""
        return CoordinatedOffsetStore(path, blocking(self.session))

    def group_member(
        self, servers: str, group_id: str, component: str, tasks: int, config: GroupMemberConfig, *,
        security: Security = None,
    ) -> Callable[[int], GroupStore]:  # fmt: skip
        """Return a function from a task's index to its part of a group in which this process is alone."""
        if group_id not in self.groups:
            store = self.offset_store(KAFKA, f"/{group_id}", Access())
            self.groups[group_id] = MemoryGroup(self.topics, store, tasks)
        return partial(MemoryGroupStore, self.groups[group_id])

    def dead_letters(self, servers: str, topic: str, *, security: Security = None) -> DeadLetterSink:
        """Return the dead-letter topic `topic`."""
        return self.sink(topic)

    def producer(self, servers: str, *, security: Security = None) -> RecordProducer:
        """Return a writer of the topics, for `LogSink`."""
        return MemoryProducer(self)

    def transactor(
        self,
        servers: str,
        sources: Mapping[str, Security],
        transactional_id: str,
        config: SinkConfig,
        *,
        security: Security = None,
    ) -> Transactor:
        """Return a transactional producer of the topics and of the stored progress, for `LogSink`."""
        return MemoryTransactor(self, config.sink_partitioner)

    def sink(self, topic: str) -> MemoryDeadLetters:
        """Return the dead-letter topic, to make it fail or to look at its log; create it if there is none."""
        if topic not in self.sinks:
            self.sinks[topic] = MemoryDeadLetters(self.topic(topic))
        return self.sinks[topic]


class MemoryProducer:
    """A writer of the topics of a world; as with a broker, a topic must exist, and fails while its log is down."""

    def __init__(self, world: MemoryWorld) -> None:
        self._topics = world.topics

    def ask(self, request: SinkRequest, answer: Callable[[SinkAnswer], None]) -> None:
        """Append the records, or count the partitions."""
        log = self._topics.get(request.topic)
        if log is None:
            answer(Failed(f"topic {request.topic}: UNKNOWN_TOPIC_OR_PARTITION"))
        elif log.down:
            answer(Failed(log.down))
        elif isinstance(request, CountPartitions):
            answer(Counted(len(log.kept)))
        elif refused := [why for output in request.outputs if (why := _why_refused(log, request.partition, output))]:
            answer(LetterRefused(refused[0]))
        else:
            for output in request.outputs:
                log.append(output.value, request.partition, output.key, headers=output.headers)
            answer(Produced())

    def close(self) -> None:
        """Do nothing: the topics outlive the writer."""


class MemoryTransactor:
    """A transactional producer of a world: outputs, dead letters and progress appear together, or none of them."""

    def __init__(self, world: MemoryWorld, partitioner: str = CRC32) -> None:
        self._world = world
        self._partitioner = partitioner

    def ask(self, request: Transact, answer: Callable[[TransactAnswer], None]) -> None:
        """Store the progress, unless another owner has written it since; then append the records."""
        missing = next((wanted.topic for wanted in request.outputs if wanted.topic not in self._world.topics), None)
        if missing is not None:
            answer(Aborted(f"topic {missing}: UNKNOWN_TOPIC_OR_PARTITION"))
            return
        down = next((down for wanted in request.outputs if (down := self._world.topics[wanted.topic].down)), None)
        if down is not None:
            answer(Aborted(down))
            return
        targets = [self._target(turn, output) for turn, output in enumerate(request.outputs)]
        found_bad = {
            number: why
            for number, ((log, partition), output) in enumerate(zip(targets, request.outputs, strict=True))
            if (why := _why_refused(log, partition, output))
        }
        if found_bad:
            answer(OutputsRefused(found_bad))
            return
        for save in request.saves:  # look first, so that all of them are stored or none
            answers: list[Answer] = []
            save.store.ask(
                LoadOffset(save.request.topic, save.request.partition, save.request.by_topic), answers.append
            )
            if [loaded.version for loaded in answers if isinstance(loaded, Loaded)] != [save.request.version]:
                answer(FencedOut(f"{save.request.topic}-{save.request.partition} was written by another owner"))
                return
        saved: list[Answer] = []
        for save in request.saves:
            save.store.ask(save.request, saved.append)
        for (log, partition), output in zip(targets, request.outputs, strict=True):
            log.append(output.value, partition, output.key, headers=output.headers)
        for letter in request.letters:
            self._world.sink(letter.topic).ask(Bury(letter.letter), lambda buried: None)
        answer(Committed([outcome for outcome in saved if isinstance(outcome, Saved)]))

    def _target(self, turn: int, output: Output) -> tuple[MemoryLog, int]:
        log = self._world.topics[output.topic]
        return log, partition_of(output.key, len(log.kept), turn, self._partitioner)

    def close(self) -> None:
        """Do nothing: the topics outlive the producer."""


class _Fetcher:
    def __init__(self, topics: dict[str, MemoryLog]) -> None:
        self._topics = topics

    def ask(self, request: FetcherRequest, answer: Answering) -> None:
        names = tuple(sorted(self._topics))
        if isinstance(request, ListTopics):
            answer(Topics(names))
        elif (log := self._topics.get(request.topic)) is None:
            answer(Failed(f"there is no topic {request.topic!r}; there are: {', '.join(names) or 'none'}"))
        else:
            log.ask(request, answer)

    def hold(self, is_held: bool) -> None:
        """Do nothing, as MemoryLog.hold."""

    def close(self) -> None:
        pass


def _why_refused(log: MemoryLog, partition: int, output: Output) -> str | None:
    size = len(output.key or b"") + len(output.value or b"")
    if log.record_bytes_max is None or size <= log.record_bytes_max:
        return None
    return f"{log.topic}-{partition} refuses a record of {size:,} bytes: its limit is {log.record_bytes_max:,}"


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
