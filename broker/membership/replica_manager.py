"""The copies of a broker's partitions (Kafka's ReplicaManager): which it leads, which it follows, and what it keeps.

    decided     the controller's decision about a partition with several copies is hosted: lead it, or follow its leader
    job_ended   a log that was truncated is there again: it is led or followed as was decided last
    tick        the high watermarks are written each replica.high.watermark.checkpoint.interval.ms

A partition with one copy has no part in this, and its high watermark is its log's end.
"""

from collections.abc import Collection, Iterable, Mapping

from broker.log.epochs_begun import WriteEpochsBegun
from broker.log.io_jobs import RewriteOrRemove, WriteFile
from broker.log.partition_log import PartitionLog
from broker.log.storage.port import StorageError
from broker.log.sync_scheduler import IoJob
from broker.membership.calls import FetchCall
from broker.membership.followed_partitions import FollowedPartitions
from broker.membership.led_partitions import LedPartitions
from broker.membership.life_file import LifeFile
from broker.membership.replica_ports import ReplicaPorts
from broker.metadata.topic import PartitionState, Topic
from broker.now import Now
from broker.record.records import LONG_MAX
from broker.replication import offset_checkpoint
from broker.replication.offset_checkpoint import OffsetCheckpointDamaged
from broker.wire.fetch import FetchResponse

LOGS_READY = "logs were truncated, or leader epochs, high watermarks or the broker's life written"
"""The purgatory key of orders that wait for a file, or for the end of a truncation."""


