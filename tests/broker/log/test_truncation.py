"""Truncation of followers' logs: the new log has exactly what was below the cut; nobody uses the old one (rule T2)."""

import pytest

from broker.log import checkpoint, log_reader
from broker.log.cut_log import CutLog, PrepareCut
from broker.log.io_jobs import SyncJournal, WriteCheckpoint
from broker.log.leader_epochs import cut, truncated
from broker.wire.errors import ApiError, ErrorCode
from tests.broker.log.conftest import uuid_of
from tests.broker.log.truncation_world import Broker, bounds, contents, expected, fill, filled, ids

ENDS = bounds(fill(Broker()))


def written(broker):
    return checkpoint.decode(bytes(broker.storage.files["checkpoint"].data))


def test_truncation_drops_the_epochs_that_begin_at_or_past_the_end():
    """Recovery keeps the newest epoch at the cut; with a follower, its leader would diverge there for ever."""
    assert truncated([(0, 0), (3, 10)], 8) == truncated([(0, 0), (3, 8)], 8) == [(0, 0)]
    assert cut([(0, 0), (3, 10)], 8) == [(0, 0), (3, 8)]
    assert truncated([(0, 0), (3, 7)], 8) == [(0, 0), (3, 7)]
    assert truncated([(3, 8)], 8) == []


@pytest.mark.parametrize("checkpoint_at", [None, 5, 16, 30])
@pytest.mark.parametrize("end", [0, *ENDS])
def test_a_truncated_log_is_as_if_it_had_never_had_more(end, checkpoint_at):
    broker = filled(checkpoint_at=checkpoint_at)
    before = broker.log()
    outcome = broker.truncate(end)
    assert outcome.log is broker.log() is not before, outcome.reason
    assert (contents(outcome.log), outcome.log.epochs) == expected(end)
    again = Broker(broker.storage)
    assert (contents(again.log()), again.log().epochs) == expected(end) and not again.lines


def test_a_cut_inside_a_batch_is_rounded_down_to_the_batch():
    for offset in range(max(ENDS)):
        broker = filled()
        broker.truncate(offset)
        end = max([0, *(end for end in ENDS if end <= offset)])
        assert (contents(broker.log()), broker.log().epochs) == expected(end)


@pytest.mark.parametrize("offset", [ENDS[-1], 1 << 40])
def test_a_cut_at_or_past_the_end_takes_the_epoch_that_has_no_batch(offset):
    broker = filled()
    before = contents(broker.log())
    assert broker.log().epochs[-1] == (8, ENDS[-1])
    assert broker.truncate(offset).log.epochs[-1] == (6, 24)
    assert contents(broker.log()) == before
    assert Broker(broker.storage).log().epochs[-1] == (6, 24)


@pytest.mark.parametrize("offset", [40, 3])
def test_a_log_begins_anew_with_nothing_at_an_offset_above_or_inside_it(offset):
    broker = filled(checkpoint_at=16)
    broker.manager.truncate({("flights", 0): offset}, anew=True)
    broker.settle()
    for node in (broker, Broker(broker.storage)):
        log = node.log()
        assert (log.log_start_offset, log.log_end_offset, log.last_id) == (offset, offset, -1)
        assert (ids(log), log.epochs) == ([], [])
    assert broker.append(b"a").base_offset == offset


def test_a_log_that_begins_anew_keeps_the_last_id_before_its_start_over_a_crash():
    """Rule I7: it may lead before it has copied a record."""
    broker = filled()
    broker.manager.truncate({("flights", 0): 40}, anew=True, last_ids={("flights", 0): 1 << 60})
    broker.settle()
    assert broker.log().last_id == Broker(broker.storage).log().last_id == 1 << 60


def test_a_log_truncated_below_its_start_begins_anew():
    broker = filled()
    broker.manager.delete_records(broker.log(), 12, broker.now)
    log = broker.truncate(7).log
    assert (log.log_start_offset, log.log_end_offset, log.epochs) == (7, 7, [])


def test_a_log_that_begins_inside_the_batch_that_is_cut_begins_anew_at_its_start():
    broker = filled()
    start = ENDS[1] + 1
    assert start not in ENDS
    broker.manager.delete_records(broker.log(), start, broker.now)
    log = broker.truncate(start).log
    assert (log.log_start_offset, log.log_end_offset, ids(log)) == (start, start, [])


