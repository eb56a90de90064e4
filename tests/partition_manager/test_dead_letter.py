"""Dead letters: their forms, and the order in which a topic that refuses letters is offered them."""

import pytest

from broker.record.batch import read_header
from broker.record.compression import Codec
from broker.record.records import decode_records
from broker.wire.errors import ErrorCode
from partition_manager.dead_letter import (
    KEPT_BYTES_MAX,
    RECORD_FAULTS,
    LetterForm,
    dead_letter_batch,
    first_form,
    next_form,
)
from partition_manager.ports import DeadLetter, FetchedRecord

MESSAGE = FetchedRecord(7, 1007, 1_600_000_000_000, b"key", b"value" * 100, (("own", b"1"),), Codec.NONE)
LATER = 1_700_000_000_000


def letter(**changes):
    return DeadLetter("flights", 3, MESSAGE._replace(**changes), 1, "attempts", 5, "ValueError: no")


def written(letter, form):
    """Return the letter's record as a reader of the topic gets it, and its headers as a dict."""
    (record,) = decode_records(dead_letter_batch(letter, form, LATER))
    return record, dict(record.headers)


def forms_after(letter, *codes):
    """Return each form that is tried while the topic refuses with these codes in turn."""
    forms = [first_form(letter)]
    for code in codes:
        forms.append(next_form(forms[-1], code))
    return forms


@pytest.mark.parametrize("codec", Codec)
def test_a_letter_keeps_the_compression_of_its_message(codec):
    batch = dead_letter_batch(letter(codec=codec), first_form(letter(codec=codec)), LATER)
    assert read_header(batch).compression == codec
    (record,) = decode_records(batch)
    assert (record.key, record.value) == (MESSAGE.key, MESSAGE.value)


def test_a_plain_letter_that_is_too_large_is_compressed_and_then_written_without_its_value():
    assert forms_after(letter(), ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE) == [
        LetterForm(Codec.NONE),
        LetterForm(Codec.ZSTD),
        LetterForm(Codec.NONE, has_value=False),
    ]


@pytest.mark.parametrize("code", (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))
def test_a_compressed_letter_that_is_too_large_is_written_without_its_value(code):
    assert forms_after(letter(codec=Codec.GZIP), code)[1] == LetterForm(Codec.NONE, has_value=False)


@pytest.mark.parametrize("code", (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD))
def test_a_letter_without_value_that_is_refused_is_given_up(code):
    assert next_form(LetterForm(Codec.NONE, has_value=False), code) is None


def test_the_letter_of_an_old_message_has_the_time_of_writing_from_which_retention_counts():
    record, headers = written(letter(), first_form(letter()))
    assert (record.timestamp_ms, headers["flakelog-dead-timestamp-ms"]) == (LATER, b"1600000000000")


def test_a_letter_whose_time_of_writing_is_refused_waits_for_a_clock_that_is_right():
    assert ErrorCode.INVALID_TIMESTAMP not in RECORD_FAULTS


def test_an_error_that_utf8_cannot_hold_is_written_with_escapes():
    _, headers = written(letter()._replace(error="OSError: \udce9"), first_form(letter()))
    assert headers["flakelog-dead-error"] == rb"OSError: \udce9"


def test_a_letter_without_its_value_names_the_place_and_the_size_of_the_message():
    record, headers = written(letter(), LetterForm(Codec.NONE, has_value=False))
    assert (record.key, record.value, headers["own"]) == (b"key", None, b"1")
    fields = {name.removeprefix("flakelog-dead-"): value for name, value in headers.items()}
    wanted = {"topic": b"flights", "partition": b"3", "offset": b"7", "id": b"1007"}
    assert wanted | {"value": b"left out", "value-bytes": b"500", "reason": b"attempts"} == {
        name: fields[name] for name in (*wanted, "value", "value-bytes", "reason")
    }


def test_a_large_key_and_large_headers_are_left_out_with_the_value():
    large = letter(key=b"k" * (KEPT_BYTES_MAX + 1), headers=(("own", b"h" * KEPT_BYTES_MAX),))
    record, headers = written(large, LetterForm(Codec.NONE, has_value=False))
    assert record.key is None and "own" not in headers
    assert headers["flakelog-dead-key"] == headers["flakelog-dead-headers"] == b"left out"
    assert len(dead_letter_batch(large, LetterForm(Codec.NONE, has_value=False), LATER)) < 1_000
