"""Assignment of partitions to tasks, as in storm-kafka.

The partitions are sorted; task i of T reads number i, i + T, i + 2T, ... of them.
"""

from collections.abc import Iterable


def partitions_of(task: int, tasks: int, partitions: Iterable[int]) -> tuple[int, ...]:
    """Return the partitions of task `task` (from 0) of `tasks`, ascending.

    Each partition belongs to exactly one task. A task numbered beyond the number of partitions gets an empty tuple.
    Raise ValueError unless 0 <= task < tasks.
    """
    if not 0 <= task < tasks:
        raise ValueError(f"task {task} of {tasks}: tasks are numbered from 0 to one below their number")
    return tuple(sorted(set(partitions))[task::tasks])
