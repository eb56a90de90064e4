"""A client of any API in any version: requests by field name, to an engine without sockets or over a socket.

    world = World(EngineLine(EngineBroker()), "OffsetCommit", 2)
    answer = world.ask("OffsetCommit", {"group_id": "g", ...})       # in version 2; other APIs in their newest
    codes_of(answer)

kio reads every answer to its last byte. Its readers are generated from Kafka's own schemas, so the broker's encoders
are checked against those and not against our decoders. A request leaves out the fields that its version lacks, so one
set of fields serves all versions of an API.
"""

from itertools import count
from uuid import UUID

from kio.serial import entity_reader

from broker.engine.api_table import APIS
from broker.record.records import BatchRecord, encode_batch
from broker.wire import cold
from broker.wire.errors import ErrorCode
from broker.wire.frame import request_header
from broker.wire.schema import plan_of, schema

KEYS = {api.name: key for key, api in APIS.items()}
# The versions used by default: the newest ones that name topics by name.
BY_NAME = {"Produce": 12, "Fetch": 12, "OffsetCommit": 9, "OffsetFetch": 9}
WAIT_MS = 60_000
STEP_MS = 50
NOT_YET = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
TRIES_MAX = 50_000
_numbers = count(1)


class Closed(Exception):
    """The broker closed the connection; the message is the reason, if known."""


def codes_of(entity):
    """Return every error code of an answer, in order."""
    codes = []
    for plan in plan_of(type(entity)):
        value = getattr(entity, plan.name)
        if plan.kafka_type == "error_code":
            codes.append(ErrorCode(int(value)))
        elif plan.nested is not None and value is not None:
            for nested in value if plan.array else (value,):
                codes += codes_of(nested)
    return codes


def code_of(answer):
    """Return the first error of an answer, or NONE."""
    return next((code for code in codes_of(answer) if code), ErrorCode.NONE)


def request_of(api_key, version, correlation_id, fields):
    """Return a whole request frame, with its length prefix."""
    flexible = schema(api_key, version, "request").__header_schema__.__version__ >= 2
    header = request_header(api_key, version, correlation_id, "test", flexible)
    message = header + cold.encode(api_key, version, "request", fields)
    return len(message).to_bytes(4, "big") + message


def answer_of(api_key, version, frame):
    """Return (correlation id, answer as kio reads it); `frame` has no length prefix and must hold nothing else."""
    cls = schema(api_key, version, "response")
    data = memoryview(bytes(frame)).toreadonly()
    header, position = entity_reader(cls.__header_schema__)(data, 0)
    answer, size = entity_reader(cls)(data, position)
    assert position + size == len(data), f"{len(data) - position - size} bytes too many"
    return header.correlation_id, answer


class EngineLine:
    """A connection to an engine without sockets. The clock advances while `receive` waits for an answer."""

    def __init__(self, broker):
        self.broker = broker
        self._client = broker.connect()

    def another(self):
        return EngineLine(self.broker)

    def exchange(self, frame):
        """Send a frame and return the answer without its length prefix."""
        self.send(frame)
        return self.receive()

    def send(self, frame):
        self._client.feed(frame)

    def receive(self):
        client, end_ms = self._client, self.broker.now_ms + WAIT_MS
        while not client.received:
            if client.closed is not None:
                raise Closed(client.closed)
            assert self.broker.now_ms < end_ms, "no answer"
            self.broker.at(self.broker.now_ms + STEP_MS)
        size = int.from_bytes(client.received[:4], "big")
        answer = bytes(client.received[4 : 4 + size])
        del client.received[: 4 + size]
        return answer

    def pause(self):
        """Advance the clock by `STEP_MS`."""
        self.broker.at(self.broker.now_ms + STEP_MS)


