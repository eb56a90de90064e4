"""Lives of a few logs with power cuts: a seed draws what happens, and an oracle knows every acknowledged batch.

A life has many generations: appends of plain, idempotent and transactional producers, markers, rolls, complete, partial
and skipped syncs, checkpoints, full disks, failed syncs and failed truncations. A generation ends with a power cut, a
kill or a close. In half of the lives acks are durable, and the journal is one more file subject to all of this.
`MemoryStorage.power_cut` models the disk.

Each start after a power cut or a kill begins a leader epoch. Readers remember what they read and the epoch of it, and
must find by the epoch alone which of it is still in the log (KIP-101), also after the log has grown again.
"""

from random import Random
from uuid import UUID

from broker.log import leader_epochs, log_appender, log_reader
from broker.log.io_jobs import SyncJournal, SyncLog
from broker.log.log_manager import LogManager
from broker.log.storage.port import StorageError
from broker.log.validation.batch import validate
from broker.now import Now
from broker.record.batch import read_header, walk
from broker.record.control import Marker, decode_marker, encode_marker
from broker.record.records import BatchRecord, decode_records, encode_batch
from broker.settings.config import LONG_MAX, BrokerConfig, TopicConfig
from broker.wire.errors import ApiError
from broker.wire.id_entries import ENTRY_BYTES, read_entries
from tests.simulation.disks import new_disk, power_cut
from tests.simulation.stamp import LAYOUTS, Stamp, ids_of

START_MS = 1_700_000_000_000
TOPIC, TOPIC_ID = "flights", UUID(int=4)
TRANSACTIONAL_FROM = 4  # producers 4 and 5 write in transactions


class Partition:
    """The oracle's knowledge of one partition since it was opened."""

    def __init__(self):
        self.attempts = {}  # base offset -> [(bytes from 16 on, ids)]: every batch that may be found there
        self.acked = {}  # base offset -> (bytes, ids, last offset): appended, in the current log
        self.durable = 0  # synced up to this offset: no power cut may lose it
        self.written = 0  # answered up to this offset before a kill -9: in the page cache
        self.sequences = {}  # producer id -> the next sequence, and the last batch sent
        self.read = []  # readers: the ids that each has read, and the epoch of the last batch


