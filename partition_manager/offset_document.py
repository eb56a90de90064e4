"""The JSON document that stores a partition's progress: storm-kafka 0.9.3's fields and additions.

    {"topology":{"id","name"},"offset","partition","broker":{"host","port"},"topic",     (as in 0.9.3)
     "v":2,"done":[[a,b],...],"owner":"...",       v1: half-open ranges, and the writer's name
     "topic_id":"...","leader_epoch":3}            v2: the topic's id (KIP-516), the epoch of the last record read

The topic id shows that a topic was deleted and created again, and the epoch that a log was truncated (KIP-101). A
document without them compares nothing.

Each opening of a partition generates a new `owner`. With it an owner can tell its own write, whose answer was lost,
from another owner's write.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from partition_manager.progress import Progress

VERSION = 2
DOCUMENT_BYTES_MAX = 500_000  # half of ZooKeeper's limit for one node (jute.maxbuffer, 1 MiB)


class BadOffsetDocument(ValueError):
    """Stored progress that cannot be used; the message says why. The stored document is not overwritten."""


def node_of(topic: str, partition: int, by_topic: bool) -> str:
    """Return the node of a partition's document, below that of the spout; 0.9.3's path unless `by_topic`."""
    return f"{topic}/partition_{partition}" if by_topic else f"partition_{partition}"


def process_of(owner: str) -> str:
    """Return the process of an owner, whose name begins with <host>-<pid>-<random>; other names are returned whole."""
    host, _, random = owner.rpartition("-")
    host, _, pid = host.rpartition("-")
    if host and random and pid.isdigit():
        return f"process {pid} on {host}"
    return f"run {owner}" if owner else "another program"


@dataclass(frozen=True, slots=True)
class OffsetDocument:
    """The stored progress of a partition. Documents written by 0.9.3 have no `owner` and no ranges.

    `topic_id` is "" and `leader_epoch` -1 if they are not known.
    """

    topology_id: str
    topology_name: str
    topic: str
    partition: int
    progress: Progress
    host: str = ""
    port: int = 0
    owner: str = ""
    topic_id: str = ""
    leader_epoch: int = -1

    def at(self, progress: Progress, leader_epoch: int = -1) -> "OffsetDocument":
        """Return a copy of this document with `progress` and `leader_epoch`."""
        return replace(self, progress=progress, leader_epoch=leader_epoch)

    def encode(self) -> bytes:
        """Encode the document in at most DOCUMENT_BYTES_MAX bytes.

        The highest ranges are left out if they do not fit; their messages are emitted again after a restart. Raise
        BadOffsetDocument if the document is too long without ranges.
        """
        done = self.progress.done
        while len(text := self._encode(done)) > DOCUMENT_BYTES_MAX:
            if not done:
                raise BadOffsetDocument(f"topology and topic names make a document of {len(text)} bytes")
            done = done[: len(done) * DOCUMENT_BYTES_MAX // len(text)]
        return text

    def _encode(self, done: tuple[tuple[int, int], ...]) -> bytes:
        document = {
            "topology": {"id": self.topology_id, "name": self.topology_name},
            "offset": self.progress.offset,
            "partition": self.partition,
            "broker": {"host": self.host, "port": self.port},
            "topic": self.topic,
            "v": VERSION,
            "done": done,
            "owner": self.owner,
            "topic_id": self.topic_id,
            "leader_epoch": self.leader_epoch,
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, text: bytes) -> "OffsetDocument":
        """Decode a stored document. Raise BadOffsetDocument, naming the fault, if it is not valid."""
        try:
            document = json.loads(text)
            if not isinstance(document, dict):
                raise ValueError("it is not a JSON object")
            return cls._from(document)
        except KeyError as error:
            raise BadOffsetDocument(f"stored offset document has no {error}: {text[:200]!r}") from None
        except (ValueError, TypeError) as error:
            raise BadOffsetDocument(f"stored offset document: {error}: {text[:200]!r}") from None

    @classmethod
    def _from(cls, document: Mapping[str, Any]) -> "OffsetDocument":
        version = document.get("v", 0)
        if isinstance(version, bool) or version not in range(VERSION + 1):
            raise ValueError(f"version {version!r}, this program reads up to {VERSION}: a later one wrote it")
        topology, broker = document["topology"], document.get("broker", {})
        done = tuple((_whole(start), _whole(end)) for start, end in document.get("done", ()))
        return cls(
            topology_id=topology["id"],
            topology_name=topology["name"],
            topic=document["topic"],
            partition=_whole(document["partition"]),
            progress=Progress(_whole(document["offset"]), done).check(),
            host=broker.get("host", ""),
            port=broker.get("port", 0),
            owner=document.get("owner", ""),
            topic_id=_text(document.get("topic_id", "")),
            leader_epoch=_whole(document.get("leader_epoch", -1)),
        )

    def require(self, topic: str, partition: int) -> None:
        """Raise BadOffsetDocument if this is another partition's progress, because two topics share one store id."""
        if (self.topic, self.partition) != (topic, partition):
            raise BadOffsetDocument(
                f"stored progress belongs to {self.topic}-{self.partition}, not {topic}-{partition}: "
                "give each topic's spout its own id in the store"
            )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no whole number")
    return value