class World:
    """A broker under test. Requests use `version` for the API `name` and the default version for all others. Groups and
    transactional ids have unique names, so that many worlds can share a broker; `topic` is a topic that they share."""

    def __init__(self, line, name="", version=0, topic=None):
        self.line = line
        self.name = name
        self.version = version
        self.number = next(_numbers)
        self.group = f"readers-{self.number}"
        self.transactional_id = f"payments-{self.number}"
        self._topic = topic
        self._ids = {}

    @property
    def broker(self):
        """The broker behind the wire, for situations that no client can bring about."""
        return self.line.broker

    # --- requests ------------------------------------------------------------------------------------------------

    def _version(self, name):
        return self.version if name == self.name else BY_NAME.get(name, APIS[KEYS[name]].newest)

    def send(self, name, fields, version=None, line=None):
        """Send a request and leave the answer for `receive`."""
        version = self._version(name) if version is None else version
        (line or self.line).send(request_of(KEYS[name], version, next(_numbers), fields))

    def receive(self, name, version=None, line=None):
        version = self._version(name) if version is None else version
        return answer_of(KEYS[name], version, (line or self.line).receive())[1]

    def ask(self, name, fields, version=None):
        self.send(name, fields, version)
        return self.receive(name, version)

    def until(self, ask, done):
        """Repeat `ask` until `done(answer)` is true; return that answer."""
        for _ in range(TRIES_MAX):
            answer = ask()
            if done(answer):
                return answer
            self.line.pause()
        raise AssertionError(f"still {answer}")

    def sure(self, name, fields, version=None):
        """Repeat a request until its answer has no error; return that answer."""
        return self.until(lambda: self.ask(name, fields, version), lambda answer: not code_of(answer))

    # --- topics --------------------------------------------------------------------------------------------------

    def create(self, partitions=2, topic=None, **configs):
        """Create a topic, wait until every partition has a leader, and return its name."""
        topic = topic or f"flights-{next(_numbers)}"
        named = [{"name": name.replace("_", "."), "value": str(value)} for name, value in configs.items()]
        self.sure("CreateTopics", create_topic(topic, num_partitions=partitions, configs=named), 7)
        self.sure("ListOffsets", {"replica_id": -1, "topics": [offsets_of(topic, range(partitions))]}, 7)
        return topic

    @property
    def topic(self):
        """A topic of two partitions, created at first use."""
        if self._topic is None:
            self._topic = self.create()
        return self._topic

    def id_of(self, topic):
        """Return a topic's id, or an unused id if there is no such topic."""
        if topic not in self._ids:
            fields = {"topics": [{"name": topic, "topic_id": None}], "allow_auto_topic_creation": False}
            (topic_metadata,) = self.ask("Metadata", fields, 12).topics
            if not topic_metadata.topic_id:
                return UUID(int=self.number)
            self._ids[topic] = topic_metadata.topic_id
        return self._ids[topic]

    def named(self, topic=None):
        """Return a topic's name and id under every field name that requests use."""
        topic = topic or self.topic
        return {"name": topic, "topic": topic, "topic_id": self.id_of(topic)}

    # --- records -------------------------------------------------------------------------------------------------

    def produce(self, topic=None, batch=None, partition=0, acks=-1, transactional_id=None, version=None):
        part = {"index": partition, "records": bytes(batch_of() if batch is None else batch)}
        data = {**_only(self.named(topic), "name", "topic_id"), "partition_data": [part]}
        fields = {"transactional_id": transactional_id, "acks": acks, "timeout": 5_000, "topic_data": [data]}
        return self.ask("Produce", fields, version)

    def fetch(self, topic=None, version=None, partition=0, session=(0, -1), replica=-1, topics=None, **more):
        """Send a Fetch; `session` is its (id, epoch)."""
        fetch_partition = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20} | more
        wanted = {**_only(self.named(topic), "topic", "topic_id"), "partitions": [fetch_partition]}
        fields = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0}
        fields |= {"replica_id": replica, "replica_state": {"replica_id": replica, "replica_epoch": -1}}
        fields |= {"session_id": session[0], "session_epoch": session[1]}
        return self.ask("Fetch", fields | {"topics": [wanted] if topics is None else topics}, version)

    # --- groups --------------------------------------------------------------------------------------------------

    def find(self, key, kind=0):
        """Repeat FindCoordinator until the coordinator is available."""
        fields = {"key": key, "key_type": kind, "coordinator_keys": [key]}
        self.sure("FindCoordinator", fields)

    def coordinated(self):
        """Wait until the group's coordinator is available and loaded."""
        self.find(self.group)
        self.until(lambda: self.heartbeat("nobody", 1, version=4), lambda answer: code_of(answer) not in NOT_YET)

    def heartbeat(self, member, generation, instance=None, group=None, version=None):
        fields = {"group_id": self.group if group is None else group, "generation_id": generation}
        return self.ask("Heartbeat", fields | {"member_id": member, "group_instance_id": instance}, version)

    def join(self, member="", instance=None, version=None, line=None, waits=False, **more):
        fields = {"group_id": self.group, "session_timeout": 10_000, "rebalance_timeout": 60_000, "member_id": member}
        fields |= {"group_instance_id": instance, "protocol_type": "consumer"}
        fields |= {"protocols": [{"name": "range", "metadata": SUBSCRIPTION}]}
        self.send("JoinGroup", fields | more, version, line)
        return None if waits else self.receive("JoinGroup", version, line)

    def sync(self, member, generation, instance=None, version=None, **more):
        fields = {"group_id": self.group, "generation_id": generation, "member_id": member}
        fields |= {"group_instance_id": instance, "protocol_type": "consumer", "protocol_name": "range"}
        fields["assignments"] = [{"member_id": member, "assignment": b"x"}]
        return self.ask("SyncGroup", fields | more, version)

    def leave(self, member, instance=None, group=None):
        identity = {"member_id": member, "group_instance_id": instance}
        group = self.group if group is None else group
        return self.ask("LeaveGroup", {"group_id": group, "members": [identity]} | identity)

    def member(self, instance="seat"):
        """Return (member id, generation) of the only member, a static one, of a stable group."""
        joined = self.joined(instance)
        self.sync(*joined, instance, version=5)
        return joined

    def joined(self, instance="seat"):
        """Return (member id, generation) of a member that has joined and not yet synced."""
        self.coordinated()
        answer = self.join(instance=instance, version=9)
        assert not answer.error_code, answer
        return answer.member_id, answer.generation_id

    def rebalancing(self):
        """Return (member id, generation) of a member whose group rebalances because another member joins."""
        member = self.member()
        self.join(instance="another seat", version=9, line=self.line.another(), waits=True)
        self.until(
            lambda: self.heartbeat(*member, "seat", version=4),
            lambda answer: code_of(answer) == ErrorCode.REBALANCE_IN_PROGRESS,
        )
        return member

    def commit(self, member="", generation=-1, topic=None, partition=0, note="", instance=None, version=None, **more):
        position = {"partition_index": partition, "committed_offset": 3, "committed_metadata": note}
        fields = {"group_id": self.group, "generation_id_or_member_epoch": generation, "member_id": member}
        fields |= {"group_instance_id": instance, "retention_time": -1} | more
        topics = [{**_only(self.named(topic), "name", "topic_id"), "partitions": [position]}]
        return self.ask("OffsetCommit", fields | {"topics": topics}, version)

    def committed(self, topic=None, require_stable=False, group=None, **more):
        topic_fields = {**_only(self.named(topic), "name", "topic_id"), "partition_indexes": [0]}
        group_fields = {"group_id": self.group if group is None else group, "topics": [topic_fields]} | more
        return self.ask("OffsetFetch", group_fields | {"groups": [group_fields], "require_stable": require_stable})

    # --- transactions --------------------------------------------------------------------------------------------

    def producer(self, transactional_id=None, **more):
        """Send InitProducerId; return (producer id, epoch)."""
        self.find(transactional_id or self.transactional_id, 1)
        fields = {"transactional_id": transactional_id or self.transactional_id, "transaction_timeout": 60_000}
        fields |= {"producer_id": -1, "producer_epoch": -1} | more
        answer = self.sure("InitProducerId", fields, 5)
        return answer.producer_id, answer.producer_epoch

    def init(self, transactional_id=None, timeout_ms=60_000, producer=(-1, -1)):
        fields = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms}
        return self.ask("InitProducerId", fields | {"producer_id": producer[0], "producer_epoch": producer[1]})

    def add(self, producer, *partitions, transactional_id=None, version=None):
        """Send AddPartitionsToTxn."""
        name = self.transactional_id if transactional_id is None else transactional_id
        topics = [{"name": topic, "partitions": [partition]} for topic, partition in partitions or ((self.topic, 0),)]
        fields = {"v3_and_below_transactional_id": name, "v3_and_below_topics": topics}
        fields |= {"v3_and_below_producer_id": producer[0], "v3_and_below_producer_epoch": producer[1]}
        return self.ask("AddPartitionsToTxn", fields, version)

    def add_offsets(self, producer, transactional_id=None, version=None):
        name = self.transactional_id if transactional_id is None else transactional_id
        fields = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}
        return self.ask("AddOffsetsToTxn", fields | {"group_id": self.group}, version)

    def end(self, producer, commit=True, transactional_id=None, version=None):
        name = self.transactional_id if transactional_id is None else transactional_id
        fields = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}
        return self.ask("EndTxn", fields | {"committed": commit}, version)

    def markers(self, producer, topic=None, partitions=(0,), commit=False, coordinator_epoch=0):
        """Return the fields of WriteTxnMarkers."""
        fields = {"producer_id": producer[0], "producer_epoch": producer[1], "coordinator_epoch": coordinator_epoch}
        topics = [{"name": topic or self.topic, "partition_indexes": list(partitions)}]
        return {"markers": [fields | {"transaction_result": commit, "topics": topics}]}

    def mark(self, producer, topic=None, partition=0, **more):
        """Send WriteTxnMarkers for one partition."""
        return self.ask("WriteTxnMarkers", self.markers(producer, topic, [partition], **more))

    def commit_in(self, producer, topic=None, partition=0, note="", transactional_id=None, **more):
        """Send TxnOffsetCommit."""
        position = {"partition_index": partition, "committed_offset": 3, "committed_metadata": note}
        name = self.transactional_id if transactional_id is None else transactional_id
        fields = {"transactional_id": name, "group_id": self.group}
        fields |= {"producer_id": producer[0], "producer_epoch": producer[1], "generation_id": -1, "member_id": ""}
        fields |= {"topics": [{"name": topic or self.topic, "partitions": [position]}]}
        return self.ask("TxnOffsetCommit", fields | more)

    def write(self, producer, sequence=0):
        """Produce a batch in a producer's transaction."""
        fields = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": sequence}
        batch = batch_of(**fields, transactional=True)
        return self.produce(batch=batch, transactional_id=self.transactional_id, version=11)


SUBSCRIPTION = b"\0\0\0\0\0\1\0\7flights\xff\xff\xff\xff"  # in the format of ConsumerProtocol


def batch_of(key=b"k", value=b"v", time_ms=1_700_000_000_000, **fields):
    """Return a batch of one record."""
    return encode_batch([BatchRecord(0, 0, key, value)], base_timestamp_ms=time_ms, **fields)


def create_topic(name, **more):
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()} | more
    return {"topics": [topic], "timeout": 30_000, "validate_only": False}


def offsets_of(topic, partitions, timestamp=-1, **more):
    partition_fields = {"timestamp": timestamp} | more
    return {"name": topic, "partitions": [{"partition_index": index} | partition_fields for index in partitions]}


def _only(fields, *names):
    return {name: fields[name] for name in names}
