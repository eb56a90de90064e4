"""Dead letters: the reasons to give a message up, and the record written for it.

A dead letter keeps the original key and value so that the topic can be replayed into its source. Headers describe the
failure. The letter of a poison batch has the whole batch as its value, as it lies in the log, and no key.

A topic may refuse a letter, most often because the letter is larger than the topic's limit: it has the message's bytes
and more headers. The letter is then written in the next of these forms:

    as the message was          with the compression of the message's batch
    compressed by zstd          if the message was not compressed, and the letter is too large
    without the value           headers name the place and the size of the message; a large key and large headers of the
                                message's own are left out too

A letter has the time of writing, and the message's own time in a header. The retention of the topic counts from a
record's time, so a letter with the time of an old message would be deleted at once, and its message lost.

If the topic refuses all of them, the letter is given up. Only faults of the record itself count as a refusal. Every
other error can pass or be mended by an operator: missing rights, a topic name that is not allowed, a policy that
forbids to create the topic. The same letter is then written again later, and its message stays unsettled meanwhile,
because a wrong setting must not lose messages.
"""

from collections.abc import Mapping
from typing import NamedTuple

from broker.record.compression import Codec
from broker.record.records import BatchRecord, Headers, encode_batch
from broker.wire.errors import ErrorCode
from partition_manager.ports import DeadLetter

ATTEMPTS = "attempts"  # failed spout_max_attempts times
UNDECODABLE = "undecodable"  # the scheme could not decode it, so a further attempt would not help
EXPIRED = "expired"  # failed more than spout_max_offset_behind behind
POISON = "poison"  # a batch with a valid CRC whose records cannot be decoded
REFUSED = "refused"  # exactly once, a topic will never take one of its outputs
REASONS = (ATTEMPTS, UNDECODABLE, EXPIRED, POISON, REFUSED)

ERROR_BYTES_MAX = 2_000  # bytes kept of the error text: enough to recognise the error, far below any message limit
KEPT_BYTES_MAX = 10_000  # bytes of the key, and of the headers, that a letter without its value keeps
LEFT_OUT = "left out"

TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
RECORD_FAULTS = TOO_LARGE | {
    ErrorCode.INVALID_RECORD,  # such as one without a key, in a compacted topic
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}
"""Errors that another attempt with the same record would meet again."""


class LetterForm(NamedTuple):
    """A form in which a letter is written."""

    codec: Codec
    has_value: bool = True


def first_form(letter: DeadLetter) -> LetterForm:
    """Return the form that keeps everything, with the compression of the message's batch."""
    return LetterForm(Codec(letter.record.codec))


def next_form(form: LetterForm, code: int) -> LetterForm | None:
    """Return the form to write after the topic has refused `form` with one of RECORD_FAULTS, None if none is left."""
    if code in TOO_LARGE and form.has_value and form.codec is Codec.NONE:
        return form._replace(codec=Codec.ZSTD)
    return form._replace(codec=Codec.NONE, has_value=False) if form.has_value else None


def dead_letter_batch(letter: DeadLetter, form: LetterForm, now_ms: int) -> bytearray:
    """Encode the letter as a batch of one record of this form, with the timestamp `now_ms`."""
    return encode_batch([dead_letter_record(letter, form)], base_timestamp_ms=now_ms, codec=form.codec)


def dead_letter_record(letter: DeadLetter, form: LetterForm) -> BatchRecord:
    """Return the letter's record in this form."""
    if not form.has_value:
        return _without_value(letter)
    return BatchRecord(0, 0, letter.record.key, letter.record.value, dead_letter_headers(letter))


def _without_value(letter: DeadLetter) -> BatchRecord:
    """Return a letter that names the message's place. The header `flakelog-dead-value` tells it from a tombstone."""
    key, value, headers = letter.record.key, letter.record.value, letter.record.headers
    facts = {"value": LEFT_OUT, "value-bytes": str(len(value or b""))}
    if key is not None and len(key) > KEPT_BYTES_MAX:
        key, facts["key"] = None, LEFT_OUT
    if sum(len(name) + len(data or b"") for name, data in headers) > KEPT_BYTES_MAX:
        headers, facts["headers"] = (), LEFT_OUT
    letter = letter._replace(record=letter.record._replace(headers=headers))
    return BatchRecord(0, 0, key, None, dead_letter_headers(letter) + _added(facts))


def dead_letter_headers(letter: DeadLetter) -> Headers:
    """Return the record's own headers followed by the `flakelog-dead-` headers; added values are UTF-8 text."""
    facts: dict[str, object] = {
        "reason": letter.reason,
        "error": letter.error.encode(errors="backslashreplace")[:ERROR_BYTES_MAX].decode(errors="ignore"),
        "attempts": letter.attempts,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.record.offset,
        "timestamp-ms": letter.record.timestamp_ms,
    }
    if letter.record.id is not None:
        facts["id"] = letter.record.id
    return letter.record.headers + _added(facts)


def _added(facts: Mapping[str, object]) -> Headers:
    return tuple((f"flakelog-dead-{name}", str(value).encode()) for name, value in facts.items())
