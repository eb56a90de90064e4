"""Dead letters of a topic: read from their topic, described for people, and made into the messages they were."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.record.records import BatchRecord, encode_batch
from flakelog.operations.partitions import is_internal

if TYPE_CHECKING:
    from broker.client.records import Record as ReadRecord

PREFIX = "flakelog-dead-"
POISON = "poison"
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
SEND_BYTES_MAX = 256 << 10  # of the messages sent back in one batch: far below every topic's limit
SEND_RECORDS_MAX = 500


class Letter(NamedTuple):
    """A dead letter: where it lies, and what its headers say of the message. `id` is None from brokers without ids.

    `begin` is the offset after the letter before it. `is_handled` says that the message was sent back.
    """

    partition: int
    offset: int
    reason: str
    error: str
    attempts: int
    source: str
    source_partition: int
    source_offset: int
    timestamp_ms: int
    id: int | None
    has_value: bool
    record: "ReadRecord"
    begin: int = 0
    is_handled: bool = False

    @property
    def place(self) -> str:
        """Return partition:offset in the dead-letter topic, which names the letter."""
        return f"{self.partition}:{self.offset}"

    @property
    def unsendable(self) -> str | None:
        """Return why the message cannot be sent back, or None."""
        if is_internal(self.source):
            return f"it names the broker's own topic {self.source[:60]} as its source"
        if not (0 <= self.source_partition <= INT32_MAX and -1 <= self.timestamp_ms <= INT64_MAX):
            return "its headers name no partition, or no time"
        if self.reason == POISON:
            return "it is a batch whose records cannot be decoded"
        return None if self.has_value else "the topic refused its value as too large, so only its place is known"


def letter_of(partition: int, record: "ReadRecord") -> Letter | None:
    """Return the letter in a record of a dead-letter topic, or None if the record is none."""
    facts = {name.removeprefix(PREFIX): (data or b"").decode(errors="replace") for name, data in _ours(record.headers)}
    try:
        return Letter(
            partition,
            record.offset,
            facts["reason"],
            facts.get("error", ""),
            int(facts.get("attempts", 0)),
            facts["topic"],
            int(facts["partition"]),
            int(facts["offset"]),
            int(facts.get("timestamp-ms", record.timestamp_ms)),
            int(facts["id"]) if "id" in facts else None,
            "value" not in facts,
            record,
            record.offset,
        )
    except (KeyError, ValueError):
        return None


def _ours(headers: Iterable[tuple[str, bytes | None]]) -> Iterator[tuple[str, bytes | None]]:
    return ((name, data) for name, data in headers if name.startswith(PREFIX))


def described(letter: Letter) -> dict[str, Any]:
    """Return a letter as data for JSON, without its key, value and own headers."""
    fields = letter._asdict()
    del fields["record"], fields["begin"]
    return fields | {"bytes": len(letter.record.value or b"")}


def batches(letters: Iterable[Letter]) -> Iterator[tuple[int, list[Letter], bytearray]]:
    """Yield (partition, letters, batch) to produce to the source topic, so that each message is as it was.

    Messages of a partition keep their order. Key, value, time and own headers are the message's.
    """
    by_partition: dict[int, list[Letter]] = {}
    for letter in letters:
        by_partition.setdefault(letter.source_partition, []).append(letter)
    for partition, some in sorted(by_partition.items()):
        for chunk in _chunks(some):
            yield partition, chunk, _batch(chunk)


def _chunks(letters: list[Letter]) -> Iterator[list[Letter]]:
    chunk: list[Letter] = []
    size = 0
    for letter in letters:
        weight = len(letter.record.value or b"") + len(letter.record.key or b"")
        if chunk and (size + weight > SEND_BYTES_MAX or len(chunk) == SEND_RECORDS_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(letter)
        size += weight
    if chunk:
        yield chunk


def _batch(letters: list[Letter]) -> bytearray:
    base_ms = min(letter.timestamp_ms for letter in letters)
    records = [
        BatchRecord(
            number,
            letter.timestamp_ms - base_ms,
            letter.record.key,
            letter.record.value,
            tuple((name, data) for name, data in letter.record.headers if not name.startswith(PREFIX)),
        )
        for number, letter in enumerate(letters)
    ]
    return encode_batch(records, base_timestamp_ms=base_ms)
