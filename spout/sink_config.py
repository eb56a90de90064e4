"""Settings of a sink that writes a topic, each with the reason for its default."""

from dataclasses import dataclass

from broker.record.compression import Codec
from idgen.settings import at_least, between, check_settings, one_of, setting
from spout.partitioner import CRC32, MURMUR2


@dataclass(frozen=True)
class SinkConfig:
    """Settings of `LogSink`. Raise InvalidSetting if a value is out of range."""

    sink_held_bytes: int = setting(
        "flakelog.sink.held.bytes",
        64 << 20,
        "records that a sink holds: until the broker has them, or with exactly_once until their messages are settled "
        "and committed; past it tuples are refused as Unavailable, or the spouts wait",
        check=at_least(1),
        unit="bytes",
    )
    sink_batch_bytes: int = setting(
        "flakelog.sink.batch.bytes",
        512 << 10,
        "records in one batch of a partition, overshot by one record at most; half of Kafka's max.message.bytes",
        check=at_least(1),
        unit="bytes",
    )
    sink_record_bytes: int = setting(
        "flakelog.sink.record.bytes",
        1_000_000,
        "a tuple that makes a longer record fails by name; Kafka's topics take 1,048,588 bytes a batch",
        check=at_least(1),
        unit="bytes",
    )
    sink_compression: str = setting(
        "flakelog.sink.compression",
        "none",
        "codec of the batches, as compression.type of Kafka's producer",
        check=one_of(*(codec.name.lower() for codec in Codec)),
    )
    sink_partitioner: str = setting(
        "flakelog.sink.partitioner",
        CRC32,
        "which partition a key belongs to: crc32 as librdkafka and our Producer, murmur2 as Kafka's Java clients; "
        "programs that write the same keys to a topic need the same",
        check=one_of(CRC32, MURMUR2),
    )
    sink_commit_interval_ms: int = setting(
        "flakelog.sink.commit.interval.ms",
        100,
        "with exactly_once, how often a transaction is committed, as in Kafka Streams; readers wait so long",
        check=at_least(1),
        unit="ms",
    )
    sink_commit_bytes: int = setting(
        "flakelog.sink.commit.bytes",
        8 << 20,
        "with exactly_once, records of settled messages that are committed before the interval is over",
        check=at_least(1),
        unit="bytes",
    )
    sink_transaction_timeout_ms: int = setting(
        "flakelog.sink.transaction.timeout.ms",
        10_000,
        "with exactly_once, when the broker aborts the transaction of a process that was killed; until then its "
        "partitions wait, and readers wait; as Kafka Streams",
        check=between(1_000, 900_000),
        unit="ms",
    )
    sink_instance: str = setting(
        "flakelog.sink.instance",
        "",
        "with exactly_once, a name of this process that survives a restart, such as a pod's: the next process of that "
        "name ends the open transaction at once; empty: each run has its own",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def codec(self) -> Codec:
        """Return the codec that `flakelog.sink.compression` names."""
        return Codec[self.sink_compression.upper()]
