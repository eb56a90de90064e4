"""The cluster's metadata: its id, nodes, topics and partitions, and the producer ids already given away.

A change is committed to the store first (broker.metadata.changes), and its consequences (directories, logs)
follow. A crash in between leaves a topic whose logs are made at the next start, or directories that the document lists
as deleted, never a log without a topic. Only this module knows that there is one node.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol
from uuid import UUID

from broker.log.integrity.data_directory import data_beside, some
from broker.log.storage.port import Storage, StorageError
from broker.metadata.document import (
    CLUSTER_METADATA_TOPIC,
    FILE,
    GROUP_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTIONS_TOPIC,
    Change,
    Credential,
    Document,
    DocumentEncoder,
    Entity,
    MetadataDamaged,
    PartitionState,
    Topic,
    decode,
    entity_of,
)
from broker.wire.errors import ApiError, ErrorCode

__all__ = [
    "CLUSTER_METADATA_TOPIC", "FILE", "GROUP_OFFSETS_TOPIC", "INTERNAL_TOPICS", "TRANSACTIONS_TOPIC", "Change",
    "Credential", "Document", "Entity", "FileMetadataStore", "Metadata", "MetadataDamaged", "MetadataStore", "NewTopic",
    "NoProducerIds", "Node", "PartitionState", "Topic", "check_name", "entity_of", "metric_name",
]  # fmt: skip

PRODUCER_ID_BLOCK = 1000  # as Kafka's
PRODUCER_IDS_AHEAD = 100  # as Kafka, get the next block when a tenth is left; a restart skips at most 1,100 ids

NAME_CHARACTERS_MAX = 249
_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{NAME_CHARACTERS_MAX}}}")


class MetadataStore(Protocol):
    """Storage for one document. `save` returns when the document would survive a power cut."""

    def load(self) -> bytes | None: ...

    def save(self, data: bytes) -> None: ...


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


class NewTopic(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int
    properties: Mapping[str, str]


class NoProducerIds(StorageError):
    """No producer id is reserved. A block of them must be committed first."""


class Metadata:
    """Topics by name and by id, settings and quotas, as the store has them.

    To change them, `document` is written with the changes (`save`), and then each change is applied (`apply`).
    """

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
        self.broker_properties: Mapping[str, Mapping[str, str]] = {}
        """Broker settings altered at run time, as text: by node id, or "" for all nodes."""
        self.quotas: Mapping[Entity, Mapping[str, float]] = {}
        self.credentials: Mapping[tuple[str, int], Credential] = {}
        """By user and mechanism (1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512)."""
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._by_metric: dict[str, dict[str, None]] = {}
        """Topic names by their form in Kafka's metrics, where two topics must not have the same name."""
        self._deleting: dict[str, None] = {}
        """Directories of deleted topics that may still have their name."""
        self.lacks_space = False
        """True if the disk was full at the start, and the document is still to be stored."""
        self._encoder = DocumentEncoder()
        self._next_producer_id = 0
        self._producer_ids_end = 0
        self.doubtful_producer_ids_end = 0
        """Transactional ids get a new producer id in place of one below it (broker.txn.coordinator)."""
        self.reserve_ids: Callable[[], None] = lambda: None
        """Called when few producer ids are left; it has the next block reserved."""

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
            self.save(self.document())
        else:
            self._read(decode(data))
            self._save_if_space()

    def _save_if_space(self) -> None:
        try:
            self.save(self.document())
        except StorageError as error:
            if not error.full:
                raise
            self.lacks_space = True

    def begin(self, topics: Iterable[Topic], stopped_cleanly: bool) -> None:
        """Begin the leader epochs of these topics, once the logs are open. Raise StorageError.

        Unless the last process `stopped_cleanly`, doubt all producer ids given away so far.
        """
        changed = False
        for topic in topics:
            self._put(topic)
            changed = True
        if not stopped_cleanly and self.doubtful_producer_ids_end != self._producer_ids_end:
            self.doubtful_producer_ids_end = self._producer_ids_end
            changed = True
        if changed:
            self._save_if_space()

    def _read(self, document: Document) -> None:
        self.cluster_id = document.cluster_id
        self.commits = document.commits
        self._next_producer_id = self._producer_ids_end = document.producer_ids_end
        self.broker_properties = document.brokers
        self.quotas = document.quotas
        self.credentials = document.credentials
        self._deleting = dict.fromkeys(document.deleting)
        self.doubtful_producer_ids_end = document.doubtful_producer_ids_end
        self._apply_topics(document.topics)

    def document(self) -> Document:
        """Return the document as it is now."""
        return Document(
            self.cluster_id,
            self.commits,
            self._producer_ids_end,
            self.broker_properties,
            self.quotas,
            self.credentials,
            dict(self._topics),
            tuple(self._deleting),
            self.doubtful_producer_ids_end,
        )

    def save(self, document: Document) -> None:
        """Write a document. If this raises StorageError the store keeps the previous one.

        It may run in a worker thread, one call at a time, because it uses only the store and the encoder.
        """
        self._store.save(self._encoder.encode(document))

    def apply(self, changes: Sequence[Change], commits: int) -> None:
        """Apply changes that the store has, as commit number `commits`."""
        self.lacks_space = self.lacks_space and commits == self.commits
        self.commits = commits
        for change in changes:
            if change.broker_properties is not None:
                self.broker_properties = change.broker_properties
            if change.quotas is not None:
                self.quotas = change.quotas
            if change.credentials is not None:
                self.credentials = change.credentials
            self._producer_ids_end += change.producer_ids
            if change.topics:
                self._apply_topics(change.topics)

    def _apply_topics(self, topics: Mapping[str, Topic | None]) -> None:
        self._changed()
        for name, topic in topics.items():
            if topic is not None:
                self._put(topic)
            elif (deleted := self._topics.get(name)) is not None:
                self._drop(deleted)
                self._deleting.update(dict.fromkeys(deleted.directories))

    def _put(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._by_id[topic.id] = topic
        self._by_metric.setdefault(metric_name(topic.name), {})[topic.name] = None

    def _drop(self, topic: Topic) -> None:
        del self._topics[topic.name]
        self._by_id.pop(topic.id, None)
        twins = self._by_metric.get(metric_name(topic.name), {})
        twins.pop(topic.name, None)
        if not twins:
            self._by_metric.pop(metric_name(topic.name), None)

    def _changed(self) -> None:
        self.generation += 1
        self.on_change()

    # --- deleted logs --------------------------------------------------------------------------------------------

    @property
    def deleting(self) -> tuple[str, ...]:
        """Return the directories of deleted logs that may still have their name."""
        return tuple(self._deleting)

    def is_deleting(self, directory: str) -> bool:
        """Return True if a deleted log's directory may still have this name."""
        return directory in self._deleting

    def put_away(self, directories: Iterable[str]) -> None:
        """Note that these directories have another name on the disk; the next commit lists them no more."""
        for directory in directories:
            self._deleting.pop(directory, None)

    # --- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[Topic]:
        return list(self._topics.values())

    def topic(self, name: str | UUID) -> Topic | None:
        return self._topics.get(name) if isinstance(name, str) else self._by_id.get(name)

    def new_topic(self, new: NewTopic) -> Topic:
        """Return a topic led by this node, which is still to be committed.

        Raise ApiError TOPIC_ALREADY_EXISTS or INVALID_TOPIC_EXCEPTION. A name can collide with topics that exist, but
        not with topics created with it, as in Kafka's controller.
        """
        self.check_new(new.name)
        return Topic(new.name, self.new_uuid(), (self._new_partition(),) * new.partitions, dict(new.properties))

    def _new_partition(self) -> PartitionState:
        return PartitionState(self.node.id, 0, (self.node.id,))

    def resized(self, topic: Topic, partitions: int) -> Topic:
        """Return the topic with more partitions, led by this node. It is still to be committed."""
        added = (self._new_partition(),) * (partitions - len(topic.partitions))
        return replace(topic, partitions=topic.partitions + added)

    def check_new(self, name: str) -> None:
        check_name(name)
        if name in self._topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        twins = self._by_metric.get(metric_name(name))
        if twins:
            collision = f"Topic '{name}' collides with existing topic: {next(iter(twins))}"
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, collision)

    def is_leader(self, topic: Topic, partition: int) -> bool:
        return topic.partitions[partition].leader == self.node.id

    # --- producer ids --------------------------------------------------------------------------------------------

    @property
    def producer_ids_left(self) -> int:
        """Return the number of reserved producer ids."""
        return self._producer_ids_end - self._next_producer_id

    def next_producer_id(self) -> int:
        """Return an unused producer id. A block of ids is committed before its first id is given away (KIP-98).

        Raise NoProducerIds.
        """
        if self.producer_ids_left <= PRODUCER_IDS_AHEAD:
            self.reserve_ids()
        if not self.producer_ids_left:
            raise NoProducerIds(FILE, "no block of producer ids is reserved yet")
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


def metric_name(name: str) -> str:
    """Return the form of a topic's name in Kafka's metrics, where two topics must differ."""
    return name.replace(".", "_")


def _base64(value: UUID) -> str:
    """Return a UUID as Kafka writes one: 22 characters."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")
