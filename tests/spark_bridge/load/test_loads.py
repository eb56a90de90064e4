"""A chain of loads into a directory of Parquet files: each row once, or a refusal that says why."""

import json

import pytest

from broker.client.offset_spec import AtId, AtTime, Earliest
from spark_bridge.load.ledger import LostData, OtherLayout, OtherLog, Since
from spark_bridge.load.load import Layout
from spark_bridge.load.target_check import OtherTarget
from spark_bridge.load.verify import verify
from spark_bridge.selection.record_file import DamagedRecord
from tests.spark_bridge.load.world import HOUR_MS, ID, MemoryLog, MemoryStorage, Topics, driver, no_step, plain_reader


@pytest.fixture
def topics():
    return Topics(5, 3)


@pytest.fixture
def storage():
    return MemoryStorage()


def load(topics, storage, **options):
    """Run one load and return its outcome."""
    return driver(MemoryLog(topics), storage, **options).run()


def values(storage):
    return sorted(value for _, value in plain_reader(storage.objects))


def test_the_first_load_takes_everything_and_the_next_what_came_since(topics, storage):
    assert load(topics, storage).rows == 8
    topics.append(1, 4)
    second = load(topics, storage)
    assert second.rows == 4
    assert [str(part) for part in second.loads[0].parts] == ["t-1[3, 7)"]
    assert values(storage) == sorted(topics.values())


def test_without_news_nothing_is_written(topics, storage):
    load(topics, storage)
    before = dict(storage.objects)
    assert load(topics, storage).loads == []
    assert storage.objects == before


def test_files_are_named_after_their_ranges(topics, storage):
    load(topics, storage)
    assert sorted({name for name, _ in plain_reader(storage.objects)}) == [
        "t-00000-00000000000000000000-00000000000000000005.parquet",
        "t-00001-00000000000000000000-00000000000000000003.parquet",
    ]


def test_after_a_load_only_plan_decision_and_receipt_are_left_of_it(topics, storage):
    load(topics, storage)
    remaining = [name for name in storage.objects if name.startswith("_")]
    of_load = [f"_flakelog/t/{0:020d}.{kind}.json" for kind in ("plan", "decision", "receipt")]
    assert remaining == [*of_load, "_flakelog/t/newest.json"]


def test_a_run_does_not_list_the_loads_before_it(topics, storage):
    """With --every, a place gets thousands of loads, and a store lists a thousand names at a time."""
    steps = []
    for _ in range(3):
        topics.append(0, 1)
        load(topics, storage)
    driver(MemoryLog(topics), MemoryStorage(storage.objects, steps.append)).run()
    assert not [step for step in steps if step.startswith("names")]


@pytest.mark.parametrize("note", [b"0\n", b"99\n", b"no number", None])
def test_an_old_or_wrong_note_of_the_newest_load_does_no_harm(topics, storage, note):
    for _ in range(3):
        topics.append(0, 1)
        load(topics, storage)
    del storage.objects["_flakelog/t/newest.json"]
    if note is not None:
        storage.objects["_flakelog/t/newest.json"] = note
    topics.append(1, 1)
    assert [new_load.number for new_load in load(topics, storage).loads] == [3]
    assert values(storage) == sorted(topics.values())


def test_a_new_partition_starts_at_its_earliest_offset(topics, storage):
    load(topics, storage)
    topics.starts.append(2)
    topics.ends.append(6)
    assert [str(part) for part in load(topics, storage).loads[0].parts] == ["t-2[2, 6)"]


@pytest.mark.parametrize(
    "since, parts",
    [
        (Since(Earliest()), ["t-0[0, 5)", "t-1[0, 3)"]),
        (Since(AtTime(HOUR_MS)), ["t-0[3, 5)"]),
        (Since(AtId(ID + 2)), ["t-0[2, 5)", "t-1[2, 3)"]),
    ],
)
def test_the_first_load_may_begin_at_a_time_or_an_id(topics, storage, since, parts):
    assert [str(part) for part in load(topics, storage, since=since).loads[0].parts] == parts
    topics.append(1, 1)
    assert [str(part) for part in load(topics, storage).loads[0].parts] == ["t-1[3, 4)"]


