"""The planner of a stream: batches, limits, AvailableNow, new partitions, data loss."""

import pytest

from spark_bridge.selection.stream_limits import StreamLimits
from spark_bridge.selection.stream_offsets import OffsetError
from spark_bridge.selection.stream_planner import StreamDataLoss, StreamPlanner
from tests.spark_bridge.memory_stream import Engine, MemoryStreamLog

IDS = {"t": "id-of-t"}


def document(start, end, ids=IDS):
    return {"version": 1, "start": start, "end": end, "topic_ids": ids}


def ranges(planner, start, end):
    return [str(task.within) for task in planner.ranges(start, end)]


def test_a_stream_starts_where_its_options_say_and_a_batch_ends_at_the_latest_offsets():
    log = MemoryStreamLog({"t": {0: (5, 9), 1: (0, 3)}})
    planner = StreamPlanner(log)
    first = planner.initial()
    assert first == document({"t": {"0": 5, "1": 0}}, {"t": {"0": 5, "1": 0}})
    batch = planner.next(first, limited=True, now_ms=0)
    assert batch == document({"t": {"0": 5, "1": 0}}, {"t": {"0": 9, "1": 3}})
    assert ranges(planner, first, batch) == ["t-0[5, 9)", "t-1[0, 3)"]


def test_without_new_records_the_offset_stays_the_same_document():
    """Spark runs a batch if the two documents differ, so even an equal offset must be the same text."""
    planner = StreamPlanner(MemoryStreamLog({"t": {0: (0, 9)}}, "latest"))
    start = {"t": {"0": 9}}  # as the connector writes it
    assert planner.next(start, limited=True, now_ms=0) is start


def test_a_batch_is_planned_from_its_own_document_when_spark_asks_for_another_start():
    """The log ended at 500 when the first run planned batch 0, and at 550 when the second run was asked for its start.

    Spark's log has the end 600, and no start.
    """
    log = MemoryStreamLog({"t": {0: (0, 500)}}, "latest")
    first_run = StreamPlanner(log)
    start = first_run.initial()
    log.append("t", 0, 100)
    logged = first_run.next(start, limited=True, now_ms=0)
    log.append("t", 0, 50)
    second_run = StreamPlanner(log)
    assert second_run.initial()["end"] == {"t": {"0": 650}}
    assert ranges(second_run, second_run.initial(), logged) == ["t-0[500, 600)"]


def test_equal_documents_are_an_empty_batch():
    planner = StreamPlanner(MemoryStreamLog({"t": {0: (0, 9)}}))
    batch = document({"t": {"0": 0}}, {"t": {"0": 9}})
    assert planner.ranges(batch, batch) == []


def test_a_limit_is_divided_by_what_each_partition_has_left():
    """Each partition gets at least one offset, as in the connector, so that small partitions make progress."""
    log = MemoryStreamLog({"t": {0: (0, 600), 1: (0, 300), 2: (0, 2), 3: (0, 0)}})
    planner = StreamPlanner(log, StreamLimits(max_offsets=90))
    batch = planner.next(planner.initial(), limited=True, now_ms=0)
    assert batch["end"] == {"t": {"0": 59, "1": 29, "2": 1, "3": 0}}
    unlimited = planner.next(planner.initial(), limited=False, now_ms=0)
    assert unlimited["end"] == {"t": {"0": 600, "1": 300, "2": 2, "3": 0}}


def test_a_batch_waits_for_enough_offsets_or_long_enough():
    log = MemoryStreamLog({"t": {0: (0, 3)}})
    planner = StreamPlanner(log, StreamLimits(min_offsets=10, max_delay_ms=60_000))
    first = planner.next(planner.initial(), limited=True, now_ms=1_000)
    assert first["end"] == {"t": {"0": 3}}, "the first batch of a run does not wait"
    log.append("t", 0, 9)
    assert planner.next(first, limited=True, now_ms=60_999) is first
    late = planner.next(first, limited=True, now_ms=61_000)
    assert late["end"] == {"t": {"0": 12}}
    log.append("t", 0, 10)
    assert planner.next(late, limited=True, now_ms=61_001)["end"] == {"t": {"0": 22}}


def test_available_now_reads_to_what_was_there_at_its_start_and_ends():
    log = MemoryStreamLog({"t": {0: (0, 30)}})
    planner = StreamPlanner(log, StreamLimits(max_offsets=20, min_offsets=15))
    planner.freeze()
    log.append("t", 0, 500)
    log.topics["t"][1] = [0, 10]
    engine, steps = Engine(), []
    run = engine.run(planner)
    while "idle" not in steps:
        steps.append(next(run))
    assert engine.read() == {("t", 0): [(0, 20), (20, 30)]}


def test_available_now_that_starts_at_latest_reads_nothing_that_came_later():
    log = MemoryStreamLog({"t": {0: (0, 30)}}, "latest")
    planner = StreamPlanner(log)
    planner.freeze()
    log.append("t", 0, 5)
    assert planner.initial()["end"] == {"t": {"0": 30}}


def test_new_partitions_and_new_topics_join_at_their_first_offset():
    log = MemoryStreamLog({"t": {0: (0, 5)}}, "latest")
    planner = StreamPlanner(log)
    start = planner.initial()
    log.topics["t"][1] = [0, 4]
    log.topics["u"] = {0: [0, 2]}
    batch = planner.next(start, limited=True, now_ms=0)
    assert ranges(planner, start, batch) == ["t-1[0, 4)", "u-0[0, 2)"]


