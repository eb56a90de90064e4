"""The batches of a sink: one on its way for each partition, and each tuple settled once."""

import pytest

from partition_manager.ports import Failed, LetterRefused
from spout.partitioner import partition_of
from spout.sink_batches import Outcome, SinkBatches
from spout.sink_config import SinkConfig
from spout.sink_ports import Counted, CountPartitions, Output, Produce, Produced


def batches_of(partitions=1, **settings):
    batches = SinkBatches("out", SinkConfig(**settings))
    if partitions:
        batches.add(Output("out", None, b"first"), "first")
        batches.take()
        batches.answered(0, Counted(partitions))
        ((number, _),) = batches.take()
        batches.answered(number, Produced())
    return batches


def add(batches, *names, key=None):
    for name in names:
        batches.add(Output("out", key, name.encode()), name)


def values(request):
    return [output.value.decode() for output in request.outputs]


def test_the_partitions_are_counted_once_before_the_first_record():
    batches = batches_of(partitions=0)
    add(batches, "a", "b")
    assert batches.take() == [(0, CountPartitions("out"))] and batches.take() == []
    batches.answered(0, Counted(1))
    ((_, request),) = batches.take()
    assert request == Produce("out", 0, (Output("out", None, b"a"), Output("out", None, b"b")))


def test_a_tuple_is_acked_when_the_broker_has_its_record():
    batches = batches_of()
    add(batches, "a")
    ((number, _),) = batches.take()
    assert batches.held_bytes > 0
    assert batches.answered(number, Produced()) == Outcome(acked=("a",)) and batches.held_bytes == 0


def test_a_partition_has_one_batch_on_its_way():
    batches = batches_of()
    add(batches, "a")
    ((number, _),) = batches.take()
    add(batches, "b", "c")
    assert batches.take() == []
    batches.answered(number, Produced())
    ((_, request),) = batches.take()
    assert values(request) == ["b", "c"]


def test_a_batch_has_a_limit_in_bytes():
    batches = batches_of(sink_batch_bytes=60)
    add(batches, "a", "b", "c")
    ((number, request),) = batches.take()
    assert values(request) == ["a", "b"]
    batches.answered(number, Produced())
    assert [values(request) for _, request in batches.take()] == [["c"]]


def test_records_without_a_key_take_turns_and_equal_keys_share_a_partition():
    batches = batches_of(partitions=3)
    add(batches, "a", "b", "c")
    assert sorted(request.partition for _, request in batches.take()) == [0, 1, 2]
    assert {partition_of(b"AA", 3, turn) for turn in range(9)} == {0}


@pytest.mark.parametrize("answer, passes", [(Failed("down"), True), (LetterRefused("too large"), False)])
def test_a_record_that_is_not_written_fails_its_tuple(answer, passes):
    batches = batches_of()
    add(batches, "a")
    ((number, _),) = batches.take()
    assert batches.answered(number, answer) == Outcome((), ("a",), answer.error, passes)
    assert batches.held_bytes == 0


def test_after_a_failure_the_partitions_are_counted_again():
    batches = batches_of()
    add(batches, "a")
    ((number, _),) = batches.take()
    batches.answered(number, Failed("down"))
    add(batches, "b")
    assert batches.take() == [(0, CountPartitions("out"))]
    assert batches.answered(0, Failed("still down")) == Outcome((), ("b",), "still down", True)


def test_a_refused_batch_is_sent_record_by_record_so_that_one_bad_record_fails_alone():
    batches = batches_of()
    add(batches, "a", "bad", "c")
    acked, failed = [], []
    while taken := batches.take():
        ((number, request),) = taken
        outcome = batches.answered(number, LetterRefused("no key") if "bad" in values(request) else Produced())
        acked += outcome.acked
        failed += outcome.failed
        if request.outputs == (Output("out", None, b"a"),):
            add(batches, "d", "e")
    assert (acked, failed) == (["a", "c", "d", "e"], ["bad"])


def test_no_more_is_held_than_the_setting_allows():
    batches = batches_of(sink_held_bytes=50)
    assert not batches.is_full
    add(batches, "a", "b")
    assert batches.is_full
