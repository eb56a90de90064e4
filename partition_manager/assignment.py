"""Which partitions a task reads: sorted, task i of T takes i, i + T, i + 2T, ... as storm-kafka does."""

from collections.abc import Iterable


def partitions_of(task: int, tasks: int, partitions: Iterable[int]) -> tuple[int, ...]:
    """The partitions of task `task` (from 0) of `tasks`, ascending. Over all tasks each partition comes exactly once.

    A task beyond the number of partitions has none. ValueError unless 0 <= task < tasks.
    """
    if not 0 <= task < tasks:
        raise ValueError(f"task {task} of {tasks}: tasks are numbered from 0 to one below their number")
    return tuple(sorted(set(partitions))[task::tasks])
