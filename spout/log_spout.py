"""A spout over a topic of Flakelog, or of Apache Kafka: at least once, retried with backoff, progress kept.

Its tuples are what the scheme makes of a message, by default (id, key, value), the message's Snowflake id first. That
is the same at every delivery, so a bolt that remembers which ids it has counted, in one transaction with its counts,
counts each message once.
"""

from collections import deque

from coordination.access import Access
from partition_manager.asks import Ask
from partition_manager.coordinator import MessageId, PartitionCoordinator
from partition_manager.entry import Counts
from partition_manager.opening import Source
from partition_manager.ports import Answer, Bury, LoadOffset, SaveOffset
from partition_manager.start_offset import Earliest, StartAt
from partition_manager.task_partition import PartitionStatus
from spout.api import OutputDeclarer, Spout
from spout.config import SpoutConfig
from spout.scheme import RawScheme, Scheme, SchemeError

STORE_ROOT = "/flakelog-spouts"  # 0.9.3's zkRoot
POLL_ROUNDS = 10  # opening a partition takes five requests, one after the other


class LogSpout(Spout):
    """Reads `topic`, its tasks sharing the partitions.

    `servers` is host:port, several with commas; `store` is where progress is kept, a directory or
    zookeeper://host:port,host:port/chroot, and `access` how that ZooKeeper is spoken to (credentials, ACLs, TLS); `id`
    is the name it is kept under, by default <topology id>.<component>, and two that share one fence each other. `start`
    counts where nothing is stored.
    """

    def __init__(
        self,
        topic: str,
        *,
        servers: str = "127.0.0.1:9092",
        store: str = "flakelog-progress",
        access: Access = Access(),
        id: str | None = None,
        scheme: Scheme | None = None,
        start: StartAt = Earliest(),
        config: SpoutConfig = SpoutConfig(),
    ) -> None:
        self.topic = topic
        self.servers = servers
        self.store = store
        self.access = access
        self.id = id
        self.scheme: Scheme = scheme if scheme is not None else RawScheme()
        self.start = start
        self.config = config

    @property
    def dead_letter_topic(self) -> str:
        """Where messages given up go; empty: nowhere, they are tried for ever."""
        return self.config.spout_dead_letter_topic.replace("{topic}", self.topic)

    def declare_output_fields(self, declarer: OutputDeclarer) -> None:
        """The scheme's fields."""
        declarer.declare(*self.scheme.fields)

    # --- Storm's verbs

    def open(self) -> None:
        """Open the ways out; nothing is asked of anybody yet."""
        context = self.context
        source = Source(self.topic, context.topology_id, context.topology, self.start, self.config)
        owner = f"{context.run_id}.{context.task}"
        self._coordinator = PartitionCoordinator(source, context.index, context.parallelism, owner)
        self._answers: deque[tuple[int, Answer]] = deque()  # bounded by the requests that are out
        self._started = False
        path = f"{STORE_ROOT}/{self.id or f'{context.topology_id}.{context.component}'}"
        self._store = context.world.offset_store(self.store, path, self.access)
        self._fetcher = context.world.fetcher(self.servers, self.config)
        topic = self.dead_letter_topic
        self._dead = context.world.dead_letters(self.servers, topic) if topic else None

    def activate(self) -> None:
        """Begin to read; again after `deactivate`, go on emitting what was read meanwhile."""
        if not self._started:
            self._started = True
            self._coordinator.start(self.context.now_ms)

    def next_tuple(self) -> None:
        """Emit the tuples of one message; those that make none, or cannot be read, are passed over."""
        now_ms = self.context.now_ms
        while (found := self._coordinator.next(now_ms)) is not None:
            id, message = found
            try:
                tuples = list(self.scheme.tuples(message.record, id.partition))
            except SchemeError as error:
                self._coordinator.reject(id, now_ms, str(error))
                continue
            self._coordinator.fan_out(id, len(tuples))
            for values in tuples:
                self.emit(values, id)
            if tuples:
                return

    def ack(self, id: MessageId) -> None:
        """One tuple of the message is processed."""
        self._coordinator.ack(id)

    def fail(self, id: MessageId) -> None:
        """One tuple of the message failed: the message comes again after a while, or goes to the dead letters."""
        self._coordinator.fail(id, self.context.now_ms, self.context.failure)

    def deactivate(self) -> None:
        """Store the progress so far; acks still come."""
        self._coordinator.commit(self.context.now_ms)

    def close(self) -> None:
        """Close the ways out; what was not stored by then comes again."""
        self._fetcher.close()
        self._store.close()
        if self._dead is not None:
            self._dead.close()

    # --- the engine's verbs

    def poll(self) -> None:
        """Take answers in, hand requests out; some ports answer at once, so look again a few times."""
        now_ms = self.context.now_ms
        for _ in range(POLL_ROUNDS):
            while self._answers:
                self._coordinator.answered(*self._answers.popleft(), now_ms)
            asks = self._coordinator.take_asks(now_ms)
            if not asks:
                break
            for ask in asks:
                self._carry(ask)
        for note in self._coordinator.take_notes():
            self.context.log(note)

    def next_deadline_ms(self) -> int | None:
        """When a retry, a commit or a request is due; now, if an answer waits."""
        return self.context.now_ms if self._answers else self._coordinator.next_deadline_ms()

    def finish(self) -> None:
        """Store what is settled and let the partitions go; `idle` when that is done."""
        self._coordinator.stop(self.context.now_ms)

    @property
    def idle(self) -> bool:
        """Whether every partition is stored and let go, after `finish`."""
        return self._coordinator.idle

    # --- figures

    @property
    def counts(self) -> Counts:
        """What became of messages in this task's partitions."""
        return self._coordinator.counts

    def status(self) -> list[PartitionStatus]:
        """This task's partitions."""
        return self._coordinator.status()

    def _carry(self, ask: Ask) -> None:
        number, request = ask

        def answer(value: Answer) -> None:
            self._answers.append((number, value))
            self.context.wake()

        if isinstance(request, Bury):
            assert self._dead is not None, "nothing is given up without a dead-letter topic"
            self._dead.ask(request, answer)
        elif isinstance(request, (LoadOffset, SaveOffset)):
            self._store.ask(request, answer)
        else:
            self._fetcher.ask(request, answer)
