"""The cluster's metadata: its id, nodes, topics and partitions, and the producer ids already given away.

A change is committed to the store first, and its consequences (directories, logs) follow. A crash in between leaves a
topic whose logs are made at the next start, never a log without a topic. Only this module knows that there is one node.

The document is JSON. It begins with the CRC-32C of the bytes after it, so that a flipped bit is not a new setting:

    {"crc32c": "1f3a09c2", "brokers": ...}
"""

import json
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from crc32c import crc32c

from broker.log.integrity.data_directory import data_beside, some
from broker.log.storage.port import Storage, StorageError
from broker.wire.errors import ApiError, ErrorCode

FILE = "metadata.json"
_VERSION = 2
_UNCHECKED = 1  # the version whose document has no CRC
_CRC = b'{"crc32c": "%08x", '
_CRC_BYTES = len(_CRC % 0)
PRODUCER_ID_BLOCK = 1000  # as Kafka's; a restart skips at most this many ids

NAME_CHARACTERS_MAX = 249
_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{NAME_CHARACTERS_MAX}}}")

GROUP_OFFSETS_TOPIC = "__consumer_offsets"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"  # Kafka's topic for the data that is in FILE here
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC})


class MetadataStore(Protocol):
    """Storage for one document. `save` returns when the document would survive a power cut."""

    def load(self) -> bytes | None: ...

    def save(self, data: bytes) -> None: ...


class MetadataDamaged(ValueError):
    """The metadata file cannot be read, or is missing beside data. It is never taken for an empty one."""


