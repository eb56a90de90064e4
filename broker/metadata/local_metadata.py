"""The metadata that this broker keeps in one file: on a server alone, all that was decided.

A change is committed to the store first (broker.metadata.file_executor), then the image shows it, and its consequences
(directories, logs) follow. A crash in between leaves a topic whose logs are made at the next start, or directories that
the document lists as deleted, never a log without a topic.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol
from uuid import UUID

from broker.log.integrity.data_directory import NAMED_MAX, data_beside
from broker.log.storage import reserve
from broker.log.storage.port import Storage, StorageError
from broker.metadata.change import Change
from broker.metadata.document import FILE, Document, DocumentEncoder, MetadataDamaged, decode
from broker.metadata.image import Image, ImageDelta, RegisteredBroker
from broker.metadata.producer_ids import ALL, ProducerIds
from broker.metadata.topic import Topic
from coordination.listing import listed


class MetadataStore(Protocol):
    """Storage for one document. `save` returns when the document would survive a power cut.

    If the document `frees_space`, because logs are removed after it, a full disk keeps space for it.
    """

    def load(self) -> bytes | None: ...

    def save(self, data: bytes, *, frees_space: bool) -> None: ...


class FileMetadataStore:
    """A store in one file of the data directory, which each `save` replaces."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def load(self) -> bytes | None:
        """Return the document, None in an empty directory. Raise MetadataDamaged if only the document is missing."""
        if not self._storage.exists(FILE):
            if data := data_beside(self._storage):
                raise MetadataDamaged(
                    f"{self._storage.location} has no {FILE}, but it has data: {listed(data, NAMED_MAX)}. Put the file "
                    f"back from a copy; for a new cluster, move the data away or name an empty directory"
                )
            return None
        file = self._storage.open(FILE)
        return file.read(0, file.size)

    def save(self, data: bytes, *, frees_space: bool) -> None:
        reserve.replace(self._storage, FILE, data, frees_space=frees_space)


class LocalMetadata:
    """The decisions of a server alone, as its store has them, and the image of them.

    To change them, `document` is written with the changes (`save`), and then the changes are applied (`apply`).
    """

    def __init__(self, store: MetadataStore, broker: RegisteredBroker, new_uuid: Callable[[], UUID]) -> None:
        self._store = store
        self.new_uuid = new_uuid
        self.broker = broker
        """The only broker."""
        self.image = Image()
        self.image.register([broker])
        self.image.controller_id = broker.id
        self.producer_ids = ProducerIds()
        self.commits = 0
        """Number of commits to the store, over all restarts."""
        self.lacks_space = False
        """True if the disk was full at the start, and the document is still to be stored."""
        self.coordinator = ""
        """The coordinator of the cluster that this directory belongs to, as text; "" for a server alone."""
        self.joined_id: int | None = None
        """The id with which the broker of this directory joined its cluster; None for a server alone."""
        self._deleting: dict[str, None] = {}
        """Directories of deleted topics that may still have their name."""
        self._encoder = DocumentEncoder()
        self._producer_ids_end = 0
        """The first producer id that is not reserved."""

    # --- the store -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the store, or begin a cluster, then write the document back. Raise MetadataDamaged or StorageError.

        The write finds a read-only disk now instead of at the first change. On a full disk, a document that is there is
        enough to serve reads.
        """
        data = self._store.load()
        if data is None:
            self.image.cluster_id = _base64(self.new_uuid())
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

    def begin(self, topics: Sequence[Topic], stopped_cleanly: bool) -> None:
        """Begin the leader epochs of these topics, once the logs are open. Raise StorageError.

        Unless the last process `stopped_cleanly`, doubt all producer ids given away so far.
        """
        if topics:
            self.image.apply([Change({topic.name: topic for topic in topics})])
        doubts = not stopped_cleanly and self.producer_ids.doubtful_end != self._producer_ids_end
        if doubts:
            self.producer_ids.doubtful_end = self._producer_ids_end
        if topics or doubts:
            self._save_if_space()

    def begin_in_cluster(self, ids: ProducerIds, *, doubts: bool) -> None:
        """Give producer ids away from a cluster's blocks, once the logs are open. With `doubts` all ids of earlier
        blocks are doubtful. Raise StorageError."""
        ids.doubtful_end = ALL if doubts else self.producer_ids.doubtful_end
        self.producer_ids = ids
        if doubts:
            self._save_if_space()

    def _read(self, document: Document) -> None:
        self.image.cluster_id = document.cluster_id
        self.commits = document.commits
        self._producer_ids_end = document.producer_ids_end
        self.producer_ids.doubtful_end = document.doubtful_producer_ids_end
        self._deleting = dict.fromkeys(document.deleting)
        self.coordinator, self.joined_id = document.coordinator, document.broker_id
        settings = Change(document.topics, document.brokers, document.quotas, document.credentials, acls=document.acls)
        self.image.apply([settings])

    def document(self) -> Document:
        """Return the document as it is now."""
        return Document(
            self.image.cluster_id,
            self.commits,
            self._producer_ids_end,
            self.image.broker_properties,
            self.image.quotas,
            self.image.credentials,
            {topic.name: topic for topic in self.image.topics()},
            tuple(self._deleting),
            self.producer_ids.doubtful_end,
            self.coordinator,
            self.joined_id,
            self.image.acls,
        )

    def join(self, cluster_id: str, coordinator: str) -> None:
        """Note on the disk that this directory is this broker's in a coordinator's cluster. Raise StorageError."""
        self.image.cluster_id, self.coordinator, self.joined_id = cluster_id, coordinator, self.broker.id
        self.save(self.document())

    def save(self, document: Document, *, frees_space: bool = False) -> None:
        """Write a document. If this raises StorageError the store keeps the previous one. See `MetadataStore`.

        It may run in a worker thread, one call at a time, because it uses only the store and the encoder.
        """
        self._store.save(self._encoder.encode(document), frees_space=frees_space)

    def apply(self, changes: Sequence[Change], commits: int) -> ImageDelta:
        """Apply changes that the store has, as commit number `commits`. Return what they changed in the image."""
        self.lacks_space = self.lacks_space and commits == self.commits
        self.commits = commits
        for change in changes:
            if change.producer_ids:
                end = self._producer_ids_end + change.producer_ids
                self.producer_ids.add(range(self._producer_ids_end, end))
                self._producer_ids_end = end
        delta = self.image.apply(changes)
        for name, partitions in delta.copies_lost_by(self.broker.id).items():
            self._deleting.update(dict.fromkeys(f"{name}-{partition}" for partition in partitions))
        return delta

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


def _base64(value: UUID) -> str:
    """Return a UUID as Kafka writes one: 22 characters."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")