@pytest.mark.parametrize("since", [Since(AtTime(99 * HOUR_MS)), Since(AtId(ID + 99))])
def test_a_beginning_that_no_message_has_reached_is_kept(topics, storage, since):
    """Else the next run, without --since, would take all messages from the beginning."""
    assert load(topics, storage, since=since).rows == 0
    topics.append(1, 2)
    assert [str(part) for part in load(topics, storage).loads[0].parts] == ["t-1[3, 5)"]


@pytest.mark.parametrize("since", [Since(Earliest()), Since(AtTime(0)), Since(AtId(0))])
def test_another_beginning_than_the_last_load_needs_a_new_place(topics, storage, since):
    load(topics, storage)
    topics.append(0, 1)
    with pytest.raises(OtherLayout, match="up to number 0: --since .* needs a new place; --since last goes on"):
        load(topics, storage, since=since)


@pytest.mark.parametrize(
    "other, named",
    [
        ({"layout": Layout(partition_by="day")}, "another value of --partition-by: None, now day"),
        ({"layout": Layout("delta")}, "the format: parquet, now delta"),
        ({"columns": ("value", "offset")}, "the columns: key, .*, now value, offset"),
        ({"read_committed": False}, "read_committed: True, now False"),
    ],
)
def test_all_loads_of_a_place_are_alike(topics, storage, other, named):
    load(topics, storage)
    with pytest.raises(OtherLayout, match=named):
        load(topics, storage, **other)


def test_ranges_that_expired_between_loads_are_named_and_nothing_is_published(topics, storage):
    load(topics, storage)
    topics.append(0, 10)
    topics.expire(0, 9)
    before = dict(storage.objects)
    with pytest.raises(LostData, match=r"no longer has t-0\[5, 9\) \(4 offsets\), which no load took.*--accept-loss"):
        load(topics, storage)
    assert storage.objects == before


def test_an_accepted_loss_is_written_down_and_the_rest_is_loaded(topics, storage):
    load(topics, storage)
    topics.append(0, 10)
    topics.expire(0, 9)
    (after,) = load(topics, storage, accept_loss=True).loads
    assert [str(lost_range) for lost_range in after.lost] == ["t-0[5, 9)"]
    assert values(storage) == sorted(topics.values() - {f"1/0/{offset}" for offset in range(5, 9)})


def test_a_log_that_ends_before_the_last_load_is_refused(topics, storage):
    load(topics, storage)
    topics.truncate(0, 2)
    with pytest.raises(OtherLog, match=r"t-0 ends at 2, but loads took or planned it up to 5 \(3 offsets more\)"):
        load(topics, storage)


def test_a_topic_made_again_is_refused(topics, storage):
    load(topics, storage)
    topics.recreate(9, 9)
    with pytest.raises(OtherLog, match="deleted and made again.*name a new place"):
        load(topics, storage)


def test_a_topic_made_again_with_fewer_partitions_is_refused_without_topic_ids(topics, storage, monkeypatch):
    monkeypatch.setattr(Topics, "topic_id", None)
    load(topics, storage)
    topics.recreate(9)
    with pytest.raises(OtherLog, match=r"had partitions \[1\] and no longer has them"):
        load(topics, storage)


def test_another_cluster_is_refused(topics, storage):
    load(topics, storage)
    topics.cluster_id = "another"
    with pytest.raises(OtherLog, match="another cluster"):
        load(topics, storage)


def test_files_of_the_topic_without_a_record_of_loads_are_refused(topics, storage):
    load(topics, storage)
    for name in [name for name in storage.objects if name.startswith("_")]:
        del storage.objects[name]
    with pytest.raises(OtherTarget, match="no record of loads in _flakelog: their rows would come twice"):
        load(topics, storage)


