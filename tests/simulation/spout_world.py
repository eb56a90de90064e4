"""The world of the simulation of spouts: a log that loses messages, and an oracle that knows each of them.

The oracle looks at every document of progress when it is stored, also if the answer gets lost. What the document calls
settled must have been applied or be a dead letter, unless the log has lost it. An owner that was followed by another
must not write again.
"""

from collections import Counter
from typing import NamedTuple

from flakelog.testing import MemoryLog, MemoryWorld
from partition_manager.offset_document import OffsetDocument
from tests.poison import PASSES_LENGTHS, resealed

TOPIC = "t"


class MessagePosition(NamedTuple):
    """Where a message was appended: the topic's id at that time, the partition, the offset, and the leader epoch."""

    topic_id: str
    partition: int
    offset: int
    leader_epoch: int


class SimulatedWorld(MemoryWorld):
    """A world of one topic whose every stored document is examined. `wrong` are the violations found so far."""

    def __init__(self, partitions):
        super().__init__()
        self.log = self.topic(TOPIC, partitions=partitions)
        self.dead = self.sink(f"{TOPIC}.dead-letters")
        self.applied = Counter()  # id -> how often it was applied
        self.written = {}  # id -> value; of a poison batch its first id
        self.wrong = {}  # message or partition -> what is wrong with it
        self._poison = {}  # data of a batch that cannot be decoded -> its first id
        self._positions = {}
        self._owners = {}

    # --- the log

    def append(self, value, partition):
        self.log.append(value, partition)
        self._keep(self.log.records(partition)[-1].id, value, partition, self.log.ends[partition] - 1)

    def append_poison(self, partition):
        batch = resealed(PASSES_LENGTHS, base_timestamp=len(self.written))  # so that each batch has other bytes
        appended = self.log.append_poison(batch, partition)
        self._poison[appended.data] = appended.first_id
        self._keep(appended.first_id, None, partition, appended.base_offset)

    def _keep(self, id, value, partition, offset):
        self.written[id] = value
        self._positions[id] = MessagePosition(self.log.topic_id, partition, offset, self.log.epochs[partition][-1][0])

    def in_the_log(self):
        """Return the ids that the log holds, those of whole poison batches included."""
        log: MemoryLog = self.log
        ids = {record.id for number in log.kept for record in log.records(number)}
        for number, batches in log.poison.items():
            ids |= {batch.first_id for batch in batches if batch.base_offset >= log.starts[number]}
        return ids

    # --- what became of the messages

    @property
    def buried(self):
        """Return the ids of messages among the dead letters, or refused by their topic."""
        letters = [*self.dead.letters, *self.dead.refused]
        # A letter of a batch has no id if retention removed the batch's first record.
        return {self._poison.get(letter.record.value, letter.record.id) for letter in letters}

    @property
    def buried_batches(self):
        return self.buried & set(self._poison.values())

    @property
    def settled(self):
        return self.applied.keys() | self.buried

    # --- the store of progress

    def offset_store(self, store, path, access):
        return _Watched(super().offset_store(store, path, access), self)

    def documents(self):
        """Return each stored document as text, by its path."""
        return {path: node.data for path, node in self.ensemble.nodes.items() if "partition_" in path}

    def examine(self, document):
        """Examine a document that was stored just now."""
        partition = document.partition
        owners = self._owners.setdefault(partition, [])
        if document.owner in owners[:-1]:
            self.wrong[partition] = f"{document.owner} wrote progress after {owners[-1]} had claimed the partition"
        elif document.owner not in owners:
            owners.append(document.owner)
        for id in self.in_the_log() - self.settled:
            if _calls_settled(document, self._positions[id]):
                self.wrong[id] = f"{document.progress} of {partition} passes it, at {self._positions[id]}"


class _Watched:
    def __init__(self, store, world):
        self._store = store
        self._world = world

    def ask(self, request, answer):
        before = self._world.documents()
        self._store.ask(request, answer)
        for path, data in self._world.documents().items():
            if before.get(path) != data:
                self._world.examine(OffsetDocument.decode(data))

    def close(self):
        self._store.close()


def _calls_settled(document, position):
    """Return True if the document says that the message at this place is settled.

    It says nothing of a topic that was created later, nor of a later leader epoch.
    """
    if document.partition != position.partition:
        return False
    if document.topic_id not in ("", position.topic_id) or 0 <= document.leader_epoch < position.leader_epoch:
        return False
    offset, done = document.progress
    return position.offset < offset or any(start <= position.offset < end for start, end in done)
