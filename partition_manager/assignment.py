"""Assignment of partitions to tasks, as in storm-kafka.

The partitions of a topic are sorted; task i of T reads number i, i + T, i + 2T, ... of them. If a spout reads several
topics, each topic begins at another task, chosen by its name, so that many topics of one partition are spread over the
tasks. So a partition's task depends on its own topic only: a topic that joins or grows moves no partition of another.
"""

from collections.abc import Iterable
from zlib import crc32


def partitions_of(task: int, tasks: int, partitions: Iterable[int], topic: str = "") -> tuple[int, ...]:
    """Return the partitions of task `task` (from 0) of `tasks`, ascending. `topic` is empty if it is the only one.

    Each partition belongs to exactly one task. A task that gets none has an empty tuple. Raise ValueError unless
    0 <= task < tasks.
    """
    if not 0 <= task < tasks:
        raise ValueError(f"task {task} of {tasks}: tasks are numbered from 0 to one below their number")
    first = crc32(topic.encode()) % tasks
    return tuple(sorted(set(partitions))[(task - first) % tasks :: tasks])
