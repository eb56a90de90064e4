"""Progress in the metadata of a committed offset: round trips, the limit, and what other clients commit."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition_manager.progress import Progress
from partition_manager.progress_metadata import (
    METADATA_CHARACTERS_MAX,
    RANGES_MAX,
    SPAN_MAX,
    BadMetadata,
    CommittedProgress,
    decode_metadata,
    encode_metadata,
    fits,
)

TOPIC_ID = str(UUID(int=7 << 100 | 9))


def progress_of(offset, numbers):
    """Make a progress from distances and lengths, in turn."""
    done, end = [], offset
    for distance, length in zip(numbers[::2], numbers[1::2], strict=False):
        done.append((end + distance, end + distance + length))
        end += distance + length
    return Progress(offset, tuple(done)).check()


@given(st.integers(0, 1 << 62), st.lists(st.integers(1, 1 << 40), max_size=60), st.sampled_from(["", TOPIC_ID]))
def test_every_progress_comes_back_from_its_metadata(offset, numbers, topic_id):
    progress = progress_of(offset, numbers)
    assert decode_metadata(offset, encode_metadata(progress, topic_id)) == CommittedProgress(progress, topic_id)


def test_the_text_is_the_one_of_the_documentation():
    assert encode_metadata(Progress(10, ((12, 13), (14, 17))), "") == "f1;;BAAC"
    assert encode_metadata(Progress(10), TOPIC_ID) == "f1;AAAAcAAAAAAAAAAAAAAACQ;"


def test_single_messages_close_together_take_two_characters_each():
    progress = progress_of(0, [1, 1] * 2_000)
    assert len(encode_metadata(progress, TOPIC_ID)) < 4_030 and fits(progress, TOPIC_ID)


def test_the_promised_ranges_fit_however_they_lie_within_the_span():
    """Numbers of equal size take the most characters together; a few long ones take less."""
    equal = SPAN_MAX // (2 * RANGES_MAX)
    for numbers in (
        [equal] * (2 * RANGES_MAX),
        [1, 2 * equal - 1] * RANGES_MAX,
        [33] * (2 * RANGES_MAX - 1) + [SPAN_MAX],
        [32 * 1_024 + 1] * 1_000 + [1] * (2 * RANGES_MAX - 1_000),
    ):
        assert fits(progress_of(1 << 60, numbers), TOPIC_ID)


def test_at_the_limit_the_last_character_counts():
    progress = progress_of(0, [1, 1] * ((METADATA_CHARACTERS_MAX - 4) // 2))
    assert len(encode_metadata(progress, "")) == METADATA_CHARACTERS_MAX and fits(progress, "")
    assert not fits(progress_of(0, [1, 1] * ((METADATA_CHARACTERS_MAX - 4) // 2) + [1, 1]), "")


def test_the_commit_of_another_client_is_a_plain_offset():
    assert decode_metadata(5, "") == CommittedProgress(Progress(5), "")


def test_metadata_of_another_program_is_not_of_this_format():
    assert decode_metadata(5, '{"host": "worker-3"}') is None
    assert decode_metadata(5, "f2;;A") is None


@pytest.mark.parametrize("metadata", ["f1;", "f1;;A", "f1;;Ag", "f1;;A!", "f1;!;AA", "f1;AAAA;AA", "f1;;" + "g" * 20])
def test_metadata_that_is_cut_or_damaged_is_an_error_that_shows_it(metadata):
    with pytest.raises(BadMetadata, match="cannot be read"):
        decode_metadata(5, metadata)
