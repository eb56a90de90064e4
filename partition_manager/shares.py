"""The partitions of one group member, divided among the tasks of its process.

A new partition goes to the task that has the fewest, and stays there. Each grant has a number: a partition that was
lost and comes again has another one, so that a task never takes a new grant for the old.
"""

from collections.abc import Iterable

from partition_manager.ports import Share, TopicPartition


class Shares:
    """The shares of `tasks` tasks."""

    def __init__(self, tasks: int) -> None:
        self._grants: list[dict[TopicPartition, int]] = [{} for _ in range(tasks)]
        self._revoked: set[TopicPartition] = set()
        self._versions = [1] * tasks
        self._next_grant = 1
        self._notes: list[tuple[str, str]] = []
        self._waits_since_ms: int | None = None
        self._fenced = self._refused = ""

    def note(self, level: str, text: str) -> None:
        """Add a line for the log; the first task gets it, because one line for a process is enough."""
        self._notes.append((level, text))
        self._versions[0] += 1

    def share(self, task: int, known_version: int) -> Share | None:
        """Return the share of a task if its version is above `known`."""
        if self._versions[task] <= known_version:
            return None
        grants = self._grants[task]
        revoked = frozenset(self._revoked & grants.keys())
        share = Share(self._versions[task], dict(grants), revoked, waits_since_ms=self._waits_since_ms)
        if task:
            return share
        notes, self._notes = tuple(self._notes), []
        return share._replace(notes=notes, fenced=self._fenced, refused=self._refused)

    def waits(self, since_ms: int | None) -> None:
        """Tell the tasks since when the process waits for its group; None if it does not."""
        if since_ms != self._waits_since_ms:
            self._waits_since_ms = since_ms
            self._versions = [version + 1 for version in self._versions]

    def refuse(self, reason: str) -> None:
        """Tell the first task that the group does not take this process."""
        self._refused = reason
        self._versions[0] += 1

    def fence(self, reason: str) -> None:
        """Tell the first task that another process has taken the place of this one."""
        self._fenced = reason
        self._versions[0] += 1

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Grant new partitions."""
        for partition in sorted(partitions):
            task = min(range(len(self._grants)), key=lambda task: len(self._grants[task]))
            self._grants[task][partition] = self._next_grant
            self._next_grant += 1
            self._versions[task] += 1

    def revoke(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Tell the tasks to hand partitions over; return those that no task has."""
        free = []
        for partition in sorted(partitions):
            task = self._task_of(partition)
            if task is None:
                free.append(partition)
            else:
                self._revoked.add(partition)
                self._versions[task] += 1
        return free

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions from the tasks at once."""
        for partition in partitions:
            task = self._task_of(partition)
            if task is not None:
                self._drop(task, partition)

    def released(self, task: int, partition: TopicPartition, grant: int) -> bool:
        """Process a task's release. Return True if the member has to be told, because it was revoked."""
        if self._grants[task].get(partition) != grant:
            return False
        was_revoked = partition in self._revoked
        self._drop(task, partition)
        return was_revoked

    def _drop(self, task: int, partition: TopicPartition) -> None:
        del self._grants[task][partition]
        self._revoked.discard(partition)
        self._versions[task] += 1

    def _task_of(self, partition: TopicPartition) -> int | None:
        return next((task for task, grants in enumerate(self._grants) if partition in grants), None)