def test_a_batch_is_split_into_tasks_as_asked():
    log = MemoryStreamLog({"t": {0: (0, 100), 1: (0, 10)}})
    planner = StreamPlanner(log, max_records_per_partition=50)
    start = planner.initial()
    batch = planner.next(start, limited=True, now_ms=0)
    assert ranges(planner, start, batch) == ["t-0[0, 50)", "t-0[50, 100)", "t-1[0, 10)"]
    assert {task.topic_id for task in planner.ranges(start, batch)} == {"id-of-t"}


# --- data loss -----------------------------------------------------------------------------------------------------


def lose(log, how):
    """Change the log after a stream has read t-0 and t-1 to offset 10, while t-0 has ten more."""
    how(log)
    return document({"t": {"0": 0, "1": 0}}, {"t": {"0": 10, "1": 10}})


def expire(log):
    log.topics["t"][0] = [15, 20]


def truncate(log):
    log.topics["t"][0] = [0, 4]


def remove(log):
    del log.topics["t"][1]


def delete_and_make_again(log):
    log.make_again("t", {0: (0, 3), 1: (0, 30)})


def add_late(log):
    log.topics["t"][2] = [7, 9]


LOSSES = [
    (expire, "t-0 has lost the unread offsets 10 to 14 (5)", 5, ["t-0[15, 20)"]),
    (truncate, "t-0 ends at offset 4, but the stream has read it to 10", 0, []),
    (remove, "t-1 is gone; the stream has read it to offset 10", 0, ["t-0[10, 20)"]),
    (
        delete_and_make_again,
        "topic 't' was deleted and made again: its id was id-of-t, and is id-of-t-again",
        0,
        ["t-0[0, 3)", "t-1[0, 30)"],
    ),
    (add_late, "t-2 is new to the stream and starts at offset 7, not at 0", 7, ["t-0[10, 20)", "t-2[7, 9)"]),
]


@pytest.mark.parametrize(("how", "says", "offsets", "read"), LOSSES, ids=[loss[0].__name__ for loss in LOSSES])
def test_data_loss_is_an_error_that_names_it_or_is_counted_and_passed(how, says, offsets, read):
    log = MemoryStreamLog({"t": {0: (0, 20), 1: (0, 10)}})
    start = lose(log, how)
    with pytest.raises(StreamDataLoss) as error:
        StreamPlanner(log).next(start, limited=True, now_ms=0)
    assert str(error.value) == f"{says}. failOnDataLoss=false goes on with the offsets that exist"
    losses = []
    planner = StreamPlanner(log, fail_on_data_loss=False, on_loss=losses.append)
    batch = planner.next(start, limited=True, now_ms=0)
    assert [loss.reason for loss in losses] == [says]
    assert ranges(planner, start, batch) == read
    assert planner.lost == planner.report()["lostOffsets"] == offsets
    assert planner.next(batch, limited=True, now_ms=0) is batch, "a loss is reported once"


def test_the_report_has_the_latest_offsets_and_the_lag_behind_them():
    log = MemoryStreamLog({"t": {0: (0, 60), 1: (0, 30)}})
    planner = StreamPlanner(log, StreamLimits(max_offsets=30))
    assert planner.report() is None
    planner.next(planner.initial(), limited=True, now_ms=0)
    assert planner.report() == {
        "latest": {"t": {"0": 60, "1": 30}},
        "minOffsetsBehindLatest": 20,
        "maxOffsetsBehindLatest": 40,
        "avgOffsetsBehindLatest": 30.0,
        "lostOffsets": 0,
    }


# --- checkpoints of the connector, and documents that are not ours ---------------------------------------------------


def test_a_query_of_the_connector_goes_on_from_its_checkpoint():
    log = MemoryStreamLog({"t": {0: (0, 20), 1: (0, 5)}})
    planner = StreamPlanner(log)
    before, logged = {"t": {"0": 3}}, {"t": {"0": 10, "1": 4}}
    assert ranges(planner, before, logged) == ["t-0[3, 10)", "t-1[0, 4)"], "its unfinished batch is run again"
    batch = planner.next(logged, limited=True, now_ms=0)
    assert batch == document(logged, {"t": {"0": 20, "1": 5}})


def test_an_unfinished_first_batch_of_the_connector_is_refused():
    planner = StreamPlanner(MemoryStreamLog({"t": {0: (0, 20)}}))
    with pytest.raises(OffsetError, match="the connector planned the first batch of this checkpoint"):
        planner.ranges(planner.initial(), {"t": {"0": 10}})


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        ([], "is a JSON object"),
        ({"t": 7}, 'like {"topic": {"0": 17}}'),
        ({"t": {"zero": 7}}, 'like {"topic": {"0": 17}}'),
        ({"t": {"0": -1}}, "the offset of t-0 is 0 or more; got -1"),
        ({"t": {"0": True}}, "the offset of t-0 is 0 or more; got True"),
        ({"version": 2}, "has version 2, this release reads 1"),
        ({"version": 1, "end": {}}, "an offset has version, start, end, topic_ids"),
        (document({}, {}, {"t": 7}), "topic_ids of an offset are texts by topic"),
        (document({}, {"t": {"0": 1}}), "has an end of t-0 and no start"),
    ],
)
def test_a_document_that_is_no_offset_is_refused(offset, says):
    planner = StreamPlanner(MemoryStreamLog({"t": {0: (0, 20)}}))
    with pytest.raises(OffsetError, match=says):
        planner.ranges({}, offset)
