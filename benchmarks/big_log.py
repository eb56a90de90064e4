"""A log of many gigabytes: how soon a server with such a log answers."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Contenders, Figures, Row, Scale
from benchmarks.startup import start_ms
from broker.log import log_appender
from broker.log.log_manager import LogManager
from broker.log.storage.os_storage import OsStorage
from broker.log.validation.batch import validate
from broker.metadata.change import Change
from broker.metadata.image import RegisteredBroker
from broker.metadata.local_metadata import FileMetadataStore, LocalMetadata
from broker.metadata.topic import Topic, new_partitions
from broker.now import Now
from broker.record.records import BatchRecord, encode_batch
from broker.settings.config import BrokerConfig, TopicConfig
from idgen.layout import Layout
from idgen.worker import IdWorker

TOPIC = "big"
LOG_BYTES = 10 * 1000**3
BATCH_BYTES = 900_000
SYNC_EVERY = 64  # batches
SEGMENT_BYTES, SMALL_SEGMENT_BYTES = 1 << 30, 1_000_000


def write_log(directory: Path, log_bytes: int, segment_bytes: int) -> None:
    """Write a data directory with one topic of `log_bytes`, as a clean stop leaves it. The log layer writes it, without
    a server."""
    directory.mkdir(parents=True)
    storage, config = OsStorage(str(directory)), BrokerConfig()
    own = RegisteredBroker(config.node_id, {"": ("127.0.0.1", 1)})
    local = LocalMetadata(FileMetadataStore(storage), own, uuid.uuid4)
    local.load()
    properties = {"segment.bytes": str(segment_bytes), "retention.ms": "-1"}
    topic = Topic(TOPIC, uuid.uuid4(), new_partitions([(own.id,)]), properties)
    local.save(local.document().changed([Change({TOPIC: topic})], local.commits + 1))
    manager = LogManager(storage, config, print)
    manager.load_checkpoint()
    topic_config = TopicConfig(segment_bytes=segment_bytes)
    manager.open(TOPIC, 0, topic_config, topic.id)
    manager.opened()
    log = manager.get(TOPIC, 0)
    now = Now(0, 1_700_000_000_000)
    worker = IdWorker(Layout(), 1, start_ms=now.wall_ms, limit_ms=now.wall_ms + 86_400_000)
    batch = bytearray(encode_batch([BatchRecord(0, 0, None, bytes(BATCH_BYTES), ())], base_timestamp_ms=now.wall_ms))
    header = validate(memoryview(batch), topic_config, config)
    for number in range(max(log_bytes // len(batch), 1)):
        log_appender.append(log, memoryview(batch), header, worker, now)
        manager.appended(log)
        if number % SYNC_EVERY == 0:
            for sync in manager.take_syncs():
                sync.run()
                manager.synced(sync)
    manager.close()


@contextmanager
def _start_row(segment_bytes: int, scale: Scale) -> Iterator[Contenders]:
    with TemporaryDirectory(prefix="flakelog-bench-") as name:
        directories = {"flakelog, 10 GB": Path(name) / "big", "flakelog, an empty log": Path(name) / "small"}
        write_log(directories["flakelog, 10 GB"], scale.of(LOG_BYTES), segment_bytes)
        write_log(directories["flakelog, an empty log"], 1, segment_bytes)
        yield {who: partial(_start, directory) for who, directory in directories.items()}


def _start(directory: Path) -> Figures:
    """Start with the files out of the page cache, as after a restart of the machine."""
    forget(directory)
    return {"ms": start_ms(directory)}


def forget(directory: Path) -> None:
    """Drop the files below a directory from the page cache. Only bytes that are on the disk leave it."""
    for parent, _, names in os.walk(directory):
        for name in names:
            fd = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


ROWS = [
    Row("start-10gb", "start with 10 GB in segments of 1 GiB after a clean stop", partial(_start_row, SEGMENT_BYTES)),
    Row("start-10gb-10k", "the same in 10,000 segments", partial(_start_row, SMALL_SEGMENT_BYTES)),
]