def remove_rows(storage):
    for name in [name for name in storage.objects if not name.startswith("_")]:
        del storage.objects[name]


def test_a_place_that_lost_all_its_files_is_refused_and_nothing_is_written(topics, storage):
    load(topics, storage)
    remove_rows(storage)
    topics.append(0, 1)
    before = dict(storage.objects)
    with pytest.raises(OtherTarget, match="has none of the files that its record .* --start-over"):
        load(topics, storage)
    assert storage.objects == before


def test_files_may_be_merged_by_others_and_old_ones_removed(topics, storage):
    load(topics, storage)
    merged = next(name for name in storage.objects if name.startswith("t-"))
    data = storage.objects[merged]
    remove_rows(storage)
    storage.objects["merged.parquet"] = data
    topics.append(0, 1)
    assert load(topics, storage).rows == 1
    del storage.objects["merged.parquet"]
    topics.append(0, 1)
    assert load(topics, storage).rows == 1


def test_a_new_chain_takes_all_messages_again_and_keeps_the_old_record(topics, storage):
    load(topics, storage)
    remove_rows(storage)
    record = dict(storage.objects)
    topics.append(0, 1)
    assert load(topics, storage, start_over=True).rows == 9
    assert values(storage) == sorted(topics.values())
    assert record.items() <= storage.objects.items()
    assert {name for name in storage.objects if not name.startswith("_")} == {
        "t-00000-00000000000000000000-00000000000000000006-c1.parquet",
        "t-00001-00000000000000000000-00000000000000000003-c1.parquet",
    }
    topics.append(1, 2)
    assert load(topics, storage).rows == 2
    assert verify(driver(MemoryLog(topics), storage).sink).rows == 11
    remove_rows(storage)
    assert load(topics, storage, start_over=True).rows == 11
    assert all(name.endswith("-c2.parquet") for name in storage.objects if not name.startswith("_"))


def test_verification_names_missing_changed_and_foreign_files_and_counts_rows(topics, storage):
    load(topics, storage)
    topics.append(0, 4)
    load(topics, storage)
    first, last, *_ = sorted(name for name in storage.objects if name.startswith("t-"))
    data = storage.objects.pop(first)
    storage.objects[last] = data
    storage.objects |= {"merged.parquet": data, "day=1/t-00000-1-2.parquet": data, "t-no.parquet": b"no Parquet"}
    verification = verify(driver(MemoryLog(topics), storage).sink)
    assert set(verification.problems) == {
        "day=1/t-00000-1-2.parquet is a file of no load",
        "merged.parquet is a file of no load",
        "t-no.parquet is a file of no load",
        f"{first} is gone",
        f"{last} was changed after it was written",
    }
    assert (verification.rows, verification.target_rows) == (12, 5 + 5 + 5 + 3)


def test_files_of_other_topics_and_of_places_below_are_not_foreign(topics, storage):
    load(topics, storage)
    data = storage.objects["t-00000-00000000000000000000-00000000000000000005.parquet"]
    storage.objects |= {
        "_flakelog/t-eu/newest.json": b"0",
        "t-eu-00000-00000000000000000000-00000000000000000005.parquet": data,
        "below/_flakelog/u/newest.json": b"0",
        "below/day=1/anything.parquet": data,
        "_temporary/part.parquet": data,
    }
    verification = verify(driver(MemoryLog(topics), storage).sink)
    assert (verification.problems, verification.target_rows) == ((), 8)


def test_a_new_chain_is_refused_while_the_place_has_files_of_the_old_one(topics, storage):
    load(topics, storage)
    with pytest.raises(OtherTarget, match="still has messages of load 0, and a new chain would bring them twice"):
        load(topics, storage, start_over=True)
    assert load(topics, storage).loads == []


def test_a_new_chain_in_a_new_place_is_the_first(topics, storage):
    load(topics, storage, start_over=True)
    assert "t-00000-00000000000000000000-00000000000000000005.parquet" in storage.objects


