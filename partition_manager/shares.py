"""The partitions of one group member, divided among the tasks of its process.

A new partition goes to the task that has the fewest, and stays there. Each grant has a number: a partition that was
lost and comes again has another one, so that a task never takes a new grant for the old.
"""

from collections.abc import Iterable

from partition_manager.ports import Place, Share


class Shares:
    """The shares of `tasks` tasks."""

    def __init__(self, tasks: int) -> None:
        self._grants: list[dict[Place, int]] = [{} for _ in range(tasks)]
        self._revoked: set[Place] = set()
        self._versions = [1] * tasks
        self._next_grant = 1
        self._notes: list[tuple[str, str]] = []
        self._waits_since_ms: int | None = None
        self._fenced = self._refused = ""

    def note(self, level: str, text: str) -> None:
        """Add a line for the log; the first task gets it, because one line for a process is enough."""
        self._notes.append((level, text))
        self._versions[0] += 1

    def share(self, task: int, known: int) -> Share | None:
        """Return the share of a task if its version is above `known`."""
        if self._versions[task] <= known:
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

    def assigned(self, partitions: Iterable[Place]) -> None:
        """Grant new partitions."""
        for place in sorted(partitions):
            task = min(range(len(self._grants)), key=lambda task: len(self._grants[task]))
            self._grants[task][place] = self._next_grant
            self._next_grant += 1
            self._versions[task] += 1

    def revoke(self, partitions: Iterable[Place]) -> list[Place]:
        """Tell the tasks to hand partitions over; return those that no task has."""
        free = []
        for place in sorted(partitions):
            task = self._task_of(place)
            if task is None:
                free.append(place)
            else:
                self._revoked.add(place)
                self._versions[task] += 1
        return free

    def lost(self, partitions: Iterable[Place]) -> None:
        """Take partitions from the tasks at once."""
        for place in partitions:
            task = self._task_of(place)
            if task is not None:
                self._drop(task, place)

    def released(self, task: int, place: Place, grant: int) -> bool:
        """Process a task's release. Return True if the member has to be told, because it was revoked."""
        if self._grants[task].get(place) != grant:
            return False
        was_revoked = place in self._revoked
        self._drop(task, place)
        return was_revoked

    def _drop(self, task: int, place: Place) -> None:
        del self._grants[task][place]
        self._revoked.discard(place)
        self._versions[task] += 1

    def _task_of(self, place: Place) -> int | None:
        return next((task for task, grants in enumerate(self._grants) if place in grants), None)