class ReplicaManager:
    """See the module. The member takes its fetches to leaders, as from any `Fetchers`."""

    def __init__(self, ports: ReplicaPorts) -> None:
        self._ports = ports
        self.led = LedPartitions(ports)
        self.partition_of = self.led.find
        """Returns the leader's view of a log's partition; None if it has one copy, or another broker leads it."""
        self.fetched = self.led.fetched
        """Notes a follower's fetch, in the life of it that has this broker epoch."""
        self.followed = FollowedPartitions(ports)
        self.life = LifeFile(ports.logs, ports.report)
        self._copied: dict[tuple[str, int], PartitionLog] = {}
        """The logs of partitions with several copies."""
        self._unopened: dict[tuple[str, int], int] = {}
        """The high watermarks of hosted partitions whose logs are not open, as they were last."""
        self._write: WriteFile | None = None
        """The write of the high watermarks that is under way."""
        self._written = b""
        self._write_ms = 0
        self._is_leaving = False
        self._stored: frozenset[tuple[str, int]] = frozenset()
        """The partitions that the file may name."""
        self._naming: frozenset[tuple[str, int]] = frozenset()
        """The partitions that the write under way names."""

    # --- the start and the stop ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Begin a life of the broker, and read the stored high watermarks, at the start. Raise StorageError.

        Without high watermarks, or if their file is damaged, each log counts as replicated up to its start until a
        leader says more.
        """
        self.life.load(self._ports.boot_id)
        storage = self._ports.logs.storage
        if not storage.exists(offset_checkpoint.FILE):
            return
        file = storage.open(offset_checkpoint.FILE)
        try:
            offsets = offset_checkpoint.decode(file.read(0, file.size))
        except OffsetCheckpointDamaged as error:
            self._ports.report(str(error))
        else:
            self._unopened = {key: offset for key, offset in offsets.items() if self._has_copies(*key)}
            self._stored = frozenset(offsets)

    def opened(self, topic: Topic, partition: int) -> None:
        """Give the log of a partition with several copies, which was just opened, its stored high watermark."""
        log = self._ports.logs.find(topic.name, partition)
        if log is not None and self._has_copies(topic.name, partition):
            offset_checkpoint.restore(log, self._unopened)
            self._keep(log)

    def _has_copies(self, topic: str, partition: int) -> bool:
        """Return True for a partition with several copies, of which the directory hosts one."""
        hosted = self._ports.hosted.topic(topic)
        states = () if hosted is None else hosted.partitions
        return partition < len(states) and len(states[partition].replicas) > 1

    def _keep(self, log: PartitionLog) -> None:
        """Have the high watermark of a log written from now on."""
        key = log.topic, log.partition
        self._copied[key] = log
        self._unopened.pop(key, None)

    def close(self) -> None:
        """At a stop, once the logs are closed, write the high watermarks in this thread, and note logs that are lost.

        On a full disk the high watermarks of before stay, which are lower.
        """
        logs = self._ports.logs
        self.life.close(has_lost=any(logs.is_offline(*key) and not logs.waits_for_space(*key) for key in self._copied))
        data = self._encode()
        if data != self._written:
            try:
                logs.storage.replace(offset_checkpoint.FILE, data)
            except StorageError as error:
                self._ports.report(f"the high watermarks could not be written: {error}")

    # --- orders --------------------------------------------------------------------------------------------------

    def decided(self, log: PartitionLog, state: PartitionState, now: Now) -> None:
        """Lead or follow a partition, as the controller decided. A decision that is carried out already is nothing.

        Neither lead nor follow a log that is offline: the controller hears of it, and decides anew.
        """
        if log.offline is not None:
            return
        key = log.topic, log.partition
        log.has_copies = len(state.replicas) > 1
        if not log.has_copies:
            self._leave(log)
            if log.replicated_to != LONG_MAX:
                log.move_replicated_to(LONG_MAX)
                self._ports.touch(log, now)
            return
        self._keep(log)
        if state.leader == self._ports.broker_id:
            self.followed.unfollow(key)
            self.led.lead(log, state, now)
            return
        self.led.resign(log)
        if log.replicated_to == LONG_MAX:
            log.move_replicated_to(log.high_watermark)
        if state.leader < 0 or (self._is_leaving and not self.followed.follows(key)):
            self.followed.unfollow(key)
            return
        log.follow(state.leader_epoch)
        self.followed.follow(log, state, now)

    def registered(self) -> None:
        """Note that the controller was told of this life of the broker."""
        self.life.registered()

    def leave(self) -> None:
        """Follow no leader that takes over from this broker, because it stops.

        A follower at the log's end is proposed for the ISR. If this broker was the controller, no other can refuse that
        before the session ends, and meanwhile producers with acks=all would wait for a copy that is made no more.
        """
        self._is_leaving = True

    def will_lead(self, keys: Iterable[tuple[str, int]]) -> None:
        """Follow these partitions no more, because the disk has the epochs in which this broker is about to lead them.

        A late answer of the last leader could truncate a log, and take the epoch with it.
        """
        for key in keys:
            self.followed.unfollow(key)

    def _leave(self, log: PartitionLog) -> None:
        key = log.topic, log.partition
        self.followed.unfollow(key)
        self.led.resign(log)
        self._copied.pop(key, None)
        self._unopened.pop(key, None)

    def deleted(self, topics: Mapping[str, Iterable[int]]) -> None:
        """Forget logs that are deleted, given as partitions by topic."""
        for topic, partitions in topics.items():
            for partition in partitions:
                log = self._copied.get((topic, partition))
                if log is not None:
                    self._leave(log)
                self.followed.forget((topic, partition))
                self._unopened.pop((topic, partition), None)

    def has_forgotten(self, keys: Iterable[tuple[str, int]]) -> bool:
        """Return True once the file of the high watermarks names none of these partitions that was deleted since.

        Otherwise have it written; ask again once the job is back. A log made anew must not get the high watermark of
        the deleted one after a crash, because clients would read records that are not committed.
        """
        if all(key not in self._stored or key in self._copied or key in self._unopened for key in keys):
            return True
        if self._write is None:
            self._begin_write(self._encode())
        return False

    def went_offline(self, log: PartitionLog, now: Now) -> None:
        """Neither lead nor follow a log that went offline, and have the controller ask for it."""
        key = log.topic, log.partition
        if self._copied.get(key) is log and not self.followed.is_truncating(key):
            self._leave(log)
            self._unopened[key] = log.high_watermark
            self.life.lost()
            self._ports.log_went_offline(now)

    def is_truncating(self, topic: str, partition: int) -> bool:
        """Return True while a partition's log is being opened anew, and does not wait for space on the disk."""
        is_waiting = self._ports.logs.is_offline(topic, partition)
        return self.followed.is_truncating((topic, partition)) and not is_waiting

    def configured(self, now: Now) -> None:
        """Note that settings of topics have changed."""
        self.led.configured(now)

    # --- fetches from leaders ------------------------------------------------------------------------------------

    def take_calls(self, now: Now) -> list[FetchCall]:
        """Return the fetches to send now."""
        return self.followed.take_calls(now)

    def called(self, call: FetchCall, response: FetchResponse | None, now: Now) -> None:
        """Take the response of a fetch, None if the leader was not reached or did not answer."""
        self.followed.called(call, response, now)

    # --- jobs and time -------------------------------------------------------------------------------------------

    def job_ended(self, job: IoJob, error: Exception | None, now: Now) -> None:
        """Go on with what a thread has done: a file is written, or the truncation of a log has ended."""
        if job is self._write:
            self._write_ended(self._write, error)
            self._ports.purgatory.touch(LOGS_READY, now)
            return
        if self.life.back(job, error) or isinstance(job, WriteEpochsBegun):
            self._ports.purgatory.touch(LOGS_READY, now)
        ended = self.followed.take_truncated()
        for topic, partition in ended:
            log, hosted = self._ports.logs.find(topic, partition), self._ports.hosted.topic(topic)
            if log is None:
                if (old := self._copied.pop((topic, partition), None)) is not None:
                    self._unopened[topic, partition] = old.high_watermark
                    self.life.lost()
                self._ports.log_went_offline(now)
            elif hosted is not None:
                self.decided(log, hosted.partitions[partition], now)
        if ended:
            self._ports.purgatory.touch(LOGS_READY, now)

    def tick(self, now: Now) -> None:
        self.led.tick(now)
        if self._copied and self._write_ms <= now.ms:
            self._write_ms = now.ms + self._ports.config().replica_high_watermark_checkpoint_interval_ms
            self._write_offsets()

    def _write_offsets(self) -> None:
        data = self._encode()
        if self._write is None and data != self._written:
            self._begin_write(data)

    def _begin_write(self, data: bytes) -> None:
        """Write the file. If the disk has no space for it, a file that names deleted partitions is removed."""
        logs, self._naming = self._ports.logs, frozenset((*self._copied, *self._unopened))
        job = WriteFile if self._stored <= self._naming else RewriteOrRemove
        self._stored |= self._naming
        self._write = job(logs.storage, offset_checkpoint.FILE, data)
        logs.syncs.add_job(self._write)

    def _write_ended(self, write: WriteFile, error: Exception | None) -> None:
        self._write = None
        if error is None:
            self._written, self._stored = write.data, self._naming
        elif isinstance(write, RewriteOrRemove):
            self._written, self._stored = b"", frozenset()

    def _encode(self) -> bytes:
        return offset_checkpoint.encode(self._copied.values(), self._unopened)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` or `take_calls` is due; None without a deadline."""
        write_ms = self._write_ms if self._copied else None
        deadlines: Collection[int | None] = (
            self.led.next_deadline_ms(), self.followed.next_deadline_ms(), write_ms
        )  # fmt: skip
        return min((deadline for deadline in deadlines if deadline is not None), default=None)
