"""A broker without sockets: an Engine over files in memory, a clock that the test sets, and clients that send bytes.

    broker = EngineBroker()
    client = broker.connect()
    answer = client.ask(METADATA, 12, {"topics": [{"name": "flights"}]})

`ask` encodes a request, feeds it, and decodes the answer in the same version. `send` and `replies` are its halves, for
requests that wait. Only `broker.at(ms)` moves the clock, from deadline to deadline as the shell does. Produce and Fetch
take the request objects of broker.wire instead of fields.
"""

from contextlib import contextmanager
from itertools import count
from uuid import UUID

from broker.engine.api_table import APIS, INTER_BROKER
from broker.engine.engine import Engine
from broker.log.log_manager import LogManager
from broker.log.storage.memory_storage import MemoryStorage
from broker.metadata.change import Change
from broker.metadata.image import RegisteredBroker
from broker.metadata.local_metadata import FileMetadataStore, LocalMetadata
from broker.metadata.staged import Staged
from broker.metadata.topic import Topic, new_partitions
from broker.now import Now
from broker.record.records import BatchRecord, decode_records, encode_batch
from broker.services.context import BrokerServices
from broker.services.start import open_logs
from broker.services.topic_changes import create_topic, plan_alteration, plan_deletion
from broker.settings.config import BrokerConfig
from broker.settings.group_config import GroupConfig
from broker.settings.transaction_config import TransactionConfig
from broker.waiting.purgatory import Purgatory
from broker.wire import cold, fetch, produce
from broker.wire.codec import API_VERSIONS
from broker.wire.frame import FileRegion, request_header
from broker.wire.primitives import skip_tags
from idgen.layout import Layout
from idgen.settings import settings_of
from idgen.worker import IdWorker

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS = 15, 16, 42
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 19, 20, 21, 22
OFFSET_FOR_LEADER_EPOCH, OFFSET_DELETE = 23, 47
ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 61, 65, 66
DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 44
DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, DESCRIBE_LOG_DIRS, ELECT_LEADERS = 29, 30, 31, 35, 43
ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS, DESCRIBE_QUOTAS, ALTER_QUOTAS = 45, 46, 48, 49
ALTER_REPLICA_LOG_DIRS, DESCRIBE_QUORUM = 34, 55
DESCRIBE_SCRAM, ALTER_SCRAM, UPDATE_FEATURES, LIST_CONFIG_RESOURCES = 50, 51, 57, 74
CREATE_PARTITIONS, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS = 37, 60, 75
SASL_HANDSHAKE, SASL_AUTHENTICATE, UNREGISTER_BROKER = 17, 36, 64
WRITE_TXN_MARKERS = 27

SETTINGS = settings_of(BrokerConfig) + settings_of(GroupConfig) + settings_of(TransactionConfig)

