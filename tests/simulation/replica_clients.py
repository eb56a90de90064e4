"""The clients of the world of replicas (replica_world.py): producers, consumers, and an administrator."""

from broker.log import log_appender, log_reader
from broker.log.validation.batch import validate
from broker.record.batch import read_header, walk
from broker.record.control import Marker, encode_marker
from broker.record.records import BatchRecord, encode_batch
from broker.wire.errors import ApiError
from tests.broker.log.conftest import START_MS
from tests.simulation.replica_oracle import Attempt

PRODUCERS = 6
TRANSACTIONAL_FROM = 4  # producers 4 and 5 write in transactions
KEYS = [b"k%d" % number for number in range(5)]


class ReplicaClients:
    """The steps of clients, for a world that knows which broker leads."""

    def writer(self, partition):
        """Return a broker that leads, by what it knows: perhaps not the newest leader."""
        leaders = [node for node in self.nodes if self.leads(node, partition) is not None]
        return self.random.choice(leaders) if leaders else None

    def append(self, node, partition):
        role = self.leads(node, partition)
        if role is None or role.log.durability.mending:
            return
        self.ms += self.random.randrange(3)
        kind = self.random.randrange(12)
        if not self.random.randrange(14):
            node.trouble([file.path for file in role.log.segments.active.files])
        try:
            if kind == 0:
                self.mark(node, partition, role)
            elif kind == 1:
                self.repeat(node, partition, role)
            else:
                batches = [self.some_batch(role.log) for _ in range(self.random.choice((1, 1, 3)))]
                self.put(node, partition, role, batches)
        finally:
            node.heal_disk()
        if role.log.offline is None:
            node.manager.appended(role.log)
            node.take_jobs()

    def some_batch(self, log):
        random = self.random
        records = []
        for n in range(random.choice((1, 1, 1, 2, 12))):
            self.number += 1
            value = b"%d" % self.number + bytes(random.choice((0, 3, 60, 60, 700)))
            records.append(BatchRecord(n, 0, random.choice(KEYS), value))
        fields = {}
        if random.randrange(2):
            producer = random.randrange(PRODUCERS)
            last_sequences = {active.producer_id: active.last_sequence for active in log.producers.active()}
            fields = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": last_sequences.get(producer, -1) + 1,
                "transactional": producer >= TRANSACTIONAL_FROM,
            }
        return encode_batch(records, base_timestamp_ms=START_MS + self.ms, **fields), records

    def put(self, node, partition, role, batches):
        """Append batches of different producers with one write."""
        log, replica = role.log, node.replicas[partition.number]
        producers = set()
        sent = []
        for batch, records in batches:
            producer = read_header(batch).producer_id
            if producer < 0 or producer not in producers:
                producers.add(producer)
                sent.append((bytearray(batch), records))
        staged = [(memoryview(encoded), validate(memoryview(encoded), log.config, node.config)) for encoded, _ in sent]
        offset, node.stamp.last = log.log_end_offset, []
        is_done = False
        try:
            done, _ = log_appender.append_batches(log, staged, node.stamp, node.now(self.ms))
            is_done = len(done) == len(staged)
        except ApiError as error:
            self.note(f"{node.number} refuses an append: {error}")
        finally:
            ids_left = list(node.stamp.last)
            for (data, records), (_, header) in zip(sent, staged, strict=True):
                own, ids_left = ids_left[: header.record_count], ids_left[header.record_count :]
                if len(own) < header.record_count:
                    break
                attempt = Attempt(bytes(data[16:]), own, header, records)
                self.tried(replica, partition, role, offset, attempt, is_done=offset < log.log_end_offset)
                if is_done and header.producer_id >= 0:
                    partition.sent[header.producer_id] = bytes(data), offset, role.epoch, own
                offset += header.record_count

    def tried(self, replica, partition, role, offset, attempt, *, is_done):
        partition.tried(offset, role.epoch, attempt)
        if is_done:
            self.counts["appended"] += 1
            replica.spans.append((offset, offset + len(attempt.ids) - 1, role.epoch))
            replica.end = offset + len(attempt.ids)
        else:
            replica.unfinished.add((offset, role.epoch))

    def mark(self, node, partition, role):
        log, stamp = role.log, node.stamp
        producer = self.random.randrange(TRANSACTIONAL_FROM, PRODUCERS)
        marker = Marker(bool(self.random.randrange(2)), 0)
        offset, stamp.last, now = log.log_end_offset, [], node.now(self.ms)
        batch = encode_marker(producer, 0, marker, now.wall_ms)
        try:
            log_appender.append_marker(log, producer, 0, marker, stamp, now)
        except ApiError as error:
            self.note(f"{node.number} refuses a marker: {error}")
        finally:
            if stamp.last:
                attempt = Attempt(bytes(batch[16:]), stamp.last, read_header(batch), (), marker)
                is_done = log.log_end_offset > offset
                self.tried(node.replicas[partition.number], partition, role, offset, attempt, is_done=is_done)

    def repeat(self, node, partition, role):
        """A producer that missed the answer sends again, perhaps to another leader, and is told the first ids (I5)."""
        if not partition.sent:
            return
        batch, offset, epoch, ids = partition.sent[self.random.choice(sorted(partition.sent))]
        header, log = read_header(batch), role.log
        sequences = {active.producer_id: active.last_sequence for active in log.producers.active()}
        span = offset, offset + header.record_count - 1, epoch
        is_last = sequences.get(header.producer_id) == header.base_sequence + header.record_count - 1
        if not is_last or span not in node.replicas[partition.number].spans or offset < log.log_start_offset:
            return
        data = memoryview(bytearray(bytes(8) + batch[8:12] + bytes(4) + batch[16:]))
        done = log_appender.append(
            log, data, validate(data, log.config, node.config), node.stamp, node.now(self.ms)
        )
        repeated_ids = [first + n for first, count in done.runs for n in range(count)]
        assert done.duplicate and done.base_offset == offset, "a batch that is in the log was appended again"
        is_same = repeated_ids == ids or self.compacts
        assert is_same, f"a repeated batch is told the ids {repeated_ids}, its first were {ids}"
        self.counts["duplicates"] += 1

    def delete_records(self, partition):
        for node in self.nodes:
            role = self.leads(node, partition)
            if role is not None and role is self.current_leader(partition):
                low, high = role.log.log_start_offset, role.log.high_watermark
                if high > low:
                    offset = high if not self.random.randrange(4) else self.random.randrange(low, high + 1)
                    self.touch(node, lambda: self.delete_below(node, partition, role.log, offset))

    def delete_below(self, node, partition, log, offset):
        partition.log_start = max(partition.log_start, offset)
        node.manager.delete_records(log, offset, node.now(self.ms))
        self.note_starts()
        node.take_jobs()

    def consume(self, node, partition):
        """Let a consumer read below the high watermark: it sees committed records only."""
        role = self.leads(node, partition)
        if role is None or self.random.randrange(4):
            return
        log = role.log
        offset = self.random.randrange(log.log_start_offset, max(log.high_watermark, log.log_start_offset) + 1)
        try:
            records = log_reader.read(log, offset, 3000, True).records
        except ApiError:
            return
        if records:
            for _, header in walk(records.file.read(records.position, records.length)):
                span = header.last_offset, header.leader_epoch
                assert partition.committed.get(header.base_offset) == span, (
                    f"a consumer of {node.number} sees offset {header.base_offset} of epoch {span[1]}, not committed"
                )
