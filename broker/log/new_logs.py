"""Logs of new topics that are still to be made.

To make one waits for the disk several times, so of those that one request asks for only the first are made at once. The
others follow a few at a time, between the requests of everybody, or when somebody asks for one; who asks for too many
at once is told to come again. A crash in between loses nothing: at the next start the metadata says which there are.
"""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from broker.config import TopicConfig
from broker.wire.errors import ApiError, ErrorCode

SLICE_EVERY_MS = 10  # so most of the time is left for requests; how many each time is flakelog.max.new.logs.at.once
ASKED_FOR = 64  # between two slices
RETRY_MS = 1_000  # on a full disk

Key = tuple[str, int]


class NewLog(NamedTuple):
    config: TopicConfig
    topic_id: UUID


class NewLogs:
    """By (topic, partition), in the order they are to be made."""

    def __init__(self) -> None:
        self._logs: dict[Key, NewLog] = {}
        self._due_ms = 0
        self._left = ASKED_FOR

    def __len__(self) -> int:
        return len(self._logs)

    def add(self, key: Key, log: NewLog) -> None:
        self._logs[key] = log

    def forget(self, key: Key) -> None:
        self._logs.pop(key, None)

    def asked_for(self, key: Key) -> NewLog | None:
        """What is to be made now, as somebody wants it; ApiError NOT_LEADER_OR_FOLLOWER, at which clients try again."""
        found = self._logs.get(key)
        if found is None:
            return None
        if not self._left:
            topic, partition = key
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} is being made")
        self._left -= 1
        return found

    def due(self, now_ms: int, most: int) -> list[tuple[Key, NewLog]]:
        """The next few, at most so many, if it is time for them. They stay until they are forgotten."""
        if not self._logs or now_ms < self._due_ms:
            return []
        self._due_ms = now_ms + SLICE_EVERY_MS
        self._left = ASKED_FOR
        return [each for each, _ in zip(self._logs.items(), range(most))]

    def failed(self, now_ms: int) -> None:
        """The disk is full: try again later."""
        self._due_ms = now_ms + RETRY_MS

    def next_deadline_ms(self) -> int | None:
        return self._due_ms if self._logs else None

    def configure(self, configs: Mapping[str, TopicConfig]) -> None:
        """Settings of topics changed before their logs were made."""
        for key, log in self._logs.items():
            if key[0] in configs:
                self._logs[key] = log._replace(config=configs[key[0]])
