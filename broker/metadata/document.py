"""The document of a server's metadata, as its store keeps it.

The document is JSON. It begins with the CRC-32C of the bytes after it, so that a flipped bit is not a new setting:

    {"crc32c": "1f3a09c2", "brokers": ...}
"""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from crc32c import crc32c

from broker.metadata.change import Change, Credential, Entity, entity_of
from broker.metadata.topic import Topic
from broker.security.authorization.acl import AclBinding, Operation, PatternType, Permission, ResourceType

FILE = "metadata.json"
_VERSION = 2
_UNCHECKED = 1  # the version whose document has no CRC
_CRC = b'{"crc32c": "%08x", '
_CRC_BYTES = len(_CRC % 0)


class MetadataDamaged(ValueError):
    """The metadata file cannot be read, or is missing beside data. It is never taken for an empty one."""


class Document(NamedTuple):
    """The content of the store at one moment. Its mappings are never changed in place."""

    cluster_id: str
    commits: int
    producer_ids_end: int
    brokers: Mapping[str, Mapping[str, str]]
    quotas: Mapping[Entity, Mapping[str, float]]
    credentials: Mapping[tuple[str, int], Credential]
    topics: Mapping[str, Topic]
    deleting: tuple[str, ...]
    """Directories of deleted topics that may still have their name. No log is opened in one of them."""
    doubtful_producer_ids_end: int = 0
    """Producer ids below it were given away before an unclean start, which may have lost their last epochs."""
    coordinator: str = ""
    """The coordinator of the cluster that the directory belongs to, as text; "" for a server alone."""
    broker_id: int | None = None
    """The id that the broker of this directory has in its cluster; None for a server alone."""
    acls: frozenset[AclBinding] = frozenset()

    @property
    def owner_id(self) -> int | None:
        """The id of the broker whose partitions lie in the directory; None if no broker has any.

        A server alone is the only broker of its partitions.
        """
        if self.broker_id is not None:
            return self.broker_id
        states = (state for topic in self.topics.values() for state in topic.partitions)
        return next((broker_id for state in states for broker_id in state.replicas), None)

    def changed(self, changes: Iterable[Change], commits: int) -> "Document":
        """Return the document with these changes, as commit number `commits`."""
        topics, deleting = dict(self.topics), list(self.deleting)
        producer_ids_end, brokers = self.producer_ids_end, self.brokers
        quotas, credentials, acls = self.quotas, self.credentials, self.acls
        for change in changes:
            for name, topic in change.topics.items():
                if topic is not None:
                    topics[name] = topic
                elif (deleted := topics.pop(name, None)) is not None:
                    deleting += deleted.directories
            brokers = brokers if change.broker_properties is None else change.broker_properties
            quotas = quotas if change.quotas is None else change.quotas
            credentials = credentials if change.credentials is None else change.credentials
            acls = acls if change.acls is None else change.acls
            producer_ids_end += change.producer_ids
        return self._replace(
            commits=commits,
            producer_ids_end=producer_ids_end,
            brokers=brokers,
            quotas=quotas,
            credentials=credentials,
            acls=acls,
            topics=topics,
            deleting=tuple(deleting),
        )