class FileMetadataStore:
    """A store in one file of the data directory, which each `save` replaces."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def load(self) -> bytes | None:
        """Return the document, None in an empty directory. Raise MetadataDamaged if only the document is missing."""
        if not self._storage.exists(FILE):
            if data := data_beside(self._storage):
                raise MetadataDamaged(
                    f"{self._storage.location} has no {FILE}, but it has data: {some(data)}. Put the file back from a "
                    f"copy; for a new cluster, move the data away or name an empty directory"
                )
            return None
        file = self._storage.open(FILE)
        return file.read(0, file.size)

    def save(self, data: bytes) -> None:
        self._storage.replace(FILE, data)


class Node(NamedTuple):
    """A broker, with the address at which clients reach it."""

    id: int
    host: str
    port: int
    rack: str | None = None


class PartitionState(NamedTuple):
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]


Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""The owner of a quota: (type, name) pairs, ordered by type. None as name stands for all without a separate quota."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    return tuple(sorted(parts, key=lambda part: part[0]))


class Credential(NamedTuple):
    """The data that a server keeps of a password (RFC 5802)."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def to_json(self) -> dict[str, object]:
        keys = {name: b64encode(getattr(self, name)).decode() for name in ("salt", "stored_key", "server_key")}
        return keys | {"iterations": self.iterations}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Credential":
        salt, stored_key, server_key = (b64decode(value[name]) for name in ("salt", "stored_key", "server_key"))
        return Credential(salt, value["iterations"], stored_key, server_key)


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: UUID
    partitions: tuple[PartitionState, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    """The topic's own settings, as given."""

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class NewTopic(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int
    properties: Mapping[str, str]


class Metadata:
    """Topics by name and by id. Every change is committed to the store before requests see it."""

    def __init__(self, store: MetadataStore, node: Node, new_uuid: Callable[[], UUID]) -> None:
        self._store = store
        self.new_uuid = new_uuid
        self.nodes: tuple[Node, ...] = (node,)
        self.node = node
        self._advertised: dict[str, Node] = {}
        self.cluster_id = ""
        self.generation = 0
        """Differs after each change of topics, so that earlier look-ups are known to be stale."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change of `generation`."""
        self.commits = 0
        """Number of commits to the store, over all restarts."""
        self.broker_properties: dict[str, Mapping[str, str]] = {}
        """Broker settings altered at run time, as text: by node id, or "" for all nodes."""
        self.quotas: dict[Entity, Mapping[str, float]] = {}
        self.credentials: dict[tuple[str, int], Credential] = {}
        """By user and mechanism (1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512)."""
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._by_metric: dict[str, dict[str, None]] = {}
        """Topic names by their form in Kafka's metrics, where two topics must not have the same name."""
        self._documents: dict[str, dict[str, Any]] = {}
        """Topics as the store keeps them, by name."""
        self._next_producer_id = 0
        self._producer_ids_end = 0

    # --- nodes ---------------------------------------------------------------------------------------------------

    def advertise(self, listener: str, host: str, port: int) -> None:
        """Set the address at which clients of this listener reach this node."""
        self._advertised[listener] = self.node._replace(host=host, port=port)

    def reached(self, node: Node, listener: str) -> Node:
        """Return a node with the address at which clients of this listener reach it."""
        return self._advertised.get(listener, node) if node.id == self.node.id else node

    # --- the store -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the store, or begin a cluster, then write the document back. Raise MetadataDamaged or StorageError.

        The write finds a read-only disk now instead of at the first change. On a full disk, a document that is there is
        enough to serve reads.
        """
        data = self._store.load()
        if data is None:
            self.cluster_id = _base64(self.new_uuid())
            self.commits = 1
        else:
            self._read(data)
        try:
            self._write(self.commits)
        except StorageError as error:
            if data is None or not error.full:
                raise

    def _read(self, data: bytes) -> None:
        try:
            is_checked = _is_checked(data)
            document = json.loads(data)
            if document["version"] != (_VERSION if is_checked else _UNCHECKED):
                found = f"version {document['version']} with{'' if is_checked else 'out'} a CRC"
                raise MetadataDamaged(f"{FILE} has {found}; this program reads version {_VERSION} with one")
            self.cluster_id = document["cluster_id"]
            self.commits = int(document.get("commits", 0))
            self._next_producer_id = self._producer_ids_end = document["producer_ids_end"]
            self.broker_properties = {name: dict(each) for name, each in document.get("brokers", {}).items()}
            self.quotas = {
                entity_of(each["entity"].items()): each["values"] for each in document.get("quotas", ())
            }
            self.credentials = {
                (each["user"], each["mechanism"]): Credential.from_json(each) for each in document.get("scram", ())
            }
            for name, each in document["topics"].items():
                partitions = tuple(PartitionState(p[0], p[1], tuple(p[2])) for p in each["partitions"])
                self._put(Topic(name, UUID(each["id"]), partitions, each["properties"]))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            if isinstance(error, MetadataDamaged):
                raise
            raise MetadataDamaged(f"{FILE} is not a metadata document: {error!r}") from None

    def commit(self) -> None:
        """Write the whole document. If this raises StorageError the store keeps the previous one."""
        self._write(self.commits + 1)
        self.commits += 1

    def _write(self, commits: int) -> None:
        document = {
            "version": _VERSION,
            "cluster_id": self.cluster_id,
            "commits": commits,
            "producer_ids_end": self._producer_ids_end,
            "brokers": {name: dict(each) for name, each in self.broker_properties.items()},
            "quotas": [{"entity": dict(entity), "values": dict(each)} for entity, each in self.quotas.items()],
            "scram": [
                {"user": user, "mechanism": mechanism} | each.to_json()
                for (user, mechanism), each in self.credentials.items()
            ],
            "topics": self._documents,
        }
        # The document is one line, though people read it too, because Python's encoder takes ten times as long with
        # `indent`. With thousands of topics each change would then delay all connections.
        body = json.dumps(document, sort_keys=True).encode()[1:]
        self._store.save(_CRC % crc32c(body) + body)

    def _put(self, topic: Topic) -> None:
        self._changed()
        self._topics[topic.name] = topic
        self._by_id[topic.id] = topic
        self._by_metric.setdefault(_metric(topic.name), {})[topic.name] = None
        self._documents[topic.name] = {
            "id": str(topic.id),
            "partitions": [[p.leader, p.leader_epoch, list(p.replicas)] for p in topic.partitions],
            "properties": dict(topic.properties),
        }

    def _changed(self) -> None:
        self.generation += 1
        self.on_change()

    def _put_all(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            self._put(topic)

    def _drop(self, topics: Iterable[Topic]) -> None:
        self._changed()
        for topic in topics:
            self._topics.pop(topic.name, None)
            self._by_id.pop(topic.id, None)
            twins = self._by_metric.get(_metric(topic.name), {})
            twins.pop(topic.name, None)
            if not twins:
                self._by_metric.pop(_metric(topic.name), None)
            self._documents.pop(topic.name, None)

    # --- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[Topic]:
        return list(self._topics.values())

    def topic(self, name: str | UUID) -> Topic | None:
        return self._topics.get(name) if isinstance(name, str) else self._by_id.get(name)

    def create_topics(self, new: Sequence[NewTopic]) -> list[Topic | ApiError]:
        """Create topics led by this node, with one commit; each may be named once.

        Return for each the topic, or ApiError TOPIC_ALREADY_EXISTS or INVALID_TOPIC_EXCEPTION. Raise StorageError, with
        none created. A name can collide with topics that existed before, but not with topics created with it, as in
        Kafka's controller.
        """
        answers = [self._new_topic(each) for each in new]
        made = [each for each in answers if isinstance(each, Topic)]
        self._put_all(made)
        self._commit_or(lambda: self._drop(made), made)
        return answers

    def _new_topic(self, new: NewTopic) -> Topic | ApiError:
        try:
            self.check_new(new.name)
        except ApiError as error:
            return error
        return Topic(new.name, self.new_uuid(), (self._new_partition(),) * new.partitions, dict(new.properties))

    def _new_partition(self) -> PartitionState:
        return PartitionState(self.node.id, 0, (self.node.id,))

    def alter_topics(self, altered: Sequence[tuple[Topic, Mapping[str, str]]]) -> None:
        """Replace the settings of topics."""
        self._replace_topics([(topic, replace(topic, properties=dict(new))) for topic, new in altered])

    def resize_topics(self, sizes: Sequence[tuple[Topic, int]]) -> list[Topic]:
        """Change topics' numbers of partitions, and return the changed topics. New partitions are led by this node."""
        resized = []
        for topic, partitions in sizes:
            kept = topic.partitions[:partitions]
            added = (self._new_partition(),) * (partitions - len(kept))
            resized.append((topic, replace(topic, partitions=kept + added)))
        self._replace_topics(resized)
        return [new for _, new in resized]

    def _replace_topics(self, changed: Sequence[tuple[Topic, Topic]]) -> None:
        """Replace topics by changed ones: (old, new) pairs."""
        self._put_all(new for _, new in changed)
        self._commit_or(lambda: self._put_all(old for old, _ in changed), changed)

    def _commit_or(self, undo: Callable[[], object], changed: Sequence[object]) -> None:
        """Commit a change that memory already has. If the commit fails, undo the change and raise."""
        if not changed:
            return
        try:
            self.commit()
        except Exception:
            undo()
            raise

    def check_new(self, name: str) -> None:
        check_name(name)
        if name in self._topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        twins = self._by_metric.get(_metric(name))
        if twins:
            collision = f"Topic '{name}' collides with existing topic: {next(iter(twins))}"
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, collision)

    def delete_topics(self, topics: Sequence[Topic]) -> None:
        self._drop(topics)
        self._commit_or(lambda: self._put_all(topics), topics)

    def is_leader(self, topic: Topic, partition: int) -> bool:
        return topic.partitions[partition].leader == self.node.id

    # --- brokers -------------------------------------------------------------------------------------------------

    def alter_broker(self, name: str, properties: Mapping[str, str]) -> None:
        """Replace the settings altered at run time for a node, or with "" for all nodes."""
        self._commit_with(broker_properties={**self.broker_properties, name: dict(properties)})

    # --- clients -------------------------------------------------------------------------------------------------

    def alter_quotas(self, quotas: Mapping[Entity, Mapping[str, float]]) -> None:
        self._commit_with(quotas=dict(quotas))

    def alter_credentials(self, credentials: Mapping[tuple[str, int], Credential]) -> None:
        self._commit_with(credentials=dict(credentials))

    def _commit_with(self, **values: object) -> None:
        """Set these attributes and commit. If the commit fails, restore them and raise."""
        before = {name: getattr(self, name) for name in values}
        for name, value in values.items():
            setattr(self, name, value)
        try:
            self.commit()
        except Exception:
            for name, value in before.items():
                setattr(self, name, value)
            raise

    # --- producer ids --------------------------------------------------------------------------------------------

    def next_producer_id(self) -> int:
        """Return an unused producer id. A block of ids is committed before its first id is given away (KIP-98)."""
        if self._next_producer_id == self._producer_ids_end:
            self._producer_ids_end += PRODUCER_ID_BLOCK
            try:
                self.commit()
            except Exception:
                self._producer_ids_end -= PRODUCER_ID_BLOCK
                raise
        self._next_producer_id += 1
        return self._next_producer_id - 1


def check_name(name: str) -> None:
    """Raise ApiError INVALID_TOPIC_EXCEPTION unless Kafka would accept the topic's name."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {_flaw_of_name(name)}")


def _flaw_of_name(name: str) -> str:
    """Return why a topic's name is refused, in Kafka's words."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_CHARACTERS_MAX}"
    return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


def _is_checked(data: bytes) -> bool:
    """Return True if a document has a CRC. Raise MetadataDamaged if the CRC is wrong."""
    if not data.startswith(_CRC[:12]):
        return False
    if data[:_CRC_BYTES] != _CRC % crc32c(data[_CRC_BYTES:]):
        raise MetadataDamaged(f"{FILE}: its CRC does not hold. Put the file back from a copy")
    return True


def _metric(name: str) -> str:
    return name.replace(".", "_")


def _base64(value: UUID) -> str:
    """Return a UUID as Kafka writes one: 22 characters."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")
