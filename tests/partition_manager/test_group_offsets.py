"""Offset documents as committed offsets of a group."""

import pytest

from broker.client.group_requests import CommittedOffset
from partition_manager.group_offsets import TooManyRanges, committed_offset, committed_progress
from partition_manager.offset_document import OffsetDocument
from partition_manager.progress import Progress
from partition_manager.progress_metadata import CommittedProgress

TOPIC_ID = "00000000-0000-0000-0000-000000000007"


def document(progress):
    return OffsetDocument("id", "name", "t", 3, progress, topic_id=TOPIC_ID, leader_epoch=5)


def test_watermark_ranges_topic_id_and_epoch_are_committed_and_found_again():
    progress = Progress(10, ((12, 13), (20, 25)))
    committed = committed_offset(document(progress))
    assert (committed.offset, committed.leader_epoch) == (10, 5)
    assert committed_progress(committed) == (CommittedProgress(progress, TOPIC_ID), "")


def test_no_range_is_dropped_progress_that_does_not_fit_is_refused_with_its_partition():
    done = tuple((n, n + 1) for n in range(2, 6_000, 2))
    with pytest.raises(TooManyRanges, match="the 2999 settled ranges of t-3 take 6024 characters, 4096 can"):
        committed_offset(document(Progress(0, done)))


def test_an_offset_that_another_client_committed_is_where_reading_goes_on():
    assert committed_progress(CommittedOffset(7)) == (CommittedProgress(Progress(7), ""), "")


def test_metadata_of_another_program_is_ignored_with_a_line_that_shows_it():
    progress, note = committed_progress(CommittedOffset(7, -1, "host-1"))
    assert progress == CommittedProgress(Progress(7), "")
    assert "is not of this program, only the offset is used: 'host-1'" in note
