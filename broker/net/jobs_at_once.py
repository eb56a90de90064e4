"""SHELL (threads): jobs that wait for the disk, many at once.

The disk commits the syncs that come while it is at work together: sixteen syncs take little more time than one.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from broker.log.io_jobs import Runnable, run, run_in_turn
from broker.log.storage.port import StorageError

JOBS_AT_ONCE = 16


def run_at_once(jobs: Sequence[Runnable]) -> Iterable[StorageError | None]:
    """Run jobs that do not depend on each other in threads (`broker.log.io_jobs.RunJobs`), a single one in this thread.
    """
    if len(jobs) < 2:
        yield from run_in_turn(jobs)
        return
    with ThreadPoolExecutor(JOBS_AT_ONCE, "close") as pool:
        yield from pool.map(run, jobs)