def test_a_new_chain_that_is_killed_at_any_step_is_finished_by_the_same_command(topics):
    def begun(step=no_step):
        storage = MemoryStorage()
        load(topics, storage)
        remove_rows(storage)
        storage.step = step
        return storage

    class Killed(BaseException):
        pass

    steps = []
    load(topics, begun(steps.append), start_over=True)
    for kill_at in range(len(steps)):
        steps_left = iter(range(kill_at))

        def step(step_name):
            if next(steps_left, None) is None:
                raise Killed

        storage = begun(step)
        with pytest.raises(Killed):
            load(topics, storage, start_over=True)
        storage.step = no_step
        try:
            load(topics, storage, start_over=True)
        except OtherTarget:  # all was done but to note it, or to remove staged files
            assert steps[kill_at].startswith(("open _flakelog/t/chain-1/newest", "write _f", "names", "delete"))
        assert values(storage) == sorted(topics.values()), f"killed at {steps[kill_at]}"


def test_a_driver_whose_chain_was_given_up_publishes_nothing_into_the_new_one(topics, storage):
    """A load of the old chain reaches its decision after a new chain began: its ranges are in the new one too."""
    load(topics, storage)
    remove_rows(storage)
    topics.append(0, 1)
    storage.objects["merged.parquet"] = b""

    def meet(step_name):
        if step_name == "fetch":
            storage.objects.pop("merged.parquet", None)
            slow.source.step = no_step
            load(topics, storage, start_over=True)

    slow = driver(MemoryLog(topics, meet), storage)
    with pytest.raises(OtherTarget, match="another run began a new chain of loads"):
        slow.run()
    assert values(storage) == sorted(topics.values())


def test_a_plan_changed_by_hand_is_refused(topics, storage):
    load(topics, storage)
    (name,) = (name for name in storage.objects if name.endswith(".plan.json"))
    fields = json.loads(storage.objects[name])
    fields["ends"]["0"] = 4
    storage.objects[name] = json.dumps(fields).encode()
    with pytest.raises(DamagedRecord, match=r"plan\.json is damaged or was edited: .*the ranges do not reach its ends"):
        load(topics, storage)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]", b"{}", b"null"])
@pytest.mark.parametrize("ending", ["plan", "receipt"])
def test_a_damaged_record_is_named_with_the_way_out(topics, storage, ending, text):
    load(topics, storage)
    (name,) = (name for name in storage.objects if name.endswith(f".{ending}.json"))
    storage.objects[name] = text
    topics.append(0, 1)
    with pytest.raises(DamagedRecord, match=f"{ending}.json is damaged.*Put it back from a copy"):
        load(topics, storage)


def test_ranges_are_cut_by_rows_and_by_estimated_bytes(topics, storage):
    assert [str(part) for part in load(topics, storage, file_rows=2).loads[0].parts] == [
        "t-0[0, 1)", "t-0[1, 3)", "t-0[3, 5)", "t-1[0, 1)", "t-1[1, 3)",
    ]  # fmt: skip
    topics.append(0, 5)
    assert len(load(topics, storage, file_bytes=25).loads[0].parts) == 2
    assert values(storage) == sorted(topics.values())


@pytest.mark.parametrize(
    "by, folders",
    [
        ("hour", ["hour=1970-01-01-00", "hour=1970-01-01-01"]),
        ("day", ["day=1970-01-01"]),
        ("key", ["key=0", "key=1"]),
        ("partition", ["partition=0", "partition=1"]),
    ],
)
def test_rows_go_into_directories_by_value(topics, storage, by, folders):
    load(topics, storage, layout=Layout(partition_by=by))
    rows = plain_reader(storage.objects)
    assert sorted({name.partition("/")[0] for name, _ in rows}) == folders
    assert sorted(value for _, value in rows) == sorted(topics.values())


