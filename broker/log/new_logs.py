"""Logs of new topics that are still to be made.

Making a log takes some files, so a request for many logs makes only the first few at once. The others follow in slices
between the requests of all clients, or when a client uses one of them. A client that uses too many at once must retry.
Logs of partitions with several copies are all made at once, in a thread, because leader and followers begin with them.
A crash in between loses nothing, because the metadata names the missing logs at the next start.

A slice waits for the disk once, for the names of its directories. The names of a log's first files are synced with its
first records (`Durability.is_named`), because an empty log that lost them is made again.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, Protocol
from uuid import UUID

from broker.log.closed_segment import OpenSegments
from broker.log.partition_log import PartitionLog
from broker.log.recovery.recovery import LogDamaged, open_log
from broker.log.storage.port import Storage, StorageError
from broker.settings.config import BrokerConfig, TopicConfig
from broker.wire.errors import ApiError, ErrorCode

SLICE_EVERY_MS = 10  # leaves most of the time for requests; flakelog.max.new.logs.at.once has the number per slice
ASKED_FOR = 64  # logs made on demand between two slices
RETRY_MS = 1_000  # on a full disk

Key = tuple[str, int]


class NewLog(NamedTuple):
    config: TopicConfig
    topic_id: UUID
    has_copies: bool = False
    """True if other brokers have copies of the partition."""


def made_at_once(logs: Mapping[Key, NewLog], config: BrokerConfig) -> dict[Key, NewLog]:
    """Return those of new logs that are made at once."""
    copied = {key: new for key, new in logs.items() if new.has_copies}
    others = ((key, new) for key, new in logs.items() if not new.has_copies)
    return copied | dict(islice(others, config.max_new_logs_at_once))


def make_directories(storage: Storage, logs: Iterable[Key]) -> None:
    """Create the directories of logs with a single wait for the disk. Raise StorageError."""
    storage.make_directory(*(f"{topic}-{partition}" for topic, partition in logs))


def create(
    storage: Storage, config: BrokerConfig, open_segments: OpenSegments, logs: Mapping[Key, NewLog]
) -> list[PartitionLog]:
    """Create logs. Raise StorageError or LogDamaged, with none left behind."""
    created: list[PartitionLog] = []
    try:
        make_directories(storage, logs)
        for (topic, partition), new in logs.items():
            log, _ = open_log(
                storage,
                topic,
                partition,
                new.config,
                config,
                None,
                new.topic_id,
                is_uncut=True,
                open_segments=open_segments,
            )
            created.append(log)
    except (StorageError, LogDamaged):
        for log in created:
            log.deleted()
        with suppress(StorageError):
            for topic, partition in logs:
                storage.remove(f"{topic}-{partition}")
        raise
    return created


class Opener(Protocol):
    """What opens logs (broker.log.log_opener)."""

    def open(self, key: Key, config: TopicConfig, topic_id: UUID) -> None:
        """Open or create a log, and register it. Raise StorageError if the disk is full."""
        ...


class NewLogs:
    """The logs to make, by (topic, partition), in their order of creation."""

    def __init__(self, storage: Storage, opener: Opener, report: Callable[[str], None]) -> None:
        self._storage = storage
        self._opener = opener
        self._report = report
        self._logs: dict[Key, NewLog] = {}
        self._due_ms = 0
        self._requests_left = ASKED_FOR

    def __len__(self) -> int:
        return len(self._logs)

    def add(self, key: Key, log: NewLog) -> None:
        self._logs[key] = log

    def forget(self, key: Key) -> None:
        self._logs.pop(key, None)

    def asked_for(self, key: Key) -> NewLog | None:
        """Return the log to make now because a client uses it, None if no log waits under the key.

        Raise ApiError NOT_LEADER_OR_FOLLOWER, on which clients retry, if the budget of the current slice is used up.
        """
        new = self._logs.get(key)
        if new is None:
            return None
        if not self._requests_left:
            topic, partition = key
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} is being made")
        self._requests_left -= 1
        return new

    def following(self, key: Key, most: int) -> list[Key]:
        """Return a log and the next ones of its topic that are to be made: clients often use all partitions in turn."""
        topic, partition = key
        return [log_key for log_key in ((topic, partition + n) for n in range(most)) if log_key in self._logs]

    def due(self, now_ms: int, most: int) -> list[tuple[Key, NewLog]]:
        """Return the next slice if it is due, at most `most` logs. The caller must `forget` the made logs."""
        if not self._logs or now_ms < self._due_ms:
            return []
        self._due_ms = now_ms + SLICE_EVERY_MS
        self._requests_left = ASKED_FOR
        return [entry for entry, _ in zip(self._logs.items(), range(most))]

    def make(self, key: Key, new: NewLog, most: int) -> None:
        """Make a log, and the directories of at most `most` logs of its topic. Raise ApiError."""
        try:
            if not self._storage.exists(f"{key[0]}-{key[1]}"):
                make_directories(self._storage, self.following(key, most))
            self._opener.open(key, new.config, new.topic_id)
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self.forget(key)

    def make_due(self, now_ms: int, most: int) -> None:
        """Make the next slice of logs if it is due, at most `most`. If the disk is full, delay the next slice."""
        due = self.due(now_ms, most)
        try:
            make_directories(self._storage, [key for key, _ in due])
            for key, new in due:
                self.make(key, new, most)
        except (ApiError, StorageError) as error:
            self._due_ms = now_ms + RETRY_MS
            self._report(f"{len(self)} partitions of new topics cannot be made yet: {error}")

    def next_deadline_ms(self) -> int | None:
        return self._due_ms if self._logs else None

    def configure(self, configs: Mapping[str, TopicConfig]) -> None:
        """Apply changed topic settings to logs that are not made yet."""
        for key, log in self._logs.items():
            if key[0] in configs:
                self._logs[key] = log._replace(config=configs[key[0]])
