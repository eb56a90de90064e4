"""Messages given up: why, and the record they become.

A dead letter keeps key and value as they were, so that the topic can be played back into its source; what happened
stands in headers.
"""

from broker.record.records import Headers
from partition_manager.ports import DeadLetter

ATTEMPTS = "attempts"  # failed spout_max_attempts times
UNDECODABLE = "undecodable"  # the scheme could not read it: no further attempt would help
EXPIRED = "expired"  # failed more than spout_max_offset_behind behind
REASONS = (ATTEMPTS, UNDECODABLE, EXPIRED)

ERROR_BYTES_MAX = 2_000  # of the failure's own words: enough to know it by, far below any message limit


def dead_letter_headers(letter: DeadLetter) -> Headers:
    """The record's own headers, then ours, each name beginning `flakelog-dead-`; all values are UTF-8 text."""
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
