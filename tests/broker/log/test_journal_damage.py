"""Damage in a journal: a start names and keeps a file whose synced bytes cannot be read. A torn round is no damage."""

import pytest

from broker.log.io_jobs import SyncJournal
from broker.log.journal import FoundJournal
from broker.log.journal_format import DAMAGED, JOURNAL_HEADER_BYTES, ROUND_HEADER_BYTES, SUFFIX, Damage
from tests.broker.log.conftest import append, uuid_of
from tests.broker.log.test_journal import JOURNAL, Broker, copy_of, entries, journal_end, put

SECOND = f"{2:020d}{SUFFIX}"


def cut_logs(storage, partitions=2):
    """Take all unsynced bytes of the logs, as a power cut may."""
    for partition in range(partitions):
        for suffix in (".log", ".idindex"):
            put(storage, f"flights-{partition}/{0:020d}{suffix}", b"")
    return storage


def flipped(storage, position, path=JOURNAL):
    """Return a copy of the disk after a power cut, with one bit of the journal flipped."""
    other = cut_logs(copy_of(storage))
    data = storage.files[path].data
    put(other, path, data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
    return other


@pytest.fixture
def crashed():
    """Return the storage of a broker that crashed after three rounds for each of two partitions, in turn."""
    broker = Broker()
    for value in (b"a", b"b", b"c" * 500):
        for partition in (0, 1):
            broker.append(value, partition=partition)
    return broker.storage


def end_of(entry):
    """Return the position in the journal's file where a batch ends."""
    return entry.position + entry.header.size


def end_in(storage, path, partition):
    """Return the position where the last batch of a partition in a file of the journal ends."""
    return [end_of(entry) for entry in entries(storage, partition) if entry.file.path == path][-1]


def ends(broker):
    return [broker.log(partition).log_end_offset for partition in (0, 1)]


def test_a_flipped_bit_costs_the_record_that_has_it_and_what_follows_it_in_its_log(crashed):
    """Other logs lose nothing. Only damage in the last round cannot be told from the end that a crash leaves."""
    last_round = end_of(entries(crashed, 0)[-1])
    seen = set()
    for position in range(JOURNAL_HEADER_BYTES, journal_end(crashed, 1)):
        storage = flipped(crashed, position)
        log_ends = ends(again := Broker(storage))
        assert again.manager.offline == {} and not storage.exists(JOURNAL)
        is_last = position >= last_round
        assert storage.exists(JOURNAL + DAMAGED) == (not is_last)
        named = [line for line in again.lines if line.startswith(f"{JOURNAL} is damaged from byte ")]
        assert len(named) == (not is_last), position
        gaps = [line for line in again.lines if "which the damaged journal lacks" in line]
        assert len(gaps) == sum(end < 2 for end in log_ends)
        seen.add(tuple(log_ends))
    assert seen == {(3, 3), (0, 3), (3, 0), (1, 3), (3, 1), (2, 3), (3, 2)}, "damaged headers of rounds cost nothing"


def test_the_line_names_the_bytes_and_the_partitions_as_far_as_they_are_known(crashed):
    batch = entries(crashed, 1)[0]
    again = Broker(storage := flipped(crashed, end_of(batch) - 1))
    start, end = batch.position - 44, end_of(batch)
    assert [line for line in again.lines if "recovered" not in line] == [
        f"{JOURNAL} is damaged from byte {start} to {end}: these bytes were on the disk before the crash, and cannot "
        f"be read. Batches there seem to be of flights-1. The file is kept as {JOURNAL}{DAMAGED}",
        "partition flights-1 ends at offset 0, which the damaged journal lacks; its batches from offset 1 to 2 are "
        f"only in {JOURNAL}{DAMAGED}",
    ]
    assert JOURNAL not in storage.files and (JOURNAL + DAMAGED) in storage.power_cut(lambda n: 0).files


def test_a_record_that_the_log_has_is_not_missed(crashed):
    """After a kill the log's own files have the batch, so the batches behind the damage follow it."""
    batch = entries(crashed, 0)[1]
    storage = flipped(crashed, batch.position)
    for suffix in (".log", ".idindex"):
        path = f"flights-0/{0:020d}{suffix}"
        put(storage, path, crashed.files[path].data)
    again = Broker(storage)
    assert ends(again) == [3, 3] and storage.exists(JOURNAL + DAMAGED)


def test_a_page_of_zeros_costs_the_logs_what_it_had(crashed):
    """The lengths of the records are damaged too, so reading continues at the next round."""
    first, second = entries(crashed, 0)[:2]
    storage = cut_logs(copy_of(crashed))
    data = bytearray(storage.files[JOURNAL].data)
    begin = first.position - 40
    data[begin : second.position] = bytes(second.position - begin)
    put(storage, JOURNAL, data)
    again = Broker(storage)
    assert ends(again) == [0, 0] and sum("which the damaged journal lacks" in line for line in again.lines) == 2


def test_a_round_that_a_crash_has_torn_is_no_damage_although_a_record_of_it_can_be_read():
    """The disk may write the pages of a round in any order."""
    broker = Broker()
    broker.append(b"answered")
    at = journal_end(broker.storage)
    for partition in (0, 1):
        append(broker.log(partition), b"not answered", worker=broker.worker)
        broker.manager.appended(broker.log(partition))
    broker.run(SyncJournal)
    assert len(entries(broker.storage, 0)) == 2 and len(entries(broker.storage, 1)) == 1
    storage = flipped(broker.storage, at + ROUND_HEADER_BYTES + 60)
    again = Broker(storage)
    assert ends(again) == [1, 0] and not storage.exists(JOURNAL + DAMAGED)
    assert not [line for line in again.lines if "damage" in line]


def test_damage_in_the_last_round_of_a_file_is_known_by_the_next_file(crashed):
    """The first round of a file says how much of the file before was on the disk."""
    broker = Broker(copy_of(crashed))
    for partition in (0, 1):
        broker.append(b"d", partition=partition)
    numbered = FoundJournal(broker.storage).numbers
    assert numbered == [2]
    broker.manager.syncs.start_round()  # begins another file
    broker.append(b"e")
    storage = flipped(broker.storage, end_in(broker.storage, SECOND, 1) - 1, SECOND)
    for partition in (0, 1):
        for suffix in (".log", ".idindex"):
            path = f"flights-{partition}/{0:020d}{suffix}"
            put(storage, path, broker.storage.files[path].synced)
    again = Broker(storage)
    assert ends(again) == [5, 3] and storage.exists(SECOND + DAMAGED)
    assert "Batches there seem to be of flights-1" in "".join(again.lines)


def test_a_file_that_lost_its_end_is_damaged():
    broker = Broker()
    broker.append(b"a")
    broker.append(b"b")
    broker.manager.syncs.start_round()
    broker.append(b"c")
    storage = cut_logs(copy_of(broker.storage))
    put(storage, JOURNAL, storage.files[JOURNAL].data[: entries(storage, 0)[1].position])
    again = Broker(storage)
    assert ends(again) == [1, 0] and storage.exists(JOURNAL + DAMAGED) and not storage.exists(SECOND)


def test_a_damaged_file_is_kept_under_a_name_that_no_start_reads_and_no_journal_gets(crashed):
    """The offsets past the gap are given again, and a start that read the file would call the log damaged."""
    storage = flipped(crashed, entries(crashed, 0)[0].position)
    kept = bytes(storage.files[JOURNAL].data)
    for number, value in enumerate((b"x", b"y"), 2):
        broker = Broker(storage)
        assert broker.manager.offline == {}
        broker.append(value)
        assert FoundJournal(storage).numbers == [number]
        storage = storage.power_cut(lambda n: 0)
    assert ends(again := Broker(storage)) == [2, 3]
    assert bytes(storage.files[JOURNAL + DAMAGED].data) == kept
    assert not [line for line in again.lines if "damage" in line], "it was named once"


def test_a_damaged_file_that_an_offline_log_needs_stays_with_the_records_of_that_log(crashed):
    """A copy of the whole file is set aside. The rewritten file has no damage."""
    storage = flipped(crashed, entries(crashed, 0)[0].position)
    storage.failing_opens.add(f"flights-1/{0:020d}.log")
    first = Broker(storage)
    assert list(first.manager.offline) == ["flights-1"]
    assert storage.exists(JOURNAL + DAMAGED)
    journal = FoundJournal(storage)
    assert not journal.damages and len(journal.entries(uuid_of(1), 1)) == 3 and not journal.entries(uuid_of(1), 0)
    storage.failing_opens.clear()
    assert ends(Broker(storage)) == [0, 3]
    assert not storage.exists(JOURNAL) and storage.exists(JOURNAL + DAMAGED)


def test_a_kept_file_that_was_written_anew_is_not_shorter_than_a_later_file_says():
    broker = Broker()
    for partition in (0, 1):
        broker.append(b"a", partition=partition)
    broker.manager.syncs.start_round()
    broker.append(b"b", partition=1)
    storage = cut_logs(copy_of(broker.storage))
    storage.failing_opens.add(f"flights-1/{0:020d}.log")
    Broker(storage)
    storage.failing_opens.clear()
    journal = FoundJournal(storage)
    assert journal.numbers == [1, 2] and not journal.damages
    assert ends(again := Broker(storage)) == [1, 2]
    assert not [line for line in again.lines if "damage" in line]


@pytest.mark.parametrize("name", ["copy.journal", "1.journal", f"-{1:019d}.journal", f"{'٣' * 20}.journal"])
def test_a_file_whose_name_is_no_number_is_left_alone(crashed, name):
    put(crashed, name, b"a copy of somebody's")
    assert ends(Broker(crashed)) == [3, 3] and bytes(crashed.files[name].data) == b"a copy of somebody's"


def test_batches_that_look_like_the_header_of_a_round_prove_nothing():
    """A client may send the bytes of a journal, but the header names another position."""
    broker = Broker()
    broker.append(b"a")
    at = journal_end(broker.storage)
    broker.append(bytes(broker.storage.files[JOURNAL].data[JOURNAL_HEADER_BYTES:at]) * 3)
    storage = flipped(broker.storage, at + ROUND_HEADER_BYTES + 60)
    again = Broker(storage)
    assert ends(again) == [1, 0] and not storage.exists(JOURNAL + DAMAGED)


def test_damage_is_found_across_the_blocks_that_a_search_reads(crashed, monkeypatch):
    """Here each block ends at another byte of the next round's header."""
    record = entries(crashed, 0)[0].position - 44
    position = record + 4  # the record's length, so that the next round is searched
    damages = set()
    for size in range(9, 90):
        monkeypatch.setattr("broker.log.journal_format._SCAN_BYTES", size)
        damages.add(str(FoundJournal(flipped(crashed, position)).damages))
    (damage,) = damages
    assert damage == str({JOURNAL: [Damage(record, end_of(entries(crashed, 0)[0]), (uuid_of(1), 0))]})
