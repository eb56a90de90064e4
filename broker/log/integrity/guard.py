"""The guard of all logs: takes back what threads have verified, and applies their verdicts.

    VerifyJob   a region that a read waits for (broker.log.integrity.region_check)
"""

from collections.abc import Callable
from typing import TypeAlias

from broker.log.integrity.verify_job import VerifyJob
from broker.log.partition_log import PartitionLog

GuardJob: TypeAlias = VerifyJob


class Guard:
    """The checks of all logs. `is_halfway` says if files of a log are being replaced; `report` takes lines."""

    def __init__(self, is_halfway: Callable[[PartitionLog], bool], report: Callable[[str], None]) -> None:
        self._is_halfway = is_halfway
        self._report = report

    def back(self, job: GuardJob) -> None:
        """Take back a job, and apply its verdict."""
        if line := job.check.apply(self._is_halfway(job.check.log)):
            self._report(line)
