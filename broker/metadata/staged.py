"""A change that is planned and staged for the next write, with the first logs that it needs and its outcome."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from broker.log.new_logs import NewLog
from broker.log.partition_log import PartitionLog
from broker.metadata.change import Change
from broker.wire.errors import ApiError


@dataclass(eq=False, slots=True)
class Staged:
    """A change with the logs it needs, and what became of it."""

    change: Change
    logs: Mapping[tuple[str, int], NewLog] = field(default_factory=dict)
    """The logs of new partitions."""
    is_done: bool = False
    error: ApiError | None = None
    errors: dict[str, ApiError] = field(default_factory=dict)
    """The errors of single topics, where a change of several topics may succeed in part."""
    kept: bool = False
    """True if the change failed and could not be taken back."""
    created: list[PartitionLog] = field(default_factory=list)
    on_end: Callable[[], None] | None = None
    """Called once the change has ended, also if its client has gone or has had its answer already."""

    def end(self) -> None:
        """Mark the change as done. Its errors are known by now."""
        self.is_done = True
        if self.on_end is not None:
            self.on_end()
