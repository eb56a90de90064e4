"""The JSON document that stores a partition's progress: storm-kafka 0.9.3's fields and three additions.

    {"topology":{"id","name"},"offset","partition","broker":{"host","port"},"topic",     (as in 0.9.3)
     "v":1,"done":[[a,b],...],"owner":"..."}   half-open ranges, and the writer's name

Each opening of a partition generates a new `owner`. With it an owner can tell its own write, whose answer was lost,
from another owner's write.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from partition_manager.progress import Progress

VERSION = 1
DOCUMENT_BYTES_MAX = 500_000  # half of ZooKeeper's limit for one node (jute.maxbuffer, 1 MiB)


class BadOffsetDocument(ValueError):
    """Stored progress that cannot be used; the message says why. The stored document is not overwritten."""


@dataclass(frozen=True, slots=True)
class OffsetDocument:
    """The stored progress of a partition. Documents written by 0.9.3 have no `owner` and no ranges."""

    topology_id: str
    topology_name: str
    topic: str
    partition: int
    progress: Progress
    host: str = ""
    port: int = 0
    owner: str = ""

    def at(self, progress: Progress) -> "OffsetDocument":
        """Return a copy of this document with `progress`."""
        return replace(self, progress=progress)

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
        if version not in (0, VERSION):
            raise ValueError(f"version {version}, this program reads up to {VERSION}")
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
        )

    def require(self, topic: str, partition: int) -> None:
        """Raise BadOffsetDocument if this is another partition's progress, because two topics share one store id."""
        if (self.topic, self.partition) != (topic, partition):
            raise BadOffsetDocument(
                f"stored progress belongs to {self.topic}-{self.partition}, not {topic}-{partition}: "
                "give each topic's spout its own id in the store"
            )


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no whole number")
    return value
