"""Dead letters: the reasons to give a message up, and the record written for it.

A dead letter keeps the original key and value so that the topic can be replayed into its source. Headers describe the
failure. The letter of a poison batch has the whole batch as its value, as it lies in the log, and no key.
"""

from broker.record.records import Headers
from partition_manager.ports import DeadLetter

ATTEMPTS = "attempts"  # failed spout_max_attempts times
UNDECODABLE = "undecodable"  # the scheme could not decode it, so a further attempt would not help
EXPIRED = "expired"  # failed more than spout_max_offset_behind behind
POISON = "poison"  # a batch with a valid CRC whose records cannot be decoded
REASONS = (ATTEMPTS, UNDECODABLE, EXPIRED, POISON)

ERROR_BYTES_MAX = 2_000  # bytes kept of the error text: enough to recognise the error, far below any message limit


def dead_letter_headers(letter: DeadLetter) -> Headers:
    """Return the record's own headers followed by the `flakelog-dead-` headers; added values are UTF-8 text."""
    facts: dict[str, object] = {
        "reason": letter.reason,
        "error": letter.error.encode()[:ERROR_BYTES_MAX].decode(errors="ignore"),
        "attempts": letter.attempts,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.record.offset,
        "timestamp-ms": letter.record.timestamp_ms,
    }
    if letter.record.id is not None:
        facts["id"] = letter.record.id
    ours = tuple((f"flakelog-dead-{name}", str(value).encode()) for name, value in facts.items())
    return letter.record.headers + ours
