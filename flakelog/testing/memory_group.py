"""A consumer group in memory, with one member: the process of the test."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from partition_manager.ports import (
    Answer,
    AwaitShare,
    GroupRequest,
    OffsetStore,
    Released,
    ReleasePartition,
    StoreRequest,
    TopicPartition,
)
from partition_manager.shares import Shares


class Log(Protocol):
    """A topic: `kept` has an entry for each partition."""

    @property
    def kept(self) -> Mapping[int, object]: ...


class MemoryGroup:
    """A member that gets all partitions; `revoke`, `lose` and `assign` are what a real group does as others come.

    `released` are the partitions given back after a revocation, in order.
    """

    def __init__(self, topics: Mapping[str, Log], store: OffsetStore, tasks: int) -> None:
        self.released: list[TopicPartition] = []
        self._topics = topics
        self._store = store
        self._shares = Shares(tasks)
        self._assigned: set[TopicPartition] = set()
        self._waiting: dict[int, tuple[int, Callable[[Answer], None]]] = {}

    # --- calls of a test

    def assign(self, *partitions: TopicPartition) -> None:
        """Assign partitions."""
        self._assigned.update(partitions)
        self._shares.assigned(partitions)
        self._tell()

    def revoke(self, *partitions: TopicPartition) -> None:
        """Ask the spout to hand partitions over."""
        self.released += self._shares.revoke(partitions)
        self._tell()

    def lose(self, *partitions: TopicPartition) -> None:
        """Take partitions away at once, as when the session has expired."""
        self._shares.note("error", f"lost {partitions}")
        self._shares.lost(partitions)
        self._tell()

    def fence(self, reason: str) -> None:
        """Say that another process has joined under the name of this one."""
        self._shares.fence(reason)
        self._tell()

    def refuse(self, reason: str) -> None:
        """Say that the group does not take this process."""
        self._shares.refuse(reason)
        self._tell()

    def wait(self, since_ms: int | None) -> None:
        """Say since when the group waits for its other members, by the engine's clock; None if it does not."""
        self._shares.waits(since_ms)
        self._tell()

    # --- the port

    def ask(self, task: int, request: StoreRequest | GroupRequest, answer: Callable[[Answer], None]) -> None:
        if isinstance(request, AwaitShare):
            self._waiting[task] = request.known_version, answer
            new = self._partitions_of(request.topics) - self._assigned
            self.assign(*new)
        elif isinstance(request, ReleasePartition):
            partition = request.topic, request.partition
            if self._shares.released(task, partition, request.grant):
                self.released.append(partition)
            answer(Released())
        else:
            self._store.ask(request, answer)

    def _partitions_of(self, topics: Iterable[str]) -> set[TopicPartition]:
        return {(topic, number) for topic in topics if topic in self._topics for number in self._topics[topic].kept}

    def _tell(self) -> None:
        for task, (version, answer) in list(self._waiting.items()):
            share = self._shares.share(task, version)
            if share is not None:
                del self._waiting[task]
                answer(share)


class MemoryGroupStore:
    """The part of one task in the group."""

    def __init__(self, group: MemoryGroup, task: int) -> None:
        self._group = group
        self._task = task

    def ask(self, request: StoreRequest | GroupRequest, answer: Callable[[Answer], None]) -> None:
        self._group.ask(self._task, request, answer)

    def close(self) -> None:
        pass