class DocumentEncoder:
    """Encodes documents, each as one line of JSON. It keeps the texts of unchanged parts for the next document.

    The document is one line, though people read it too, because Python's encoder takes ten times as long with `indent`.
    """

    def __init__(self) -> None:
        self._topics: dict[str, tuple[Topic, str]] = {}
        self._quotas: tuple[object, str] = None, ""
        self._credentials: tuple[object, str] = None, ""
        self._acls: tuple[object, str] = None, ""

    def encode(self, document: Document) -> bytes:
        """Return the bytes of the store's file. Not thread-safe."""
        parts = {
            "acls": self._acls_of(document) if document.acls else "",
            "broker_id": "" if document.broker_id is None else str(document.broker_id),
            "brokers": _text({name: dict(properties) for name, properties in document.brokers.items()}),
            "cluster_id": _text(document.cluster_id),
            "commits": str(document.commits),
            "coordinator": _text(document.coordinator) if document.coordinator else "",
            "deleting": _text(document.deleting) if document.deleting else "",
            "doubtful_producer_ids_end": str(document.doubtful_producer_ids_end or ""),
            "producer_ids_end": str(document.producer_ids_end),
            "quotas": self._quotas_of(document),
            "scram": self._credentials_of(document),
            "topics": "{" + ", ".join(self._topics_of(document)) + "}",
            "version": str(_VERSION),
        }
        body = (", ".join(f'"{name}": {part}' for name, part in parts.items() if part) + "}").encode()
        return _CRC % crc32c(body) + body

    def _quotas_of(self, document: Document) -> str:
        quotas, text = self._quotas
        if quotas is not document.quotas:
            text = _text(
                [{"entity": dict(entity), "values": dict(limits)} for entity, limits in document.quotas.items()]
            )
            self._quotas = document.quotas, text
        return text

    def _credentials_of(self, document: Document) -> str:
        credentials, text = self._credentials
        if credentials is not document.credentials:
            text = _text(
                [
                    {"user": user, "mechanism": mechanism} | credential.to_json()
                    for (user, mechanism), credential in document.credentials.items()
                ]
            )
            self._credentials = document.credentials, text
        return text

    def _acls_of(self, document: Document) -> str:
        acls, text = self._acls
        if acls is not document.acls:
            text = _text([_acl_to_json(binding) for binding in sorted(document.acls)])
            self._acls = document.acls, text
        return text

    def _topics_of(self, document: Document) -> Iterable[str]:
        texts, self._topics = self._topics, {}
        for name in sorted(document.topics):
            topic = document.topics[name]
            topic_and_text = texts.get(name)
            if topic_and_text is None or topic_and_text[0] is not topic:
                topic_and_text = topic, f"{_text(name)}: {_text(topic.to_json())}"
            self._topics[name] = topic_and_text
            yield topic_and_text[1]


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _acl_to_json(binding: AclBinding) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value.name for name, value in binding._asdict().items()}


def _acl_of(value: Mapping[str, str]) -> AclBinding:
    return AclBinding(
        ResourceType[value["resource_type"]],
        PatternType[value["pattern_type"]],
        value["name"],
        value["principal"],
        value["host"],
        Operation[value["operation"]],
        Permission[value["permission"]],
    )


def decode(data: bytes) -> Document:
    """Return the document in the store's bytes. Raise MetadataDamaged."""
    try:
        is_checked = _is_checked(data)
        document = json.loads(data)
        if document["version"] != (_VERSION if is_checked else _UNCHECKED):
            version = f"version {document['version']} with{'' if is_checked else 'out'} a CRC"
            raise MetadataDamaged(f"{FILE} has {version}; this program reads version {_VERSION} with one")
        return Document(
            cluster_id=document["cluster_id"],
            commits=int(document.get("commits", 0)),
            producer_ids_end=document["producer_ids_end"],
            brokers={name: dict(properties) for name, properties in document.get("brokers", {}).items()},
            quotas={entity_of(quota["entity"].items()): quota["values"] for quota in document.get("quotas", ())},
            credentials={
                (credential["user"], credential["mechanism"]): Credential.from_json(credential)
                for credential in document.get("scram", ())
            },
            topics={name: Topic.from_json(name, topic) for name, topic in document["topics"].items()},
            deleting=tuple(document.get("deleting", ())),
            doubtful_producer_ids_end=int(document.get("doubtful_producer_ids_end", 0)),
            coordinator=str(document.get("coordinator", "")),
            broker_id=None if document.get("broker_id") is None else int(document["broker_id"]),
            acls=frozenset(_acl_of(value) for value in document.get("acls", ())),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, MetadataDamaged):
            raise
        reason = f"{FILE} is not a metadata document: {type(error).__name__}: {error}"
        raise MetadataDamaged(f"{reason}. Put the file back from a copy") from None


def _is_checked(data: bytes) -> bool:
    """Return True if a document has a CRC. Raise MetadataDamaged if the CRC is wrong."""
    if not data.startswith(_CRC[:12]):
        return False
    if data[:_CRC_BYTES] != _CRC % crc32c(data[_CRC_BYTES:]):
        raise MetadataDamaged(f"{FILE}: its CRC does not hold. Put the file back from a copy")
    return True