@pytest.mark.parametrize("start", range(1, max(ENDS)))
def test_a_log_that_is_cut_at_its_start_knows_that_no_id_before_is_greater(start):
    """Rule I7: its leader may have the older records still, and no others. Then it is in sync, and may lead."""
    broker = filled()
    written_ids = ids(broker.log())
    broker.manager.delete_records(broker.log(), start, broker.now)
    broker.round()
    broker.truncate(start)
    for node in (broker, Broker(broker.storage)):
        log = node.log()
        assert (log.log_start_offset, log.log_end_offset) == (start, start)
        assert written_ids[start - 1] <= log.last_id < written_ids[start]


def test_a_truncation_keeps_the_start_of_a_log_whose_older_records_were_deleted():
    broker = filled(checkpoint_at=16)
    broker.manager.delete_records(broker.log(), 12, broker.now)
    log = broker.truncate(19).log
    assert (log.log_start_offset, log.log_end_offset) == (12, 19)
    again = Broker(broker.storage).log()
    assert contents(again) == contents(log)


def test_a_truncated_log_takes_batches_and_recovers_them():
    broker = filled(checkpoint_at=16)
    broker.truncate(13)
    broker.log().start_leader_epoch(9)
    assert broker.append(b"new").base_offset == 13
    again = Broker(broker.storage).log()
    assert contents(again) == contents(broker.log()) and again.epochs == [(0, 0), (3, 9), (9, 13)]


# --- while it lasts --------------------------------------------------------------------------------------------------


def test_while_a_log_is_truncated_clients_are_told_to_try_again():
    broker = filled()
    old = broker.log()
    broker.manager.truncate({("flights", 0): 13})
    with pytest.raises(ApiError, match="flights-0 is being truncated to offset 13") as refused:
        broker.log()
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broker.manager.find("flights", 0) is None and not broker.manager.is_offline("flights", 0)
    with pytest.raises(ApiError, match="is being truncated"):
        log_reader.read(old, 0, 100, True)
    broker.settle()
    assert not broker.manager.has(old) and broker.manager.has(broker.log())


def test_the_waiters_of_the_old_log_are_told():
    broker = filled()
    old = broker.log()
    broker.manager.truncate({("flights", 0): 13})
    assert broker.manager.next_deadline_ms(broker.now.ms) <= broker.now.ms
    assert old in broker.manager.tick(broker.now)


def test_a_log_that_is_being_truncated_is_not_truncated_again():
    broker = filled()
    broker.manager.truncate({("flights", 0): 13})
    with pytest.raises(ApiError, match="being truncated to offset 13"):
        broker.manager.truncate({("flights", 0): 5})
    broker.settle()
    assert broker.log().log_end_offset == 13


def test_settings_changed_meanwhile_hold_for_the_new_log():
    broker = filled()
    broker.manager.truncate({("flights", 0): 13})
    changed = broker.topic.__class__(segment_bytes=1 << 20)
    broker.manager.configure({"flights": changed})
    broker.settle()
    assert broker.log().config is changed and broker.log().waiting_acks == changed.waiting_acks


def test_a_topic_that_is_deleted_while_its_log_is_truncated_is_gone():
    """At each step: no job of the truncation may make the directory again."""
    for done in range(20):
        broker = filled(checkpoint_at=16)
        broker.manager.truncate({("flights", 0): 13})
        for _ in range(done):
            jobs = broker.manager.take_syncs()
            if jobs:
                broker.run(jobs)
        jobs = broker.manager.take_syncs()
        put_away = broker.manager.delete({"flights": [0]})
        assert put_away.is_ready == all(not isinstance(job, (PrepareCut, CutLog)) for job in jobs)
        broker.run(jobs)
        assert put_away.is_ready
        broker.run([put_away])
        broker.settle()
        assert not broker.storage.list("flights-0") and broker.manager.all() == []
        assert broker.manager.take_truncated() == [] or done > 2
        assert "flights-0" not in written(broker)


# --- the order of its steps ------------------------------------------------------------------------------------------


def kinds(jobs):
    return [type(job).__name__ for job in jobs]


def test_a_truncation_waits_for_the_running_sync_of_its_log():
    broker = filled()
    broker.log().ask_sync(soon=True)
    running = broker.manager.take_syncs()
    assert kinds(running) == ["SyncLog"]
    broker.manager.truncate({("flights", 0): 13})
    assert broker.manager.take_syncs() == []
    broker.run(running)
    assert kinds(broker.manager.take_syncs()) == ["PrepareCut"]


