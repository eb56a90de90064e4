"""Garbage collections of a worker process, without the modules that it has imported."""

import gc
from functools import cache


@cache
def spare_imports() -> None:
    """Leave the modules of this process out of garbage collections, once, after its first task has imported them.

    pyspark's daemon collects garbage after each task. It looks at 100,000 objects of imported modules then, for 60 ms,
    in which a task reads 250,000 messages (https://docs.python.org/3/library/gc.html#gc.freeze).
    """
    gc.collect()
    gc.freeze()
