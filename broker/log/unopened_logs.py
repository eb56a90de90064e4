"""Logs that could not be opened at the start because the disk was full. They are opened when it has space.

Opening a log reads its files. It writes only if a crash left something to repair, or if the log is to be made.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from broker.log.journal import Entry
from broker.log.recovery import clean_stop
from broker.settings.config import TopicConfig

RETRY_MS = 1_000
BETWEEN_MS = 10  # leaves most of the time for requests, because a log may take long to recover
INTERNAL = "__"  # the coordinators load all partitions of such a topic together

Key = tuple[str, int]


class ToOpen(NamedTuple):
    """A log to open: its settings, and the journal and the notes that the last process left of it."""

    config: TopicConfig
    topic_id: UUID
    journal: Sequence[Entry]
    is_uncut: bool
    """True if no unsynced cut can be in its files."""
    noted: clean_stop.Noted | None
    leader_epoch: int


class UnopenedLogs:
    """The logs to open, by (topic, partition)."""

    def __init__(self) -> None:
        self._logs: dict[Key, ToOpen] = {}
        self._due_ms = 0

    def __len__(self) -> int:
        return len(self._logs)

    def __contains__(self, key: Key) -> bool:
        return key in self._logs

    def add(self, key: Key, log: ToOpen) -> None:
        self._logs[key] = log

    def forget(self, key: Key) -> None:
        """Forget a log that is deleted."""
        self._logs.pop(key, None)

    def take(self, now_ms: int) -> dict[Key, ToOpen]:
        """Return the logs to try now: one, or all partitions of an internal topic. The caller adds again what fails."""
        if not self._logs or now_ms < self._due_ms:
            return {}
        self._due_ms = now_ms + BETWEEN_MS
        first = next(iter(self._logs))
        keys = (
            [log_key for log_key in self._logs if log_key[0] == first[0]] if first[0].startswith(INTERNAL) else [first]
        )
        return {key: self._logs.pop(key) for key in keys}

    def failed(self, now_ms: int) -> None:
        """Try again later, because the disk is still full."""
        self._due_ms = now_ms + RETRY_MS

    def configure(self, configs: Mapping[str, TopicConfig]) -> None:
        """Apply changed settings of topics, by topic name."""
        for key, log in self._logs.items():
            if key[0] in configs:
                self._logs[key] = log._replace(config=configs[key[0]])

    def next_deadline_ms(self) -> int | None:
        return self._due_ms if self._logs else None
