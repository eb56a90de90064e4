"""Lines for the log about partitions that change hands between two runs, or that no run reads."""

from collections.abc import Iterable

from coordination.listing import listed
from partition_manager.notes import Notes
from partition_manager.offset_document import process_of
from partition_manager.source import Source
from partition_manager.task_partition import Phase, TaskPartition

NAMED_MAX = 10  # partitions that one line names


class Takeovers:
    """The lines of one task; `owner` names its run and its number, as <run>.<task>."""

    def __init__(self, source: Source, notes: Notes, owner: str) -> None:
        self._stored_at = source.stored_at
        self._notes = notes
        self._run = owner.rsplit(".", 1)[0]
        self._former_runs: set[str] = set()

    def opened(self, former: str) -> None:
        """Note once for each former run that this run continues its progress. `former` is the owner it stored."""
        run = former.rsplit(".", 2)[0]
        if not run or run == self._run or run in self._former_runs:
            return
        self._former_runs.add(run)
        consequence = "which stops reading if it is alive"
        self._notes.info(f"continues the progress of {process_of(run)} in {self._stored_at}, {consequence}")

    def fenced(self, partition: TaskPartition) -> None:
        """Note that another run took a partition over."""
        self._notes.error(
            f"another process took over {partition.name}, this one reads it no longer: {partition.error} Both use "
            f"{self._stored_at}: stop one, give them different ids, or let them share the topics with store='kafka'"
        )

    def remind(self, partitions: Iterable[TaskPartition]) -> None:
        """Name the partitions that are not read, so that a task never idles in silence."""
        unread: dict[Phase, list[str]] = {Phase.FENCED: [], Phase.BROKEN: []}
        for partition in partitions:
            if partition.phase in unread:
                unread[partition.phase].append(partition.name)
        for phase, why in ((Phase.FENCED, "another process took them over"), (Phase.BROKEN, "unusable progress")):
            if names := sorted(unread[phase]):
                self._notes.error(f"still not read, {why}: {listed(names, NAMED_MAX)}")
