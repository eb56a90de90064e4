"""The records of a Produce request that are opened in a worker thread, as a job (broker.produce.batch_opening).

The thread calls `run`, which touches only the batches and the values in the tasks. The reactor thread then executes the
request again, with the outcomes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.log.partition_log import PartitionLog
from broker.log.validation.opening import IdHeaders, Limits, Prepared, prepare
from broker.log.validation.record_check import Budget
from broker.record.batch import BatchHeader
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError
from idgen.worker import IdRun


@dataclass(eq=False, slots=True)
class OpenTask:
    """The records of one partition: what they are, and what became of them."""

    index: int
    """The partition's index in the request."""
    log: PartitionLog
    topic: TopicConfig
    batch: memoryview
    header: BatchHeader
    wall_ms: int
    limits: Limits
    runs: Sequence[IdRun] = ()
    """The ids of the records, for a topic that has them as headers."""
    error: ApiError | None = None
    prepared: Prepared | None = None
    id_headers: "IdHeaders | None" = None
    """Adds the ids at the append; it has done so already if `runs` are used there."""

    @property
    def is_stale(self) -> bool:
        """Return True if the log has got ids since that are above those of the task."""
        return bool(self.runs) and self.error is None and self.runs[0].first <= self.log.last_id

    def run(self) -> None:
        """Open the records, unless they are refused already."""
        if self.error is not None:
            return
        name = self.log.name
        try:
            prepared = prepare(self.batch, self.header, self.topic, name, self.wall_ms, self.limits, Budget(None))
            if self.topic.id_header and prepared.opened is not None:
                self.id_headers = IdHeaders(self.topic, prepared.opened)
                if self.runs:
                    self.id_headers.stamp(prepared.header, self.runs)
            self.prepared = prepared
        except ApiError as error:
            self.error = error


@dataclass(eq=False, slots=True)
class OpenJob:
    """The records of one request. `conn` is the connection that sent it."""

    conn: Any
    tasks: list[OpenTask]
    cancelled: bool = False
    """True if the connection dropped the job: its request was executed, or the connection is closed."""
    _by_index: dict[int, list[OpenTask]] = field(default_factory=dict, init=False)

    @property
    def has_ids(self) -> bool:
        return any(task.runs for task in self.tasks)

    def run(self) -> None:
        for task in self.tasks:
            if self.cancelled:
                return
            task.run()

    def outcome(self, index: int, log: PartitionLog) -> OpenTask | None:
        """Return what became of a partition's records; None if its topic was made again or altered meanwhile."""
        if not self._by_index:  # a request may have ten thousand partitions
            for task in self.tasks:
                self._by_index.setdefault(task.index, []).append(task)
        for task in self._by_index.get(index, ()):
            if task.log is log and task.topic is log.config:
                return task if task.error is not None or task.prepared is not None else None
        return None