class Life:
    PARTITIONS = 2

    def __init__(self, seed):
        self.random = Random(seed)
        self.storage = new_disk(seed)
        self.stamp = Stamp(self.random.choice(LAYOUTS))
        self.now_ms = START_MS
        self.epoch = 0
        self.truncations = 0  # lost ends that a reader found
        self.parts = [Partition() for _ in range(self.PARTITIONS)]
        self.unreadable = []  # the partitions that the last start could not read
        journal_max_bytes = self.random.choice((1 << 16, 1 << 24))
        self.broker = BrokerConfig(journal_max_bytes=journal_max_bytes, background_sync_bytes=1 << 16)
        self.topic = TopicConfig(
            segment_bytes=self.random.choice((1024, 4096, 20_000)),
            index_interval_bytes=self.random.choice((0, 100, 4096)),
            flush_messages=self.random.choice((1, 5, 2**62, LONG_MAX)),
            durable_acks=bool(self.random.randrange(2)),
            visible_after_flush=not self.random.randrange(4),
        )
        self.start()

    # --- generations ---------------------------------------------------------------------------------------------

    def start(self):
        self.now_ms = self.stamp.claim(self.random.randrange(3), self.now_ms) + 1
        self.manager = LogManager(self.storage, self.broker, lambda line: None)
        self.manager.load_checkpoint()
        self.syncs = []
        for partition in range(self.PARTITIONS):
            self.manager.open(TOPIC, partition, self.topic, TOPIC_ID)
        self.manager.opened()
        self.unreadable = self.check_offline()
        for partition, part in self.readable():
            self.log(partition).start_leader_epoch(self.epoch)
            self.check(self.log(partition), part)

    def check_offline(self):
        """Return the partitions that the start could not read: none, because no disk lost what was synced."""
        assert not self.manager.offline, f"no disk lost what was synced, yet: {self.manager.offline}"
        return []

    def readable(self):
        """Return the partitions that the last start could read, with what the oracle knows of them."""
        return [(number, part) for number, part in enumerate(self.parts) if number not in self.unreadable]

    def some_partition(self):
        return self.random.choice(self.readable())

    def log(self, partition):
        return self.manager.get(TOPIC, partition)

    def generation(self):
        for _ in range(self.random.randrange(1, 25)):
            writes = self.append, self.append, self.append_batches, self.append_batches, self.mark, self.repeat
            self.random.choice((*writes, self.round, self.run_sync, self.read_log))()
        self.check_readers()
        end = self.random.choice((self.power_cut, self.power_cut, self.kill, self.close))
        end()
        self.epoch += end != self.close
        self.start()

    def power_cut(self):
        if self.syncs and self.random.randrange(2):  # during a sync
            sync = self.random.choice(self.syncs)
            if isinstance(sync, SyncLog):
                for file in sync.files[: self.random.randrange(len(sync.files))]:
                    file.sync()
            elif isinstance(sync, SyncJournal):
                data = b"".join(sync.parts)
                sync.to.made(self.storage).append(data[: self.random.randrange(len(data) + 1)])
            else:
                sync.run()
        self.storage = power_cut(self.storage, self.random.randrange)

    def kill(self):
        """Kill the process (kill -9): written data is in the page cache, so everything answered survives."""
        for partition, part in self.readable():
            if self.log(partition).offline is None:
                part.written = self.log(partition).log_end_offset

    def read_log(self):
        """Let a reader read the log up to some batch."""
        number, part = self.some_partition()
        headers = [header for _, header in self.batches(self.log(number))]
        if headers:
            header = headers[self.random.randrange(len(headers))]
            ids = ids_of(log_reader.ids_of(self.log(number), 0, header.last_offset + 1))
            part.read.append((ids, header.leader_epoch))

    def batches(self, log):
        for segment in log.segments.all:
            yield from walk(segment.log.read(0, segment.size))

    def close(self):
        self.manager.close()
        self.kill()
        for _, part in self.readable():
            part.durable = max(part.durable, part.written)

    # --- steps ---------------------------------------------------------------------------------------------------

    def append(self):
        part_number, part = self.some_partition()
        batch = self.some_batch(part.sequences)
        self.trouble(part_number)
        self.put(part_number, batch)
        self.storage.free_bytes = None
        self.storage.failing_cuts.clear()

    def append_batches(self):
        """Write the batches of several producers together, as many as fit; each producer may have several of them."""
        part_number, part = self.some_partition()
        log = self.log(part_number)
        batches = self.some_batches(part, self.random.randrange(1, 6))
        self.trouble(part_number)
        sent = [bytearray(batch) for batch in batches]
        staged = [(memoryview(encoded), validate(memoryview(encoded), self.topic, self.broker)) for encoded in sent]
        offset, self.stamp.last = log.log_end_offset, []
        try:
            done, _ = log_appender.append_batches(log, staged, self.stamp, Now(self.now_ms - START_MS, self.now_ms))
        except ApiError:
            assert log.log_end_offset == offset
            done = []
        self.storage.free_bytes = None
        self.storage.failing_cuts.clear()
        ids_left = list(self.stamp.last)
        for number, (_, header) in enumerate(staged):
            own, ids_left = ids_left[: header.record_count], ids_left[header.record_count :]
            if len(own) < header.record_count:
                break
            content = bytes(sent[number][16:])
            part.attempts.setdefault(offset, []).append((content, own))
            if number < len(done):
                assert done[number] == (offset, offset + header.record_count - 1)
                part.acked[offset] = content, own, done[number][1]
                if header.producer_id >= 0:
                    after = header.base_sequence + header.record_count
                    part.sequences[header.producer_id] = after, bytes(batches[number]), offset
            offset += header.record_count
        if done:
            assert not ids_left and log.log_end_offset == done[-1][1] + 1
            self.manager.appended(log)
            self.syncs += self.manager.take_syncs()

    def some_batches(self, part, number):
        """Return batches of which a producer's continue each other, or repeat its sequence now and then."""
        sequences, batches = dict(part.sequences), []
        for _ in range(number):
            batch = self.some_batch(sequences)
            batches.append(batch)
            header = read_header(batch)
            if header.producer_id >= 0 and self.random.randrange(4):
                sequences[header.producer_id] = (header.base_sequence + header.record_count,)
        return batches

    def some_batch(self, sequences):
        random = self.random
        self.now_ms += random.randrange(3)
        records = [
            BatchRecord(
                i, random.randrange(50), None, bytes([random.randrange(256)]) * random.choice((3, 3, 60, 700, 5000))
            )
            for i in range(random.choice((1, 1, 1, 2, 40)))
        ]
        fields = {}
        if random.randrange(2):
            producer = random.randrange(6)
            fields = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": sequences.get(producer, (0,))[0],
                "transactional": producer >= TRANSACTIONAL_FROM,
            }
        return encode_batch(records, base_timestamp_ms=START_MS + random.randrange(-1000, 1000), **fields)

    def mark(self):
        """End a transaction, or repeat the marker of an ended one."""
        number, part = self.some_partition()
        log = self.log(number)
        producer, marker = self.random.randrange(TRANSACTIONAL_FROM, 6), Marker(bool(self.random.randrange(2)), 0)
        self.trouble(number)
        offset, self.stamp.last = log.log_end_offset, []
        content = bytes(encode_marker(producer, 0, marker, self.now_ms)[16:])
        try:
            log_appender.append_marker(log, producer, 0, marker, self.stamp, Now(self.now_ms - START_MS, self.now_ms))
        except ApiError:
            assert log.log_end_offset == offset
        else:
            part.acked[offset] = content, self.stamp.last, offset
            self.manager.appended(log)
            self.syncs += self.manager.take_syncs()
        part.attempts.setdefault(offset, []).append((content, self.stamp.last))
        self.storage.free_bytes = None
        self.storage.failing_cuts.clear()

    def trouble(self, partition):
        """Fill the disk, at times so that even cutting a file fails."""
        if not self.random.randrange(12):
            self.storage.free_bytes = self.random.randrange(8000)
            if not self.random.randrange(4):
                segment = self.log(partition).segments.active
                self.storage.failing_cuts.add(self.random.choice(segment.files).path)

    def put(self, partition, batch):
        log, part = self.log(partition), self.parts[partition]
        sent = bytearray(batch)
        header = validate(memoryview(sent), self.topic, self.broker)
        offset = log.log_end_offset
        self.stamp.last = []
        now = Now(self.now_ms - START_MS, self.now_ms)
        try:
            done = log_appender.append(log, memoryview(sent), header, self.stamp, now)
        except ApiError:
            assert log.log_end_offset == offset
            part.attempts.setdefault(offset, []).append((bytes(sent[16:]), self.stamp.last))
            return None
        if not done.duplicate:
            assert done.base_offset == offset and ids_of(done.runs) == self.stamp.last
            part.attempts.setdefault(offset, []).append((bytes(sent[16:]), self.stamp.last))
            part.acked[offset] = bytes(sent[16:]), self.stamp.last, done.last_offset
            if header.producer_id >= 0:
                part.sequences[header.producer_id] = header.base_sequence + header.record_count, bytes(batch), offset
            self.manager.appended(log)
            self.syncs += self.manager.take_syncs()
        return done

    def repeat(self):
        """A producer that missed the answer sends again, and receives the first ids (KIP-98)."""
        partition, part = self.some_partition()
        if part.sequences and self.log(partition).offline is None:
            _, batch, offset = part.sequences[self.random.choice(sorted(part.sequences))]
            done = self.put(partition, batch)
            assert done is not None, "a log that is being mended answers what it has"
            assert done.duplicate and done.base_offset == offset
            assert ids_of(done.runs) == part.acked[offset][1]

    def round(self):
        self.manager.syncs.start_round()
        self.syncs += self.manager.take_syncs()

    def run_sync(self):
        if not self.syncs:
            return
        sync = self.syncs.pop(0)
        if isinstance(sync, SyncLog) and not self.random.randrange(30):
            self.storage.failing_syncs.add(self.random.choice(sync.files).path)
        if isinstance(sync, SyncJournal) and not self.random.randrange(10):
            if self.random.randrange(2):
                self.storage.failing_syncs.add(sync.to.name)
            else:
                self.storage.free_bytes = self.random.randrange(2000)
        try:
            sync.run()
        except StorageError as error:
            self.manager.sync_failed(sync, error)
            assert not isinstance(sync, SyncLog) or sync.log.offline, "a failed sync takes its log offline"
        else:
            self.manager.synced(sync)
        self.storage.failing_syncs.clear()
        self.storage.free_bytes = None
        for log in self.manager.all():
            self.parts[log.partition].durable = max(log.durability.end_offset, self.parts[log.partition].durable)
        self.syncs += self.manager.take_syncs()

    def check_readers(self):
        """Readers find what they read and the log has lost. They continue from there."""
        for partition, part in self.readable():
            log = self.log(partition)
            ids = ids_of(log_reader.ids_of(log, 0, log.log_end_offset)) if log.log_end_offset else []
            readers, part.read = part.read, []
            for seen, epoch in readers:
                same = next((n for n, pair in enumerate(zip(seen, ids, strict=False)) if len(set(pair)) == 2), None)
                same = min(len(seen), len(ids)) if same is None else same
                closest_epoch, end = leader_epochs.end_of(log.epochs, epoch, log.log_end_offset)
                is_right = closest_epoch <= epoch and min(end, len(seen)) == same
                assert is_right, f"{log.name}: {same} are left, {closest_epoch, end}"
                self.truncations += same < min(len(seen), len(ids))
                if same == len(seen):
                    part.read.append((seen, epoch))

    # --- the oracle ----------------------------------------------------------------------------------------------

    def check(self, log, part):
        """Check the log found after a restart; the oracle continues from it."""
        batches, ids = {}, []
        for segment in log.segments.all:
            data = segment.log.read(0, segment.size)
            end = 0
            for position, header in walk(data):
                assert header.base_offset == segment.base_offset + sum(h.record_count for _, h in walk(data[:position]))
                batches[header.base_offset] = data[position + 16 : position + header.size], header
                end = position + header.size
            assert end == segment.size, f"{segment.log.path} does not end at a batch"
            entries = segment.ids.file.read(0, segment.ids.file.size)
            read = list(read_entries(entries, segment.base_offset))
            assert len(read) * ENTRY_BYTES == len(entries), f"{segment.ids.file.path} has an entry that is not valid"
            for entry in read:
                assert entry.offset == len(ids), f"ids of offset {entry.offset} stand where {len(ids)}'s belong"
                ids += range(entry.first_id, entry.first_id + entry.length)
            self.check_indexes(segment, data)
        assert len(ids) == log.log_end_offset, "each offset has one id"
        assert all(a < b for a, b in zip(ids, ids[1:], strict=False)), "ids rise strictly with the offset"
        must = max(part.durable, part.written)
        assert log.log_end_offset >= must, f"{log.name} ends at {log.log_end_offset}, it had {must}"
        assert log.last_id == (ids[-1] if ids else log.last_id)
        acked = {}
        for offset, (content, header) in batches.items():
            own = ids[offset : header.last_offset + 1]
            if header.last_offset < must:
                assert (content, own) == part.acked[offset][:2], f"offset {offset}: not what was acknowledged"
            assert (content, own) in part.attempts[offset], f"offset {offset} has ids it was not given"
            acked[offset] = content, own, header.last_offset
        self.check_lookups(log, batches, ids)
        self.check_transactions(log, batches)
        self.go_on(log, part, acked, batches)

    @staticmethod
    def check_transactions(log, batches):
        """Check that open and aborted transactions are exactly those of the batches and markers."""
        opened, aborted = {}, []
        for offset, (content, header) in sorted(batches.items()):
            if header.is_control:
                first = opened.pop(header.producer_id, None)
                if first is not None and not decode_marker(placed(content, header)).commit:
                    aborted.append((header.producer_id, first, offset, min(opened.values(), default=offset + 1)))
            elif header.is_transactional:
                opened.setdefault(header.producer_id, offset)
        assert log.producers.open_transactions() == opened
        assert log.last_stable_offset == min(opened.values(), default=log.log_end_offset)
        assert log_reader.aborted_transactions(log, 0, log.log_end_offset) == aborted

    def go_on(self, log, part, acked, batches):
        part.acked = acked
        part.attempts = {offset: [(content, own)] for offset, (content, own, _) in acked.items()}
        part.written = 0  # the next cut may still take these, because they need not be on the disk
        part.sequences = {}
        for offset, (content, header) in batches.items():
            if header.producer_id >= 0 and not header.is_control:
                batch = bytes(16) + content
                part.sequences[header.producer_id] = header.base_sequence + header.record_count, whole(batch), offset

    @staticmethod
    def check_indexes(segment, data):
        batches = dict(walk(data))
        entries = [segment.offsets[n] for n in range(len(segment.offsets))]
        assert entries == sorted(set(entries)), f"{segment.offsets.file.path} is not in order"
        for relative, position in entries:
            assert position in batches and batches[position].last_offset == segment.base_offset + relative
        times = [segment.times[n] for n in range(len(segment.times))]
        assert times == sorted(set(times)), f"{segment.times.file.path} is not in order"
        for time_ms, relative in times:
            before = [h.max_timestamp for h in batches.values() if h.last_offset <= segment.base_offset + relative]
            assert time_ms == max(before)

    def check_lookups(self, log, batches, ids):
        if not ids:
            return
        offset = self.random.randrange(len(ids))
        region = log_reader.read(log, offset, 1, True).records
        (_, header), *_ = walk(region.file.read(region.position, region.length))
        assert header.base_offset <= offset <= header.last_offset
        assert log_reader.offset_of_id(log, ids[offset]) == offset
        time_ms = START_MS + self.random.randrange(-1000, 1100)
        records = [r for content, h in batches.values() for r in decode_records(placed(content, h))]
        expected = next(((r.offset, r.timestamp_ms) for r in records if r.timestamp_ms >= time_ms), None)
        assert log_reader.offset_of_time(log, time_ms) == expected


def placed(content, header):
    """Return a batch with its first sixteen bytes restored."""
    return header.base_offset.to_bytes(8, "big") + header.batch_length.to_bytes(4, "big") + bytes(4) + content


def whole(batch):
    """Return a batch as a producer sends it: at offset 0, with its length."""
    return bytes(8) + (len(batch) - 12).to_bytes(4, "big") + batch[12:]
