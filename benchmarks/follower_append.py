"""A follower's append alone: answers of a leader's log are copied into another log, in this process, without a network.

The leader's own append of the same batches stands beside it. Both write files, so the page cache is in the figures.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.bulk import BATCH_BYTES, RECORD_OVERHEAD_BYTES
from benchmarks.load import CONNECTIONS
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale
from benchmarks.plan import VALUE_BYTES
from broker.log import log_appender
from broker.log.copied_appender import append_copied
from broker.log.partition_log import PartitionLog
from broker.log.recovery.recovery import open_log
from broker.log.storage.os_storage import OsStorage
from broker.log.validation.batch import validate
from broker.now import Now
from broker.record.records import BatchRecord, encode_batch
from broker.replication.fetcher import FetchLimits
from broker.settings.config import BrokerConfig, TopicConfig
from idgen.layout import Layout
from idgen.worker import IdWorker
from tests.broker.log.copying import answer_of

ANSWER_BYTES = FetchLimits().partition_max_bytes
START_MS = 1_700_000_000_000


class Batches(NamedTuple):
    """The batches of a leader's log: their number, the records of each, and how many are written together."""

    number: int
    records: int
    together: int

    @property
    def value_bytes(self) -> int:
        return self.number * self.records * VALUE_BYTES


FULL = Batches(200, BATCH_BYTES // (VALUE_BYTES + RECORD_OVERHEAD_BYTES), 1)
SINGLE = Batches(100_000, 1, CONNECTIONS)


def _new_log(directory: Path) -> PartitionLog:
    log, _ = open_log(OsStorage(str(directory)), "bench", 0, TopicConfig(), BrokerConfig(), None)
    log.start_leader_epoch(1)
    return log


def _lead(log: PartitionLog, batches: Batches) -> float:
    """Append the batches as a leader, a turn of the reactor each millisecond. Return the CPU time in seconds."""
    config, seconds = BrokerConfig(), 0.0
    worker = IdWorker(Layout(), 1, start_ms=START_MS, limit_ms=START_MS + 86_400_000)
    records = [BatchRecord(offset, 0, None, bytes(VALUE_BYTES), ()) for offset in range(batches.records)]
    sent = encode_batch(records, base_timestamp_ms=START_MS)
    for turn in range(batches.number // batches.together):
        now = Now(0, START_MS + turn)
        received = [memoryview(bytearray(sent)) for _ in range(batches.together)]
        begin = time.process_time()
        staged = [(batch, validate(batch, log.config, config)) for batch in received]
        log_appender.append_batches(log, staged, worker, now)
        seconds += time.process_time() - begin
    return seconds


def _follow(log: PartitionLog, leader: PartitionLog, answer_bytes: int) -> float:
    """Copy the leader's log. Return the CPU time of the appends in seconds, without that of reading the leader's."""
    seconds, now = 0.0, Now(0, START_MS)
    log.follow(leader.leader_epoch)
    while log.log_end_offset < leader.log_end_offset:
        records, ids = answer_of(leader, log.log_end_offset, answer_bytes)
        begin = time.process_time()
        append_copied(log, records, ids, now)
        seconds += time.process_time() - begin
    return seconds


def _on_a_new_log(append: Callable[[PartitionLog], float], batches: Batches) -> Figures:
    with TemporaryDirectory(prefix="flakelog-bench-") as directory:
        log = _new_log(Path(directory))
        seconds = append(log)
        log.segments.close_all()
    return {"MB/CPU s": batches.value_bytes / seconds / 1e6, "batches/CPU s": batches.number / seconds}


@contextmanager
def _append_row(batches: Batches, scale: Scale) -> Iterator[Contenders]:
    number = scale.of(batches.number, batches.together)
    batches = batches._replace(number=number - number % batches.together)
    with TemporaryDirectory(prefix="flakelog-bench-") as directory:
        leader = _new_log(Path(directory))
        _lead(leader, batches)
        turn_bytes = leader.segments.size // (batches.number // batches.together)
        answers = {f"answers of {ANSWER_BYTES >> 20} MiB": ANSWER_BYTES}
        if batches.together > 1:
            answers[f"answers of {batches.together} batches"] = turn_bytes
        yield {
            **{
                f"{OURS}, {what}": partial(_on_a_new_log, partial(_follow, leader=leader, answer_bytes=size), batches)
                for what, size in answers.items()
            },
            f"{OURS}, the leader's append": partial(_on_a_new_log, partial(_lead, batches=batches), batches),
        }
        leader.segments.close_all()


ROWS = [
    Row(
        "follower-append",
        f"a follower's append alone, in this process: full batches of {VALUE_BYTES} B records",
        partial(_append_row, FULL),
    ),
    Row(
        "follower-append-single",
        f"the same with batches of one record, of which {CONNECTIONS} were written together",
        partial(_append_row, SINGLE),
    ),
]