WALL_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class EngineBroker:
    """A broker without sockets. `settings` are fields of BrokerConfig, GroupConfig or TransactionConfig; `max_ahead_ms`
    is the id worker's run-ahead. `own` is the broker, and `membership` are fields of BrokerServices that a broker of a
    cluster has. `wall_step_ms` is how far its wall clock is ahead."""

    def __init__(
        self, storage=None, now_ms=1_000, max_ahead_ms=500, engine=Engine, own=None, membership=None, **settings
    ):
        self.wall_step_ms = 0
        self.storage = storage or MemoryStorage()
        self.now_ms = now_ms
        self.reported = []
        self.held = None
        self.after_pump = lambda: None
        self.fed = []
        self._in_turn = False
        self._pumping = False
        self._settings = settings
        self._uuids = count(1)
        self._peers = count(50_000)
        group, transaction = (
            {name: value for name, value in settings.items() if name in config.__dataclass_fields__}
            for config in (GroupConfig, TransactionConfig)
        )
        broker = {name: value for name, value in settings.items() if name not in group | transaction}
        config = BrokerConfig(**broker)
        own = own or RegisteredBroker(1, {"": ("localhost", 9092)})
        self.node_id = own.id
        local = LocalMetadata(FileMetadataStore(self.storage), own, self._new_uuid)
        local.load()
        logs = LogManager(self.storage, config, self.reported.append)
        purgatory = Purgatory(now_ms, config.max_delayed_operations)
        self.services = BrokerServices(
            config, local, logs, purgatory, self.reported.append, group_config=GroupConfig(**group), **membership or {}
        )
        self.services.transaction_config = TransactionConfig(**transaction)
        given = {setting.name: str(settings[setting.field]) for setting in SETTINGS if setting.field in settings}
        self.services.given = given
        open_logs(self.services)
        self.worker = IdWorker(
            Layout(), own.id, start_ms=WALL_MS + now_ms, limit_ms=WALL_MS + 365 * DAY_MS, max_ahead_ms=max_ahead_ms
        )
        self.services.id_stamper.worker = lambda: self.worker
        self.services.coordinators.load(self.now)
        self.engine = engine(self.services)
        self.clients = {}

    def _new_uuid(self):
        return UUID(int=self.now_ms << 64 | next(self._uuids))

    @property
    def now(self):
        return Now(self.now_ms, WALL_MS + self.now_ms + self.wall_step_ms)

    def delete(self, topic):
        """Delete a topic, as if a client had asked for it."""
        self.change(plan_deletion([self.services.metadata.topic(topic)]))

    def change(self, staged):
        """Make a planned change of the metadata, as if a client had asked for it; wait for its jobs."""
        self.services.file_executor.run_now(staged, self.now)
        for job in self.services.file_executor.take():
            self.run(job)
        self.pump()

    def alter(self, topic, properties):
        """Replace the settings of a topic, as if a client had asked for it."""
        self.change(plan_alteration(self.services, [(self.services.metadata.topic(topic), properties)]))

    def know(self, topics):
        """Add topics to the metadata, {name: partitions}, without their logs."""
        own = (self.services.node.id,)
        new = [Topic(name, self._new_uuid(), new_partitions([own] * number), {}) for name, number in topics.items()]
        self.change(Staged(Change({topic.name: topic for topic in new})))

    def connect(self, client_id="test", drains=True, listener=""):
        """Return a new client. Without `drains` it is a reader that leaves its answers in the socket."""
        conn = self.engine.opened(f"10.0.0.7:{next(self._peers)}", self.now, listener)
        client = self.clients[conn] = EngineClient(self, conn, client_id, drains)
        self.pump()
        return client

    @contextmanager
    def turn(self):
        """Receive everything within the block in one turn of the reactor."""
        self._in_turn = True
        yield
        self._in_turn = False
        self.pump()

    def pump(self):
        """Send replies, run syncs and close connections, as the shell does after each verb. A nested call (from a
        client that drains) returns immediately and leaves the work to the outer call, so that it cannot overtake an
        answer in progress."""
        if self._in_turn or self._pumping:
            return
        self._pumping = True
        try:
            self._pump()
        finally:
            self._pumping = False
        self.after_pump()

    def _pump(self):
        self.execute()
        self._send()
        while syncs := self.engine.take_syncs():
            for sync in syncs:
                if self.held is None:
                    self.run(sync)
                else:
                    self.held.append(sync)
            self.execute()
            self._send()
        for conn in self.engine.take_closes():
            self.clients[conn].closed = conn.close_reason
            self.engine.closed(conn)
        self.engine.take_stalled()
        self._check_pending()

    def _check_pending(self):
        """Fail if a part has work that it did not register, so that the engine would not ask for it."""
        logs = self.services.logs
        if not logs.pending.deadline:
            assert logs.next_deadline_ms(self.now.ms) <= logs.earliest_ms(self.now.ms)
        if not logs.pending.jobs:
            logs.pending.jobs = True
            assert not self.engine.take_syncs()

    def _send(self):
        while True:
            while replies := self.engine.take_replies():
                for conn, parts in replies:
                    self.clients[conn].take(parts)
            if not self.engine.has_work:
                return
            self.execute()

    def execute(self):
        """Execute one turn, then use the memory of the bytes received again, as the shell does."""
        self.engine.execute(self.now)
        for memory in self.fed:
            memory[:] = bytes(len(memory))
        self.fed.clear()

    def hold_syncs(self):
        """Hold every later sync, like a slow disk; return the list of held syncs, for `run` or `release`."""
        self.held = []
        return self.held

    def release(self):
        """Run the held syncs and all syncs that follow from them; later syncs run immediately again."""
        while self.held:
            self.run(self.held.pop(0))
            self.pump()
        self.held = None

    def run(self, sync):
        try:
            sync.run()
        except Exception as error:
            self.engine.sync_failed(sync, error, self.now)
        else:
            self.engine.synced(sync, self.now)

    def at(self, now_ms):
        """Advance the clock to `now_ms`, ticking at each deadline on the way."""
        while (due_ms := self.engine.next_deadline(self.now)) <= now_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.engine.tick(self.now)
            self.pump()
        self.now_ms = max(self.now_ms, now_ms)

    def restarted(self, later_ms=10_000, clean=True):
        """Return a new broker on the same files, after a clean stop or a kill."""
        if clean:
            self.services.close()
        return EngineBroker(self.storage, self.now_ms + later_ms, **self._settings)

    def create(self, topic, partitions=1, **properties):
        named = {name.replace("_", "."): str(value) for name, value in properties.items()}
        made = create_topic(self.services, topic, partitions, named, self.now)
        while self.services.logs.to_make:
            self.at(self.engine.next_deadline(self.now))
        return made