def test_a_truncation_waits_for_the_running_round_of_the_journal():
    """Its entries may still go to the older file, and must be in none that counts."""
    broker = filled(partitions=2)
    for partition in (0, 1):
        broker.write(b"a", partition=partition)
    jobs = broker.manager.take_syncs()
    (round,) = [job for job in jobs if isinstance(job, SyncJournal)]
    broker.manager.truncate({("flights", 0): 13})
    broker.run(broker.manager.take_syncs())
    assert not any(isinstance(job, WriteCheckpoint) for job in broker.manager.take_syncs())
    broker.run([round])
    assert "WriteCheckpoint" in kinds(broker.manager.take_syncs())


def test_batches_that_the_next_round_has_go_to_the_older_file():
    broker = filled()
    broker.write(b"a")
    broker.manager.truncate({("flights", 0): 13})
    broker.settle()
    assert broker.log().log_end_offset == 13
    assert Broker(broker.storage).log().log_end_offset == 13


def test_a_truncation_waits_for_the_checkpoint_that_is_being_written():
    """An older checkpoint must not replace the lowered one."""
    broker = filled()
    broker.manager.syncs.start_round()
    broker.run()
    (older,) = [job for job in broker.manager.take_syncs() if isinstance(job, WriteCheckpoint)]
    broker.manager.truncate({("flights", 0): 13})
    while jobs := broker.manager.take_syncs():
        assert not any(isinstance(job, WriteCheckpoint) for job in jobs)
        broker.run(jobs)
    broker.run([older])
    broker.settle()
    assert broker.log().log_end_offset == 13 and written(broker)["flights-0"].offset <= 13


def test_a_truncation_goes_on_during_a_checkpoint_round_whose_syncs_take_long():
    broker = filled(partitions=2)
    fill(broker, 1)
    broker.manager.syncs.start_round()
    broker.run([job for job in broker.manager.take_syncs() if job.log.partition == 0])
    broker.manager.truncate({("flights", 0): 13})
    broker.settle()
    assert broker.log().log_end_offset == 13


def test_many_logs_are_truncated_with_one_checkpoint_and_one_journal_file():
    broker = Broker(partitions=1000)
    for partition in range(1000):
        broker.write(b"a", partition=partition)
    broker.settle()
    checkpoints = 0
    broker.manager.truncate({("flights", partition): 0 for partition in range(1000)})
    while jobs := broker.manager.take_syncs():
        checkpoints += kinds(jobs).count("WriteCheckpoint")
        broker.run(jobs)
    assert checkpoints == 1
    outcomes = broker.manager.take_truncated()
    assert {outcome.log.log_end_offset for outcome in outcomes} == {0} and len(outcomes) == 1000
    assert {position.journal_from for position in written(broker).values()} == {2}


# --- the journal -----------------------------------------------------------------------------------------------------


def test_the_number_of_the_journals_file_leaves_the_checkpoint_when_no_older_file_is_left():
    broker = filled(partitions=2)
    broker.truncate(13)
    assert written(broker)["flights-0"].journal_from == 2
    broker.round()
    broker.write(b"a", partition=1)
    broker.round()
    assert written(broker)["flights-0"].journal_from == 0


def test_a_clean_stop_leaves_no_number_of_a_journals_file():
    """The version before begins with file 1 again and keeps no numbers, so a later start would drop its batches."""
    broker = filled()
    broker.truncate(13)
    broker.manager.close()
    assert written(broker)["flights-0"].journal_from == 0


def test_journal_files_are_never_numbered_below_a_number_in_the_checkpoint():
    """Otherwise batches that clients were answered would count as those of the cut part."""
    broker = filled()
    broker.truncate(13)
    for name in broker.storage.list(""):
        if name.endswith(".journal"):
            broker.storage.remove(name)
    again = Broker(broker.storage, later_ms=60_000)
    again.append(b"acked")
    for name in ("log", "idindex"):
        for path in [path for path in again.storage.files if path.endswith(name)]:
            again.storage.files[path].data = bytearray(again.storage.files[path].synced)
    assert Broker(again.storage).log().log_end_offset == 14


def test_the_position_of_a_truncated_log_names_its_topic():
    """The journal knows logs by the ids of their topics."""
    broker = filled()
    broker.truncate(13)
    assert written(broker)["flights-0"].topic_id == uuid_of(1).hex
