"""The job that verifies a region of a log in a worker thread, for a read that waits for it."""

from collections.abc import Hashable

from broker.log.integrity.region_check import RegionCheck
from broker.log.io_jobs import ReadJob
from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment


class VerifyJob(ReadJob):
    """A check of the region from an offset on. The reactor thread applies the check's verdict when the job is back."""

    def __init__(self, log: PartitionLog, segment: Segment, offset: int, key: Hashable) -> None:
        self.check = RegionCheck(log, segment, offset)
        super().__init__(self.check.run, key)
