"""What must hold of the replicas of one partition: the oracle of the world of replicas (replica_world.py).

    attempts     every batch that a leader stamped, by (offset, epoch): its content and ids. A log has nothing else.
    committed    the batches below the high watermark that a leader ever had. All replicas that are trusted have them.
"""

from broker.log import leader_epochs, log_reader
from broker.record.batch import walk
from broker.record.records import decode_records


class Attempt:
    """A batch that a leader tried to append."""

    def __init__(self, content, ids, header, records=(), marker=None):
        self.content = content
        """Its bytes after base offset, length and epoch."""
        self.ids = ids
        self.header = header
        self.keys = [record.key for record in records]
        self.marker = marker


class Partition:
    """One partition: what the controller decided, and what the oracle knows."""

    def __init__(self, number, nodes, *, compacts):
        self.number = number
        self.compacts = compacts
        self.epoch = 0
        self.leader = None
        self.isr = list(range(nodes))
        self.trusted = set(self.isr)
        self.attempts = {}
        self.committed = {}
        """(last offset, epoch) by base offset."""
        self.committed_end = 0
        self.last_id = -1
        """The last committed id."""
        self.log_start = 0
        """The highest start that any log of it ever had."""
        self.sent = {}
        """By producer: the last batch that was appended: (batch, offset, epoch)."""

    # --- writes --------------------------------------------------------------------------------------------------

    def tried(self, offset, epoch, attempt):
        self.attempts.setdefault((offset, epoch), []).append(attempt)

    def commit(self, log, replica, end):
        """Note that a leader's high watermark has come to `end`."""
        for base, last, epoch in replica.spans:
            if last < self.committed_end or base < self.committed_end:
                assert last < log.log_start_offset or self.committed.get(base, (last, epoch)) == (last, epoch), (
                    f"offset {base}: another batch was committed"
                )
                continue
            if last >= end:
                break
            if last >= log.log_start_offset:
                ids = _ids(log, base, last + 1)
                if ids and len(ids) == last + 1 - base:
                    assert ids[0] > self.last_id, f"offset {base} of epoch {epoch}: id {ids[0]} after {self.last_id}"
                    self.last_id = ids[-1]
            self.committed[base] = last, epoch
        self.committed_end = max(self.committed_end, end)

    def lost_by_a_power_cut_of_all(self, log, replica):
        """Forget what the untrusted leader has lost (rule W4), and remember the batches that it has deleted.

        A broker that is killed before the new start of its log is on the disk shows deleted batches again.
        """
        own = {base: (last, epoch) for base, last, epoch in replica.spans}
        start = log.log_start_offset
        self.committed = {
            base: span for base, span in self.committed.items() if own.get(base) == span or span[0] < start
        }
        self.committed_end = min(self.committed_end, replica.end)
        self.last_id = min(self.last_id, log.last_id)

    # --- one log -------------------------------------------------------------------------------------------------

    def check_start(self, log, replica, *, power):
        """Check the log that a start has found, and take it as what the log must be from now on."""
        end, least = log.log_end_offset, replica.least_end(power=power)
        assert end >= least, f"{log.name} ends at {end}, it had {least}"
        spans = [(header.base_offset, header.last_offset, header.leader_epoch) for header in headers_of(log)]
        before = replica.spans
        if replica.cut is not None and not spans and log.log_start_offset == end == replica.cut[0]:
            replica.begin_anew(end)
        else:
            tail = [span for span in spans if span[0] >= replica.end and (span[0], span[2]) in replica.unfinished]
            replica.spans = [span for span in before if span[1] < end] + tail
            is_cut_within = spans and any(span[0] < end <= span[1] for span in before)
            assert not is_cut_within, f"{log.name} ends inside a batch"
            replica.end = end
        replica.cut = None
        replica.on_disk = min(replica.on_disk, end)
        replica.unfinished = {item for item in replica.unfinished if item[0] >= end}
        self.check(log, replica)

    def check(self, log, replica):
        """Check a log against the batches that it must have, byte by byte and id by id."""
        name, end = f"{log.name} of {replica.number}", log.log_end_offset
        assert end == replica.end, f"{name} ends at {end}, not at {replica.end}"
        spans = {}
        ids = _ids_by_offset(log)
        for segment in log.segments.all:
            data = segment.log.read(0, segment.size)
            for position, header in walk(data):
                span = header.base_offset, header.last_offset, header.leader_epoch
                spans[header.base_offset] = span
                self._check_batch(name, data, position, header, ids)
        # A follower may begin after the gap that its leader's cleaner has left.
        start_max = max(self.log_start, min(spans, default=0) if self.compacts else 0)
        assert log.log_start_offset <= start_max, f"{name} begins at {log.log_start_offset}"
        assert not ids or sorted(ids.values()) == [ids[offset] for offset in sorted(ids)], f"{name}: ids do not rise"
        must = {span[0]: span for span in replica.spans}
        more = [span for base, span in spans.items() if must.get(base) != span]
        assert not more, f"{name} has {more}, which it must not have"
        if not self.compacts:
            missing = [span for span in replica.spans if span[1] >= log.log_start_offset and span[0] not in spans]
            assert not missing, f"{name} lacks {missing}"
        elif replica.end >= replica.gaps_below:
            self._check_keys(name, log, replica, spans, ids)
        self._check_epochs(name, log, spans)
        if replica.end >= replica.gaps_end:
            self._check_producers(name, log, replica, spans)

    def _check_batch(self, name, data, position, header, ids):
        at = header.base_offset, header.leader_epoch
        own = [ids.get(offset) for offset in range(header.base_offset, header.last_offset + 1)]
        content = data[position + 16 : position + header.size]
        attempts = self.attempts.get(at, ())
        assert any(own == attempt.ids for attempt in attempts), (
            f"{name}: offset {at[0]} of epoch {at[1]} has ids {own[:2]}, it was given "
            f"{[attempt.ids[:2] for attempt in attempts]}"
        )
        if any(content == attempt.content for attempt in attempts):
            return
        assert self.compacts, f"{name}: offset {at[0]} of epoch {at[1]} is not what was written there"
        records = {(record.offset, record.key, record.value) for record in decode_records(data, position)}
        assert any(records <= _records(attempt, at[0]) for attempt in attempts), (
            f"{name}: offset {at[0]} of epoch {at[1]} has records that were not written there"
        )

    def _check_keys(self, name, log, replica, spans, ids):
        """Check that no key has lost its last record."""
        latest, opened = {}, {}
        for base, _, epoch in replica.spans:
            attempt = self.attempts[base, epoch][-1]
            header = attempt.header
            records = {key: base + n for n, key in enumerate(attempt.keys)}
            if attempt.marker is not None:
                written = opened.pop(header.producer_id, {})
                if attempt.marker.commit:
                    for key, offset in written.items():
                        latest[key] = max(offset, latest.get(key, -1))
            elif header.is_transactional:
                opened.setdefault(header.producer_id, {}).update(records)
            else:
                for key, offset in records.items():
                    latest[key] = max(offset, latest.get(key, -1))
        lost = {key: offset for key, offset in latest.items() if offset >= log.log_start_offset and offset not in ids}
        assert not lost, f"{name}: these keys have lost their last record: {lost}"

    def _check_epochs(self, name, log, spans):
        """Check that each epoch with a batch is known from its first batch on."""
        assert log.epochs == sorted(set(log.epochs)), f"{name}: epochs {log.epochs}"
        firsts = {}
        for base, last, epoch in sorted(spans.values()):
            if last >= log.log_start_offset:
                firsts.setdefault(epoch, base)
        starts = dict(log.epochs)
        for epoch, base in firsts.items():
            begun = starts.get(epoch)
            # A start that was on its way to the checkpoint may be in the file of epochs already.
            is_right = begun is not None and base <= begun <= max(base, self.log_start) or self.compacts
            assert begun is not None and is_right, f"{name}: epoch {epoch} begins at {begun}, not {base}: {log.epochs}"

    def _check_producers(self, name, log, replica, spans):
        """Check the next sequence of each producer, and the open and aborted transactions."""
        active_producers = {active.producer_id: active for active in log.producers.active()}
        last, opened, aborted = {}, {}, []
        for base, last_offset, epoch in replica.spans:
            attempt = self.attempts[base, epoch][-1]
            header = attempt.header
            if attempt.marker is not None:
                first = opened.pop(header.producer_id, None)
                if first is not None and not attempt.marker.commit:
                    aborted.append((header.producer_id, first, base, min(opened.values(), default=base + 1)))
            elif header.producer_id >= 0:
                if last_offset >= log.log_start_offset:
                    last[header.producer_id] = header.base_sequence + header.record_count - 1
                if header.is_transactional:
                    opened.setdefault(header.producer_id, base)
        for producer_id, sequence in last.items():
            last_sequence = active_producers[producer_id].last_sequence if producer_id in active_producers else None
            is_right = last_sequence == sequence
            assert is_right, f"{name}: producer {producer_id} is at sequence {last_sequence}, not {sequence}"
        if log.log_start_offset == 0 and not self.compacts:
            assert log.producers.open_transactions() == opened, f"{name}: open transactions"
            own_aborted = log_reader.aborted_transactions(log, 0, log.log_end_offset)
            assert own_aborted == aborted, f"{name}: aborted transactions {own_aborted}, not {aborted}"

    # --- all logs ------------------------------------------------------------------------------------------------

    def check_committed(self, log, replica):
        """Check that a trusted replica has all that is committed."""
        own = {base: (last, epoch) for base, last, epoch in replica.spans}
        start = max(log.log_start_offset, self.log_start)
        for base, span in self.committed.items():
            if span[0] >= start:
                assert own.get(base) == span, f"{log.name} of {replica.number} lost committed offset {base}: {span}"

    def check_equal(self, leader, follower, replicas):
        """Check that a follower's log equals the leader's."""
        start = max(leader.log_start_offset, follower.log_start_offset)
        ours, theirs = ([span for span in replica.spans if span[1] >= start] for replica in replicas)
        assert ours == theirs, f"{leader.name}: {ours} and {theirs}"
        assert leader.log_end_offset == follower.log_end_offset
        assert leader.last_id == follower.last_id
        if self.compacts or not ours:
            return
        epochs = [leader_epochs.from_offset(log.epochs, start) for log in (leader, follower)]
        assert epochs[0] == epochs[1], f"{leader.name}: epochs {epochs}"
        if leader.log_start_offset == follower.log_start_offset == 0:
            assert _producers(leader) == _producers(follower)


def _producers(log):
    return sorted(
        (active.producer_id, active.epoch, active.last_sequence, active.coordinator_epoch, active.first_offset)
        for active in log.producers.active()
    )


def headers_of(log):
    return [header for segment in log.segments.all for _, header in segment.batches()]


def _ids(log, first, end):
    return [id for start, count in log_reader.ids_of(log, first, end) for id in range(start, start + count)]


def _ids_by_offset(log):
    return {
        entry.offset + n: entry.first_id + n
        for segment in log.segments.all
        for entry in segment.ids.entries()
        for n in range(entry.length)
    }


def _records(attempt, base):
    header = attempt.header
    batch = base.to_bytes(8, "big") + header.batch_length.to_bytes(4, "big") + bytes(4) + attempt.content
    return {(record.offset, record.key, record.value) for record in decode_records(batch, 0)}