class EngineClient:
    def __init__(self, broker, conn, client_id, drains):
        self.broker = broker
        self.conn = conn
        self.closed = None
        self.received = bytearray()
        self._client_id = client_id
        self._drains = drains
        self._unsent_bytes = 0
        self._ids = count(1)
        self._requests = {}

    # Bytes

    def feed(self, data):
        """Feed raw bytes from this peer."""
        self.broker.fed.append(bytearray(data))
        self.broker.engine.receive(self.conn, memoryview(self.broker.fed[-1]), self.broker.now)
        self.broker.pump()

    def take(self, parts):
        before = len(self.received)
        for part in parts:
            self.received += part.file.read(part.position, part.length) if isinstance(part, FileRegion) else part
        self._unsent_bytes += len(self.received) - before
        if self._drains:
            self.drain()

    def drain(self):
        """Report that the socket has sent everything, so that the broker may continue."""
        sent_bytes, self._unsent_bytes = self._unsent_bytes, 0
        self.broker.engine.drained(self.conn, sent_bytes, self.broker.now)
        self.broker.pump()

    def frame(self, api_key, version, fields, tags=None):
        """Return (correlation id, request with its length prefix); `tags` are private tags, for cold APIs only."""
        api = APIS.get(api_key) or INTER_BROKER[api_key]
        correlation_id = next(self._ids)
        self._requests[correlation_id] = api_key, version
        header = request_header(api_key, version, correlation_id, self._client_id, version >= api.flexible)
        data = header + _body(api_key, version, fields, tags)
        return correlation_id, len(data).to_bytes(4, "big") + data

    # Requests

    def send(self, api_key, version, fields, tags=None):
        """Send a request; return its correlation id."""
        correlation_id, data = self.frame(api_key, version, fields, tags)
        self.feed(data)
        return correlation_id

    def send_together(self, *requests):
        """Send requests, each (API key, version, fields), as one piece of bytes; return their correlation ids."""
        frames = [self.frame(*request) for request in requests]
        self.feed(b"".join(data for _, data in frames))
        return [correlation_id for correlation_id, _ in frames]

    def answered(self):
        """Return the correlation ids of the answers received since the last call."""
        return [correlation_id for correlation_id, _ in self.replies()]

    def replies(self):
        """Return the answers received since the last call as [(correlation id, decoded)]."""
        answers = []
        while len(self.received) >= 4:
            size = int.from_bytes(self.received[:4], "big")
            assert len(self.received) >= 4 + size, "half an answer"
            frame = memoryview(bytes(self.received[4 : 4 + size]))
            del self.received[: 4 + size]
            answers.append(self._decode(frame))
        return answers

    def ask(self, api_key, version, fields):
        """Send a request that is answered immediately; return the decoded answer."""
        correlation_id = self.send(api_key, version, fields)
        assert self.closed is None, self.closed
        answers = self.replies()
        assert [answered for answered, _ in answers] == [correlation_id], f"answered: {answers}"
        return answers[0][1]

    def _decode(self, frame):
        correlation_id = int.from_bytes(frame[:4], "big")
        api_key, version = self._requests.pop(correlation_id)
        api = APIS.get(api_key) or INTER_BROKER[api_key]
        position = 4
        if version >= api.flexible and api_key != API_VERSIONS:
            position = skip_tags(frame, position)
        if api_key == PRODUCE:
            return correlation_id, produce.decode_response(version, frame, position)
        if api_key == FETCH:
            return correlation_id, fetch.decode_response(version, frame, position)
        version = min(version, api.newest) if version >= api.oldest else api.oldest
        return correlation_id, cold.decode(api_key, version, "response", frame, position, version).original

    # Shortcuts for tests

    def produce(self, topic, *values, partition=0, version=9, acks=1, wants_ids=False):
        """Produce records with these values in one batch; return the partition's result."""
        request = produce_request(topic, *values, partition=partition, acks=acks, wants_ids=wants_ids)
        return self.ask(PRODUCE, version, request)[0]

    def fetch(self, topic, offset=0, partition=0, version=12, **more):
        """Return the values of the records that are available now."""
        answer = self.ask(FETCH, version, fetch_request(topic, offset, partition, **more))
        return values_of(answer)


def _body(api_key, version, fields, tags):
    if api_key == PRODUCE:
        return produce.encode_request(version, fields)
    if api_key == FETCH:
        return fetch.encode_request(version, fields)
    return cold.encode(api_key, version, "request", fields, tags)


def batch_of(*values, timestamp_ms=WALL_MS, **fields):
    return encode_batch(
        [BatchRecord(i, 0, None, value) for i, value in enumerate(values)], base_timestamp_ms=timestamp_ms, **fields
    )


def produce_request(topic, *values, partition=0, acks=1, batch=None, wants_ids=False):
    records = memoryview(batch_of(*values) if batch is None else batch)
    return produce.ProduceRequest(None, acks, 30_000, [(topic, partition, records)], wants_ids)


def fetch_request(topic, offset=0, partition=0, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, wants_ids=False):
    return fetch.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        partitions=[fetch.FetchPartition(topic, partition, offset, max_bytes)],
        wants_ids=wants_ids,
    )


def values_of(answer):
    """Return the values of a Fetch answer's records; its one partition must have no error."""
    (partition,) = answer.partitions
    return values_in(partition)


def values_in(partition):
    """Return the values of the records that an answer has for a partition, which must have no error."""
    assert partition.error_code == 0, partition.error_code
    values, position = [], 0
    while position < len(partition.records):
        size = 12 + int.from_bytes(partition.records[position + 8 : position + 12], "big")
        values += [record.value for record in decode_records(partition.records, position)]
        position += size
    return values