def test_a_killed_load_is_finished_before_another_is_planned(topics, storage):
    first = driver(MemoryLog(topics), storage)
    planned = first.plan(None, first.options)
    first.sink.save(planned)
    topics.append(0, 2)
    outcome = load(topics, storage)
    assert [load.number for load in outcome.loads] == [0, 1]
    assert outcome.loads[0] == planned
    assert values(storage) == sorted(topics.values())


def test_the_command_of_a_killed_first_load_can_be_repeated(topics, storage):
    options = {"since": Since(AtTime(HOUR_MS))}
    first = driver(MemoryLog(topics), storage, **options)
    first.sink.save(first.plan(None, first.options))
    assert load(topics, storage, **options).rows == 2
    with pytest.raises(OtherLayout):
        load(topics, storage, **options)


def test_a_killed_load_whose_ranges_expired_is_refused_until_the_loss_is_accepted(topics, storage):
    first = driver(MemoryLog(topics), storage)
    first.sink.save(first.plan(None, first.options))
    topics.expire(0, 3)
    with pytest.raises(LostData, match=r"t-0\[0, 3\) \(3 offsets\)"):
        load(topics, storage)
    assert values(storage) == []
    (receipt,) = load(topics, storage, accept_loss=True).receipts
    assert [str(lost_range) for lost_range in receipt.lost] == ["t-0[0, 3)"]
    assert values(storage) == sorted(topics.values() - {f"1/0/{offset}" for offset in range(3)})
    assert verify(first.sink).lost == receipt.lost


def test_parts_that_a_killed_run_wrote_outlive_the_loss_of_their_offsets(topics, storage):
    """The log lost the offsets of a part that is written and the first offsets of one that is not."""
    first = driver(MemoryLog(topics), storage, file_rows=3)
    planned = first.plan(None, first.options)
    first.sink.save(planned)
    written, part, _ = planned.parts
    assert (str(written), str(part)) == ("t-0[0, 2)", "t-0[2, 5)")
    first.sink.write(planned, written, first.source.rows(planned, written))
    topics.expire(0, 4)
    with pytest.raises(LostData, match=r"no longer has t-0\[2, 4\) \(2 offsets\)"):
        load(topics, storage)
    log = MemoryLog(topics)
    outcome = driver(log, storage, accept_loss=True).run()
    assert ([load.number for load in outcome.loads], outcome.rows) == ([0], 6)
    assert sorted(log.reads) == ["t-0[4, 5)", "t-1[0, 3)"]
    assert values(storage) == sorted(topics.values() - {"1/0/2", "1/0/3"})
    assert [str(lost_range) for lost_range in verify(first.sink).lost] == ["t-0[2, 4)"]


def test_a_part_whose_offsets_are_all_lost_has_no_file(topics, storage):
    first = driver(MemoryLog(topics), storage)
    first.sink.save(first.plan(None, first.options))
    topics.expire(0, 5)
    (receipt,) = load(topics, storage, accept_loss=True).receipts
    assert ([str(lost_range) for lost_range in receipt.lost], len(receipt.files)) == (["t-0[0, 5)"], 1)
    assert load(topics, storage).loads == []
    assert verify(first.sink).problems == ()


def test_messages_that_expire_while_they_are_read_are_named(topics, storage):
    def expire(step_name):
        if step_name == "fetch":
            topics.expire(1, 2)

    with pytest.raises(LostData, match=r"no longer has t-1\[0, 2\) \(2 offsets\), which no load took"):
        driver(MemoryLog(topics, expire), storage).run()
    assert values(storage) == []
    assert load(topics, storage, accept_loss=True).rows == 6
    assert values(storage) == sorted(topics.values() - {"1/1/0", "1/1/1"})


def test_a_part_that_a_killed_run_wrote_is_not_read_again(topics, storage):
    first = driver(MemoryLog(topics), storage)
    planned = first.plan(None, first.options)
    first.sink.save(planned)
    first.sink.write(planned, planned.parts[0], first.source.rows(planned, planned.parts[0]))
    log = MemoryLog(topics)
    driver(log, storage).run()
    assert log.reads == ["t-1[0, 3)"]
