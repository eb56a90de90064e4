"""One broker of the world of replicas (replica_world.py): its disk, its log manager, and the jobs of its threads.

A `Replica` is what the world knows of one log on one broker: which batches it has, how far they are on the disk, and
what a step that was not finished may have left. A start must find just that.
"""

from broker.log.compaction.cleaner import CleanLog
from broker.log.io_jobs import SyncJournal, SyncLog
from broker.log.log_manager import LogManager
from broker.log.storage.port import StorageError
from broker.now import Now
from tests.broker.log.conftest import START_MS, uuid_of
from tests.broker.log.truncation_world import Stopped, StoppingStorage
from tests.simulation.disks import power_cut

TOPIC, TOPIC_ID = "flights", uuid_of(4)
NEVER = 1 << 30
CLOCKS_MS = 400
"""The clocks of the brokers differ by at most as much."""
LEAD_MS = 1 << 32


class Replica:
    """The log of one partition on one broker, as it must be."""

    def __init__(self, number):
        self.number = number
        """The number of its broker."""
        self.spans = []
        """(base offset, last offset, leader epoch) of each batch, deleted and compacted ones too."""
        self.end = 0
        self.unfinished = set()
        """(base offset, leader epoch) of batches whose write was not finished: a power cut may bring them back."""
        self.on_disk = 0
        """No power cut may lose offsets below it."""
        self.cut = None
        """(offset, is_anew) while the log is truncated."""
        self.gaps_below = 0
        """A key whose records a leader's cleaner left out may have its last record up to here."""
        self.gaps_end = 0
        """The same of the last batches of producers."""
        self.watermark = 0
        self.stored_watermark = 0

    def keep_below(self, offset):
        self.spans = [span for span in self.spans if span[1] < offset]
        self.end = self.spans[-1][1] + 1 if self.spans else offset
        self.on_disk = min(self.on_disk, self.end)

    def begin_anew(self, offset):
        self.spans, self.end, self.on_disk = [], offset, 0

    def least_end(self, *, power):
        """Return the end that the log must have at least after a power cut or a kill."""
        end = self.on_disk if power else self.end
        if self.cut is None:
            return end
        offset, is_anew = self.cut
        return 0 if is_anew else min([end, *(base for base, last, _ in self.spans if last >= offset)])


class Node:
    """A broker. Its jobs run one by one when the world says so, in any order."""

    def __init__(self, number, random, stamp, config, topic, partitions, disk):
        self.number = number
        self.random = random
        self.stamp = stamp
        self.config = config
        self.topic = topic
        self.storage = disk
        self.replicas = [Replica(number) for _ in range(partitions)]
        self.jobs = []
        self.skew_ms = 0
        self.is_up = False
        self.lost_power = False
        """True if the last process ended with a power cut."""

    def now(self, ms):
        return Now(ms, START_MS + ms + self.skew_ms)

    def start(self, worker_number, ms):
        self.skew_ms = self.random.randrange(CLOCKS_MS)
        self.stamp.claim(worker_number, START_MS + ms, LEAD_MS)
        self.manager = LogManager(self.storage, self.config, lambda line: None)
        self.manager.load_checkpoint()
        self.jobs = []
        for partition in range(len(self.replicas)):
            self.manager.open(TOPIC, partition, self.topic, TOPIC_ID)
        self.manager.opened()
        assert not self.manager.offline, f"no disk lost what was synced, yet: {self.manager.offline}"
        self.manager.next_deadline_ms(ms)
        self.is_up = True

    def log(self, partition):
        """Return the log, None while it is offline or truncated, or the broker is down."""
        log = self.manager.find(TOPIC, partition) if self.is_up else None
        return log if log is not None and log.offline is None else None

    def stop(self, *, power):
        """Kill the process, or cut the power: then the disk forgets much that was not synced."""
        self.is_up, self.lost_power = False, power
        self.jobs = []
        storage = power_cut(self.storage, self.random.randrange) if power else self.storage
        self.storage = StoppingStorage()
        self.storage.syncs_all = storage.syncs_all
        self.storage.files, self.storage._synced_names = storage.files, storage._synced_names
        self.storage.directories, self.storage._renames = storage.directories, storage._renames

    def close(self):
        """Stop cleanly."""
        self.manager.close()
        for replica in self.replicas:
            replica.stored_watermark = replica.watermark
        self.stop(power=False)

    # --- jobs ----------------------------------------------------------------------------------------------------

    def take_jobs(self):
        self.jobs += self.manager.take_syncs()

    def run_job(self, *, is_sound=False):
        """Run one of the jobs, the disk being full or broken now and then."""
        self.take_jobs()
        if not self.jobs:
            return False
        job = self.jobs.pop(self.random.randrange(len(self.jobs)))
        if not is_sound and not self.random.randrange(25):
            self.trouble(sorted(self.storage.files))
        try:
            job.run()
        except StorageError as error:
            self.manager.sync_failed(job, error)
        else:
            self.manager.synced(job)
        self.heal_disk()
        self.note_synced()
        self.take_jobs()
        return True

    def note_synced(self):
        for log in self.manager.all():
            replica = self.replicas[log.partition]
            replica.on_disk = max(replica.on_disk, min(log.durability.end_offset, replica.end))

    def trouble(self, paths):
        """Fill the disk, or break the sync or the cut of a file."""
        kind = self.random.randrange(3)
        if not kind or not paths:
            self.storage.free_bytes = self.random.randrange(8000)
        elif kind == 1:
            self.storage.failing_syncs.add(self.random.choice(paths))
        else:
            self.storage.free_bytes = self.random.randrange(2000)
            self.storage.failing_cuts.add(self.random.choice(paths))

    def heal_disk(self):
        self.storage.free_bytes = None
        self.storage.failing_syncs.clear()
        self.storage.failing_cuts.clear()

    def is_interrupted(self, step):
        """Do a step; stop it before one of the next changes of the disk. Return False if it ended before."""
        self.storage.steps_left = self.random.randrange(14)
        try:
            step()
        except Stopped:
            return True
        finally:
            self.storage.steps_left = NEVER
        return False

    def half_run(self):
        """Run one of the jobs in part, as a crash in the middle of it finds it."""
        job = self.random.choice(self.jobs)
        if isinstance(job, SyncLog):
            for file in job.files[: self.random.randrange(len(job.files) + 1)]:
                file.sync()
        elif isinstance(job, SyncJournal):
            data = b"".join(job.parts)
            job.to.made(self.storage).append(data[: self.random.randrange(len(data) + 1)])
        elif not isinstance(job, CleanLog):
            self.is_interrupted(job.run)

    def tick(self, ms):
        self.manager.tick(self.now(ms))
        self.take_jobs()
