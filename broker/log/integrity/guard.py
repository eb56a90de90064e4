"""The guard of all logs: looks for damage while the broker runs, in threads, and applies what they find.

    VerifyJob    a region that a read waits for (broker.log.integrity.region_check)
    ScrubJob     a slice of the scrub, which reads every closed segment again with its CRCs
    LookForFiles looks if the files of logs that were written to still have their names, because a system lets the owner
                 remove files in use, and writes to them are lost

The scrub reads flakelog.scrub.bytes.per.second, a slice at a time, and rests between two passes.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from broker.log.closed_segment import ClosedSegment
from broker.log.integrity.region_check import Verdict
from broker.log.integrity.segment_walk import Damaged, SegmentWalk
from broker.log.integrity.verify_job import VerifyJob
from broker.log.io_jobs import ReadJob
from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment
from broker.log.storage.port import Storage, StorageError

LOOK_EVERY_MS = 2_000
"""Time between two looks for the files of logs that are written to. A removed file is noticed within it."""
FIRST_PASS_MS, PASS_EVERY_MS = 60_000, 86_400_000
"""Time from the start to the first pass of the scrub, and from the beginning of a pass to the next one at least."""
SLICE_BYTES = 256 << 10


class LookForFiles(ReadJob):
    """A look if files still have their names."""

    def __init__(self, storage: Storage, logs: Iterable[PartitionLog]) -> None:
        self._storage = storage
        self.active_segments = [(log, log.segments.active, log.segments.active.data_paths) for log in logs]
        self.missing: list[tuple[PartitionLog, Segment, str]] = []
        super().__init__(self._find_missing, self)

    def _find_missing(self) -> None:
        for log, segment, paths in self.active_segments:
            self.missing += [(log, segment, path) for path in paths if not self._storage.exists(path)][:1]


class ScrubJob(ReadJob):
    """A slice of the scrub of one segment. The job is run again until `is_over`."""

    def __init__(self, log: PartitionLog, segment: ClosedSegment) -> None:
        self.verdict = Verdict(log, segment)
        self.bytes_read = 0
        self.is_over = False
        self._walk: SegmentWalk | None = None
        super().__init__(self._slice, self)

    def _slice(self) -> None:
        verdict, segment = self.verdict, self.verdict.segment
        self.bytes_read = 0
        try:
            if self._walk is None:
                self._walk = verdict.walk_of(segment.apart(), segment.size, crc=True)
            walk, before = self._walk, self._walk.position
            walk.step(before + SLICE_BYTES, sys.maxsize)
            self.bytes_read = walk.position - before
            if walk.is_done:
                verdict.finished(walk)
                check_aborted(walk.segment, segment.next_offset)
                self.is_over = True
        except Damaged as error:
            verdict.damage, self.is_over = str(error), True
        except StorageError as error:
            verdict.error, self.is_over = error, True


def check_aborted(segment: Segment, next_offset: int) -> None:
    """Raise Damaged if the index of aborted transactions of a segment is damaged."""
    if not segment.aborted.is_sound(segment.base_offset, next_offset):
        raise Damaged(f"{segment.directory}: the index of aborted transactions at {segment.base_offset} is damaged")


@dataclass(slots=True)
class ScrubFigures:
    """Totals of the scrub since the start."""

    passes: int = 0
    bytes_read: int = 0
    errors: int = 0
    """Segments with damage, wrong indexes, or files that could not be read."""


GuardJob: TypeAlias = VerifyJob | ScrubJob | LookForFiles


class Guard:
    """The checks of all logs. `is_halfway` says if files of a log are being replaced; `report` takes lines."""

    def __init__(
        self, storage: Storage, is_halfway: Callable[[PartitionLog], bool], report: Callable[[str], None]
    ) -> None:
        self.figures = ScrubFigures()
        self.written: set[PartitionLog] = set()
        """Logs with appends since the last look for their files."""
        self._storage = storage
        self._is_halfway = is_halfway
        self._report = report
        self._look_ms: int | None = None
        self._segments_left: Iterator[tuple[PartitionLog, ClosedSegment]] | None = None
        """The segments that this pass of the scrub has still to read; None between two passes."""
        self._scrubbing: ScrubJob | None = None
        self._is_out = False
        self._slice_ms: int | None = None
        self._pass_ms = 0
        self._was_passed_over = False
        """True once this pass of the scrub has reported a segment that it could not read for a lack of the process."""

    def next_deadline_ms(self, now_ms: int, bytes_per_second: int) -> int | None:
        """Return when `tick` is due. `bytes_per_second` is the scrub's rate; 0 turns the scrub off."""
        if self._look_ms is None and self.written:
            self._look_ms = now_ms + LOOK_EVERY_MS
        if not bytes_per_second or self._is_out:
            return self._look_ms
        if self._slice_ms is None:
            self._slice_ms = now_ms + FIRST_PASS_MS
        return self._slice_ms if self._look_ms is None else min(self._look_ms, self._slice_ms)

    def tick(self, logs: Iterable[PartitionLog], now_ms: int, bytes_per_second: int) -> list[ReadJob]:
        """Return the jobs that are due, for threads."""
        jobs: list[ReadJob] = []
        if self._look_ms is not None and now_ms >= self._look_ms:
            self._look_ms = None
            jobs.append(LookForFiles(self._storage, (log for log in self.written if log.offline is None)))
            self.written.clear()
        if bytes_per_second and self._slice_ms is not None and now_ms >= self._slice_ms and not self._is_out:
            job = self._next_slice(logs, now_ms)
            self._slice_ms = now_ms + SLICE_BYTES * 1000 // bytes_per_second
            if job is None:
                self._slice_ms = max(self._pass_ms + PASS_EVERY_MS, self._slice_ms)
            else:
                self._is_out = True
                jobs.append(job)
        return jobs

    def _next_slice(self, logs: Iterable[PartitionLog], now_ms: int) -> ScrubJob | None:
        """Return the next slice of the scrub, None if the pass is over."""
        job = self._scrubbing
        if job is not None and job.verdict.log.offline is None and job.verdict.is_current:
            return job
        if self._segments_left is None:
            self._pass_ms, self._was_passed_over = now_ms, False
            self._segments_left = closed_segments(list(logs))
        for log, segment in self._segments_left:
            self._scrubbing = ScrubJob(log, segment)
            return self._scrubbing
        self._segments_left = self._scrubbing = None
        self.figures.passes += 1
        return None

    def back(self, job: GuardJob) -> None:
        """Take back a job, and apply what it found."""
        if isinstance(job, LookForFiles):
            for log, segment, path in job.missing:
                if log.offline is None and log.segments.active is segment:
                    log.take_offline(f"{path} was removed while the broker wrote to it")
            return
        verdict = job.check if isinstance(job, VerifyJob) else job.verdict
        if isinstance(job, ScrubJob):
            self._is_out = False
            self.figures.bytes_read += job.bytes_read
            if not job.is_over:
                return
            self._scrubbing = None
            self._count(verdict)
        if line := verdict.apply(self._is_halfway(verdict.log)):
            self._report(line)

    def _count(self, verdict: Verdict) -> None:
        """Count a segment that the scrub found bad: `apply` names it in a line. The next pass reads one that the
        process lacked descriptors for; the first such segment of a pass gets a line."""
        log = verdict.log
        if not verdict.is_current or log.offline is not None or self._is_halfway(log):
            return
        if verdict.is_bad:
            self.figures.errors += 1
        elif verdict.error is not None and not self._was_passed_over:
            self._was_passed_over = True
            self._report(f"the scrub passes over files that it cannot read now, until its next pass: {verdict.error}")


def closed_segments(logs: Iterable[PartitionLog]) -> Iterator[tuple[PartitionLog, ClosedSegment]]:
    """Yield the closed segments of each log, as it has them when its turn comes."""
    for log in logs:
        for segment in log.segments.all:
            if isinstance(segment, ClosedSegment):
                yield log, segment
