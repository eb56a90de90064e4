"""The broker's settings and a topic's, under Kafka's names (https://kafka.apache.org/documentation/#brokerconfigs).

A topic's setting overrides the broker's default for it (`log.segment.bytes` is the default of `segment.bytes`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

from broker.wire.produce import ANSWERED_ACKS
from idgen.settings import (
    Check,
    InvalidSetting,
    at_least,
    between,
    check_settings,
    one_of,
    parse_setting,
    setting,
    settings_of,
)

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1

_SECRET = re.compile(
    r"password|passphrase|secret|jaas|credential|console\.token|keystore\.(key|certificate\.chain)|"
    r"truststore\.certificates"
)

DELETE = "delete"
COMPACT = "compact"
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
PRODUCER = "producer"
UNCOMPRESSED = "uncompressed"
FULL = "full"
LENGTHS = "lengths"
HEADER = "header"
VALIDATE_RECORDS = (FULL, LENGTHS, HEADER)
AUTHORIZERS = (
    "",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
"""The values of `authorizer.class.name`. The last one, in files of older brokers, means the same here."""
COMPRESSION_TYPES = (PRODUCER, UNCOMPRESSED, "gzip", "snappy", "lz4", "zstd")


C = TypeVar("C", bound="TopicConfig | BrokerConfig")


def with_properties(config: C, properties: Mapping[str, str]) -> C:
    """Return `config` with textual properties applied; ignore names it does not have. Raise InvalidSetting."""
    given = {s.field: parse_setting(s, properties[s.name]) for s in settings_of(type(config)) if s.name in properties}
    return replace(config, **given) if given else config


NO_TOPIC_SETTING = "topics have no such setting"


def near_name(name: str, names: Sequence[str]) -> str:
    """Return a hint for an unknown name: the nearest known name, or all known names."""
    near = get_close_matches(name, names, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def _policies(value: str) -> list[str]:
    return [policy.strip() for policy in value.split(",") if policy.strip()]


def _gzip_level(value: int) -> str | None:
    return None if value == -1 or 1 <= value <= 9 else "must be between 1 and 9, or -1"


def _cleanup_policy(value: str) -> str | None:
    is_known = {DELETE, COMPACT}.issuperset(policy.strip() for policy in value.split(","))
    return None if is_known or not value.strip() else "must be delete, compact, both with a comma between, or empty"


def parse_overrides(value: str) -> dict[str, int]:
    """Parse "address:number,..." into a mapping. IPv6 addresses may be in brackets. Raise ValueError."""
    overrides = {}
    for override in filter(None, (part.strip() for part in value.split(","))):
        address, _, number = override.rpartition(":")
        overrides[str(ip_address(address.strip("[]")))] = int(number)
    return overrides


def parse_super_users(value: str) -> frozenset[str]:
    """Parse "User:ada;User:CN=brokers,O=x" into principals. Raise ValueError."""
    users = frozenset(filter(None, (part.strip() for part in value.split(";"))))
    for user in users:
        kind, separator, _ = user.partition(":")
        if not kind or not separator:
            raise ValueError(f"{user} is no principal")
    return users


def _super_users(value: str) -> str | None:
    try:
        parse_super_users(value)
    except ValueError as error:
        return f"must be principals as User:ada, with a semicolon between them; {error}"
    return None


def _connection_overrides(value: str) -> str | None:
    try:
        overrides = parse_overrides(value)
    except ValueError:
        return "must be address:number,... with addresses, not names"
    return None if all(number >= 0 for number in overrides.values()) else "no number can be below 0"


def _minus_one_or(least: int) -> Check:
    return lambda value: None if value == -1 or value >= least else f"must be at least {least}, or -1"


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """Settings that a topic can override (https://kafka.apache.org/documentation/#topicconfigs)."""

    segment_bytes: int = setting(
        "segment.bytes",
        1 << 30,
        "Size of a segment; the next batch that does not fit begins a new one.",
        check=between(1 << 10, INT_MAX),
        unit="bytes",
    )
    segment_ms: int = setting(
        "segment.ms", 7 * 86_400_000, "Age at which a segment is closed though not full.", check=at_least(1), unit="ms"
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes",
        4096,
        "Bytes of log between two index entries; fewer find faster, more make smaller indexes.",
        check=between(0, INT_MAX),
        unit="bytes",
    )
    max_message_bytes: int = setting(
        "max.message.bytes", 1_048_588, "Largest record batch taken.", check=at_least(0), unit="bytes"
    )
    flush_messages: int = setting(
        "flush.messages",
        LONG_MAX,
        "Sync the log after so many messages; with 1 each is answered when it is on the disk.",
        check=at_least(1),
        unit="messages",
    )
    flush_ms: int = setting(
        "flush.ms", LONG_MAX, "Sync the log when a message is so long in it.", check=at_least(0), unit="ms"
    )
    cleanup_policy: str = setting(
        "cleanup.policy",
        DELETE,
        "delete: old segments go; compact: the last record of each key stays; both with a comma; empty: all stays.",
        check=_cleanup_policy,
    )
    retention_ms: int = setting(
        "retention.ms",
        7 * 86_400_000,
        "Age at which a closed segment is deleted; -1 keeps all.",
        check=at_least(-1),
        unit="ms",
    )
    retention_bytes: int = setting(
        "retention.bytes",
        -1,
        "Size above which a partition's oldest segments are deleted; -1 has no bound.",
        check=at_least(-1),
        unit="bytes",
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms",
        60_000,
        "How long the files of a segment that is gone from the log stay on the disk.",
        check=at_least(0),
        unit="ms",
    )
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio",
        0.5,
        "Share of a compacted log that must be uncleaned before it is cleaned.",
        check=between(0, 1),
    )
    delete_retention_ms: int = setting(
        "delete.retention.ms",
        86_400_000,
        "How long a compacted log keeps tombstones, for readers that are behind.",
        check=at_least(0),
        unit="ms",
    )
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms", 0, "Records younger than this are not compacted.", check=at_least(0), unit="ms"
    )
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms",
        LONG_MAX,
        "Age at which a record is compacted whatever the dirty ratio.",
        check=at_least(1),
        unit="ms",
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        CREATE_TIME,
        "Whether a message's time is its producer's or the broker's at the append.",
        check=one_of(CREATE_TIME, LOG_APPEND_TIME),
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a producer's time may be behind the broker's; CreateTime only.",
        check=at_least(0),
        unit="ms",
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far a producer's time may be ahead of the broker's; CreateTime only.",
        check=at_least(0),
        unit="ms",
    )
    compression_type: str = setting(
        "compression.type",
        "producer",
        "producer keeps batches as they come; a codec, or uncompressed, has the broker write them anew.",
        check=one_of(*COMPRESSION_TYPES),
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level",
        -1,
        "How hard gzip tries where compression.type is gzip: 1 to 9, -1 its library's own default.",
        check=_gzip_level,
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level",
        9,
        "How hard lz4 tries where compression.type is lz4; 9 is its fast way, as in Kafka, and 12 to 17 are one.",
        check=between(1, 17),
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level",
        3,
        "How hard zstd tries where compression.type is zstd.",
        check=between(-131_072, 22),
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        1,
        "Replicas that must have a message before acks=all is answered; all, where a partition has fewer.",
        check=at_least(1),
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        False,
        "Let a replica lead that may lack records which the others confirmed, if no other can: the partition serves "
        "again, and those records are lost. With `flakelog.replication.enable`.",
    )
    id_header: bool = setting(
        "flakelog.id.header",
        False,
        "Give each record a header flakelog-id, its id as decimal text, for stock consumers; batches are opened: "
        "slower.",
    )
    validate_records: str = setting(
        "flakelog.validate.records",
        LENGTHS,
        "How far a producer's records are checked beyond the header of their batch. full: all fields of each record, "
        "as Kafka does; lengths: all fields of up to 16 records, and of more only that their lengths fill the batch; "
        "header: not at all.",
        check=one_of(*VALIDATE_RECORDS),
    )
    durable_acks: bool = setting(
        "flakelog.durable.acks",
        False,
        "Answer a producer only when its messages are on the disk (group commit). Of topics the broker keeps its own "
        "records in: answer commits, and steps of transactions, only then.",
    )
    visible_after_flush: bool = setting(
        "flakelog.visible.after.flush",
        False,
        "Consumers see a message only when it is on the disk; without a flush setting it is synced at once.",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def group_commit(self) -> bool:
        """Return True if appends go to the journal, so that they reach the disk as soon as possible."""
        by_itself = self.flush_messages == LONG_MAX and self.flush_ms == LONG_MAX
        return self.durable_acks or (self.visible_after_flush and by_itself)

    @property
    def waiting_acks(self) -> frozenset[int]:
        """Return the `acks` of Produce requests that are answered only when the records are on the disk.

        If `flush.messages` is 1 these are all answered requests, because Kafka flushes before it answers.
        """
        if self.durable_acks or self.flush_messages == 1:
            return ANSWERED_ACKS
        return frozenset({-1} if self.visible_after_flush else ())

    @cached_property
    def deletes(self) -> bool:
        return DELETE in _policies(self.cleanup_policy)

    @cached_property
    def compacts(self) -> bool:
        return COMPACT in _policies(self.cleanup_policy)

    @cached_property
    def asks_of_records(self) -> bool:
        """Return True if a produced batch must meet demands that `broker.log.validation.batch` does not check in its
        header."""
        return (
            self.message_timestamp_type == LOG_APPEND_TIME
            or self.message_timestamp_before_max_ms < LONG_MAX
            or self.compression_type != PRODUCER
            or self.compacts
            or self.id_header
        )

    @cached_property
    def roll_ms(self) -> int:
        """Return the age at which a segment is closed; for a compacted topic at most max.compaction.lag.ms."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms

    @staticmethod
    def check_names(properties: Mapping[str, str]) -> None:
        """Raise InvalidSetting for the first property that a topic cannot have here.

        That is an unknown name (the message has the nearest known one), a setting that is refused here, or a value that
        Kafka does not allow. Accept Kafka's settings that have no effect here (broker.settings.kafka_settings gives the
        reasons).
        """
        _check_names(tuple(properties.items()))

    def check_together(self) -> None:
        """Raise InvalidSetting if two settings exclude each other.

        Called when a topic is created or altered. Topics already on the disk are accepted as they are.
        """
        least, most = self.min_compaction_lag_ms, self.max_compaction_lag_ms
        if least > most:
            why = f"must not be above max.compaction.lag.ms, which is {most}"
            raise InvalidSetting("min.compaction.lag.ms", str(least), why)

    def with_properties(self, properties: Mapping[str, str]) -> "TopicConfig":
        """Return this configuration with a topic's settings applied. Raise InvalidSetting for an impossible value.

        Unknown names are ignored: `check_names` refuses them when a topic is created.
        """
        return _applied(self, tuple(properties.items())) if properties else self


@lru_cache(maxsize=1_000)
def _check_names(properties: tuple[tuple[str, str], ...]) -> None:
    """Cached as `_applied`; an error is not."""
    names = [setting.name for setting in settings_of(TopicConfig)]
    for name, value in properties:
        _check_known(name, value, names)


@lru_cache(maxsize=1_000)
def _applied(config: TopicConfig, properties: tuple[tuple[str, str], ...]) -> TopicConfig:
    """Cached, because a request may create or alter thousands of topics with the same settings."""
    return with_properties(config, dict(properties))


def _check_known(name: str, value: str, names: list[str]) -> None:
    """Raise InvalidSetting if topics have no such setting, or if Kafka's row of the setting refuses the value."""
    from broker.settings.kafka_settings import topic_setting

    row = topic_setting(name)
    if row is None:
        if name in names:
            return
        raise InvalidSetting(name, value, f"{NO_TOPIC_SETTING}; {near_name(name, names)}")
    refusal = row.flaw(value) if name in names else row.refusal(value)
    if refusal is not None:
        raise InvalidSetting(name, value, refusal)


class ListenerLimits(NamedTuple):
    """Connection limits of one listener, which apply in addition to the broker's limits (KIP-402, KIP-612).

    They are set as listener.name.NAME.max.connections and listener.name.NAME.max.connection.creation.rate. The fields
    are named as in BrokerConfig.
    """

    max_connections: int = INT_MAX
    max_connection_creation_rate: int = INT_MAX


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker process. Every limit has a name, a default and a reason."""

    node_id: int = setting("node.id", 1, "This broker's id in the cluster.", check=at_least(0))
    num_partitions: int = setting(
        "num.partitions", 1, "Partitions of a topic made without saying how many.", check=between(1, 100_000)
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable", True, "Make a topic when a producer or consumer first asks for it."
    )
    auto_create_topics_max: int = setting(
        "flakelog.auto.create.topics.max",
        50,
        "Topics that one Metadata request makes; for the others clients ask again.",
        check=at_least(1),
        unit="topics",
    )
    new_partitions_max: int = setting(
        "flakelog.new.partitions.max",
        10_000,
        "Partitions that one CreateTopics or CreatePartitions makes, as in Kafka: each takes four files.",
        check=at_least(1),
        unit="partitions",
    )
    max_new_logs_at_once: int = setting(
        "flakelog.max.new.logs.at.once",
        16,
        "Logs of new partitions that are made before a request is answered, and again each 10 ms until all are there: "
        "each step waits for the disk once, some 3 ms, and takes 0.2 ms a log, and everybody waits with it.",
        check=at_least(1),
        unit="logs",
    )
    delete_topic_enable: bool = setting(
        "delete.topic.enable", True, "Whether clients can delete topics; if not, they are told so."
    )
    log_segment_bytes: int = setting(
        "log.segment.bytes", 1 << 30, "Default of segment.bytes.", check=between(1 << 10, INT_MAX), unit="bytes"
    )
    log_roll_ms: int = setting(
        "log.roll.ms", 7 * 86_400_000, "Default of segment.ms.", check=at_least(1), unit="ms"
    )
    log_index_interval_bytes: int = setting(
        "log.index.interval.bytes", 4096, "Default of index.interval.bytes.", check=at_least(0), unit="bytes"
    )
    message_max_bytes: int = setting(
        "message.max.bytes", 1_048_588, "Default of max.message.bytes.", check=at_least(0), unit="bytes"
    )
    log_flush_interval_messages: int = setting(
        "log.flush.interval.messages", LONG_MAX, "Default of flush.messages.", check=at_least(1), unit="messages"
    )
    log_flush_interval_ms: int = setting(
        "log.flush.interval.ms", LONG_MAX, "Default of flush.ms.", check=at_least(0), unit="ms"
    )
    log_cleanup_policy: str = setting(
        "log.cleanup.policy", DELETE, "Default of cleanup.policy.", check=_cleanup_policy
    )
    log_retention_ms: int = setting(
        "log.retention.ms", 7 * 86_400_000, "Default of retention.ms.", check=at_least(-1), unit="ms"
    )
    log_retention_bytes: int = setting(
        "log.retention.bytes", -1, "Default of retention.bytes.", check=at_least(-1), unit="bytes"
    )
    log_segment_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms", 60_000, "Default of file.delete.delay.ms.", check=at_least(0), unit="ms"
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        300_000,
        "How often logs are looked through for segments past their retention.",
        check=at_least(1),
        unit="ms",
    )
    log_cleaner_enable: bool = setting(
        "log.cleaner.enable", True, "Whether compacted topics are compacted; __consumer_offsets is one."
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        15_000,
        "How long the cleaner pauses when no log needs it.",
        check=at_least(0),
        unit="ms",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        "log.cleaner.dedupe.buffer.size",
        128 << 20,
        "Memory for the keys of one pass of the cleaner; a log with more of them takes several passes.",
        check=at_least(1 << 16),
        unit="bytes",
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        "log.cleaner.io.max.bytes.per.second",
        1.7976931348623157e308,
        "Most bytes the cleaner reads and writes in a second, on average; without a limit it takes what a thread can.",
        check=at_least(1),
        unit="bytes/s",
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        "log.cleaner.min.cleanable.ratio", 0.5, "Default of min.cleanable.dirty.ratio.", check=between(0, 1)
    )
    log_cleaner_delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms",
        86_400_000,
        "Default of delete.retention.ms.",
        check=at_least(0),
        unit="ms",
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        "log.cleaner.min.compaction.lag.ms", 0, "Default of min.compaction.lag.ms.", check=at_least(0), unit="ms"
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        "log.cleaner.max.compaction.lag.ms",
        LONG_MAX,
        "Default of max.compaction.lag.ms.",
        check=at_least(1),
        unit="ms",
    )
    log_message_timestamp_type: str = setting(
        "log.message.timestamp.type",
        CREATE_TIME,
        "Default of message.timestamp.type.",
        check=one_of(CREATE_TIME, LOG_APPEND_TIME),
    )
    log_message_timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms",
        LONG_MAX,
        "Default of message.timestamp.before.max.ms.",
        check=at_least(0),
        unit="ms",
    )
    log_message_timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "Default of message.timestamp.after.max.ms.",
        check=at_least(0),
        unit="ms",
    )
    compression_type: str = setting(
        "compression.type", "producer", "Default of a topic's compression.type.", check=one_of(*COMPRESSION_TYPES)
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level", -1, "Default of a topic's compression.gzip.level.", check=_gzip_level
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level", 9, "Default of a topic's compression.lz4.level.", check=between(1, 17)
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level", 3, "Default of a topic's compression.zstd.level.", check=between(-131_072, 22)
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas", 1, "Default of a topic's min.insync.replicas.", check=at_least(1)
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable", False, "Default of a topic's unclean.leader.election.enable."
    )
    id_header: bool = setting("flakelog.id.header", False, "Default of a topic's flakelog.id.header.")
    validate_records: str = setting(
        "flakelog.validate.records",
        LENGTHS,
        "Default of a topic's flakelog.validate.records.",
        check=one_of(*VALIDATE_RECORDS),
    )
    durable_acks: bool = setting("flakelog.durable.acks", False, "Default of a topic's flakelog.durable.acks.")
    visible_after_flush: bool = setting(
        "flakelog.visible.after.flush", False, "Default of a topic's flakelog.visible.after.flush."
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "How often logs are synced and the checkpoint is written; a restart after a crash reads what came after it.",
        check=at_least(100),
        unit="ms",
    )
    journal_max_bytes: int = setting(
        "flakelog.journal.max.bytes",
        256 << 20,
        "Size of the journal of flakelog.durable.acks; past it partitions are synced one by one until it is cut.",
        check=at_least(1 << 16),
        unit="bytes",
    )
    sync_threads: int = setting(
        "flakelog.sync.threads",
        2,
        "Threads that sync logs, and so how many syncs are out at once; journal and cleaner have one each beside them.",
        check=between(1, 64),
    )
    read_threads: int = setting(
        "flakelog.read.threads",
        2,
        "Threads that read old data from the disk before it is sent: so many consumers wait for the disk at once.",
        check=between(1, 64),
    )
    background_sync_bytes: int = setting(
        "flakelog.background.sync.bytes",
        256 << 20,
        "A log is synced in the background after so many bytes, before the kernel holds writers up to write them back; "
        "one whose answers wait for the disk after a quarter of flakelog.journal.max.bytes at most. Set it lower where "
        "memory is short, or many partitions are written to at once.",
        check=at_least(1 << 16),
        unit="bytes",
    )
    max_open_segments: int = setting(
        "flakelog.max.open.segments",
        1_000,
        "Segments that are not written to any more and have files open, four each: those read last. They take at most "
        "a third of flakelog.max.open.files.",
        check=at_least(1),
    )
    scrub_bytes_per_second: int = setting(
        "flakelog.scrub.bytes.per.second",
        1 << 20,
        "Closed segments are read again at this rate, at most once a day, so that damage is found before the data is "
        "needed. A damaged partition goes offline by name. 0: no segment is read again.",
        check=at_least(0),
    )
    max_open_files: int = setting(
        "flakelog.max.open.files",
        0,
        "Files of partitions that are open at once. Those of silent partitions are closed, and opened again when they "
        "are used. 0: a fifth of what the system lets the process open (ulimit -n), because connections need the rest.",
        check=at_least(0),
    )
    max_partitions: int = setting(
        "flakelog.max.partitions",
        100_000,
        "Partitions of all topics together; a request for more is refused. Each takes memory and time at a start.",
        check=at_least(1),
    )
    max_batch_records: int = setting(
        "flakelog.max.batch.records",
        1_000_000,
        "Most records in one batch: each takes an id, and a batch's ids must fit into the run-ahead of 500 ms.",
        check=between(1, 2_000_000),
        unit="records",
    )
    max_opened_batch_records: int = setting(
        "flakelog.max.opened.batch.records",
        100_000,
        "Most records in a batch that is decoded, as compaction, bounds of time, another codec and ids as headers ask: "
        "that takes a thread half a second. Java's producers split what is too large.",
        check=between(1, 2_000_000),
        unit="records",
    )
    max_unpacked_batch_bytes: int = setting(
        "flakelog.max.unpacked.batch.bytes",
        128 << 20,
        "Most bytes the records of a batch may unpack to, where the broker opens it: a few can ask for gigabytes.",
        check=at_least(1024),
        unit="bytes",
    )
    max_record_headers: int = setting(
        "flakelog.max.record.headers",
        10_000,
        "Most headers of a record, where all its fields are checked: a megabyte has room for half a million, and each "
        "reader makes an object of each.",
        check=at_least(0),
        unit="headers",
    )
    open_threads: int = setting(
        "flakelog.open.threads",
        2,
        "Threads that decompress, check and rewrite the records of large batches, while other connections are served.",
        check=between(1, 64),
    )
    max_producers_per_partition: int = setting(
        "flakelog.max.producers.per.partition",
        100_000,
        "Idempotent producers a partition remembers; past it the one heard of least lately is forgotten.",
        check=at_least(1),
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        86_400_000,
        "An idempotent producer silent for so long is forgotten.",
        check=at_least(1),
        unit="ms",
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes",
        100 << 20,
        "Largest request taken; a longer one closes its connection before it takes memory.",
        check=at_least(1024),
        unit="bytes",
    )
    max_connections: int = setting(
        "max.connections",
        INT_MAX,
        "Connections open at once; one more is closed at once. listener.name.NAME.max.connections bounds one. A server "
        "that is not told a number takes half of the files it may open, and at most one for each 64 KiB of memory.",
        check=at_least(1),
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        INT_MAX,
        "Connections open at once from one address; one more is closed at once.",
        check=at_least(0),
    )
    max_connections_per_ip_overrides: str = setting(
        "max.connections.per.ip.overrides",
        "",
        "Another limit for some addresses: 10.0.0.7:100,127.0.0.1:200.",
        check=_connection_overrides,
    )
    max_connection_creation_rate: int = setting(
        "max.connection.creation.rate",
        INT_MAX,
        "Connections accepted in a second, over all listeners; past it accepting pauses, and the backlog keeps them. "
        "listener.name.NAME.max.connection.creation.rate bounds one listener's.",
        check=at_least(1),
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        -1,
        "Memory for requests that have begun and are not whole, over all connections; past it their connections are "
        "not read from until there is room. -1 has no bound but socket.request.max.bytes for each connection. A server "
        "that is not told a number takes an eighth of the machine's or the container's memory.",
        check=_minus_one_or(1),
        unit="bytes",
    )
    queued_request_ms: int = setting(
        "flakelog.queued.request.ms",
        30_000,
        "In each such time a request that is not whole must receive a 32nd of its bytes, else its connection is "
        "closed, so that peers that stop in the middle of a request hold no memory.",
        check=at_least(100),
        unit="ms",
    )
    socket_send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes",
        -1,
        "The system's send buffer of a connection (SO_SNDBUF); -1 lets the system size it as it goes, which Linux does "
        "better than any number.",
        check=_minus_one_or(1),
        unit="bytes",
    )
    socket_receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes",
        -1,
        "The system's receive buffer of a connection (SO_RCVBUF); -1 as above.",
        check=_minus_one_or(1),
        unit="bytes",
    )
    socket_listen_backlog_size: int = setting(
        "socket.listen.backlog.size",
        1024,
        "Connections the system keeps until they are accepted, if its own limit (somaxconn) lets it; Kafka's 50 loses "
        "some when a whole fleet connects anew.",
        check=at_least(1),
    )
    tls_handshakes_max: int = setting(
        "flakelog.tls.handshakes.max",
        64,
        "TLS handshakes under way at once at the listeners, and as many at the ports of HTTP and ids. The others wait, "
        "because each takes as much CPU as tens of requests.",
        check=at_least(1),
    )
    tls_handshakes_max_per_address: int = setting(
        "flakelog.tls.handshakes.max.per.address",
        16,
        "TLS handshakes of one address under way at once, so that no address holds up the others.",
        check=at_least(1),
    )
    tls_handshake_timeout_ms: int = setting(
        "flakelog.tls.handshake.timeout.ms",
        10_000,
        "A connection whose TLS handshake has not ended by then is closed.",
        check=at_least(1),
        unit="ms",
    )
    authentications_max: int = setting(
        "flakelog.authentications.max",
        1_000,
        "Clients that authenticate by SASL at once. The others wait, so that a storm of them takes little memory.",
        check=at_least(1),
    )
    authentications_max_per_address: int = setting(
        "flakelog.authentications.max.per.address",
        100,
        "Clients of one address that authenticate at once, so that no address holds up the others.",
        check=at_least(1),
    )
    authentication_timeout_ms: int = setting(
        "flakelog.authentication.timeout.ms",
        10_000,
        "A connection whose client has not authenticated by then is closed.",
        check=at_least(1),
        unit="ms",
    )
    connection_failed_authentication_delay_ms: int = setting(
        "connection.failed.authentication.delay.ms",
        100,
        "How long a client waits for the answer that its authentication has failed, so that it cannot try many "
        "passwords. No other client waits.",
        check=at_least(0),
        unit="ms",
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms", 600_000, "A connection silent for so long is closed.", check=at_least(1), unit="ms"
    )
    max_inflight_requests: int = setting(
        "flakelog.max.inflight.requests.per.connection",
        64,
        "Requests of one connection that wait for their answers; past it reading from it is paused.",
        check=at_least(1),
    )
    max_queued_bytes: int = setting(
        "flakelog.max.queued.bytes.per.connection",
        64 << 20,
        "Bytes of answers one slow reader may leave unread; past it reading from it is paused.",
        check=at_least(1 << 16),
        unit="bytes",
    )
    max_request_templates: int = setting(
        "flakelog.max.request.templates",
        10_000,
        "Produce, Fetch and ListOffsets requests that are decoded by looking them up: one for each client id, topic, "
        "partition and parameters that are repeated, some two kilobytes each; past it the one unused for longest is "
        "decoded anew.",
        check=at_least(1),
    )
    max_cold_request_bytes: int = setting(
        "flakelog.max.cold.request.bytes",
        16 << 20,
        "Bytes of a request of any API but Produce, Fetch and ListOffsets; a larger one closes its connection, because "
        "no client needs it, and it takes seconds to decode.",
        check=at_least(1 << 10),
        unit="bytes",
    )
    max_request_items: int = setting(
        "flakelog.max.request.items",
        50_000,
        "Groups, topics, settings and other array items of such a request; more close its connection, because each "
        "takes some microseconds of the one thread that serves all clients.",
        check=at_least(1),
        unit="items",
    )
    max_request_partitions: int = setting(
        "flakelog.max.request.partitions",
        10_000,
        "Partitions that one request names, of any API; more close its connection. A Produce to so many is one commit "
        "of some 0.1 s.",
        check=at_least(1),
        unit="partitions",
    )
    max_client_quotas: int = setting(
        "flakelog.max.client.quotas",
        10_000,
        "Clients, users and addresses with quotas of their own: all are written anew when one is altered.",
        check=at_least(1),
    )
    max_quota_clients: int = setting(
        "flakelog.max.quota.clients",
        10_000,
        "Clients, users and addresses whose use of a quota is remembered, some two kilobytes each; past it the one "
        "heard of longest ago begins anew.",
        check=at_least(1),
    )
    quota_window_num: int = setting(
        "quota.window.num",
        11,
        "Windows over which the rates of client quotas are counted; more let longer bursts through, and take some 100 "
        "bytes each for each client that is held to one.",
        check=between(1, 1_000),
    )
    quota_window_size_seconds: int = setting(
        "quota.window.size.seconds", 1, "How long each of them is.", check=between(1, 86_400), unit="s"
    )
    controller_quota_window_num: int = setting(
        "controller.quota.window.num",
        11,
        "Windows of controller_mutation_rate: so many times their size changes of topics may come at once.",
        check=between(1, 10_000),
    )
    controller_quota_window_size_seconds: int = setting(
        "controller.quota.window.size.seconds", 1, "How long each of them is.", check=between(1, 86_400), unit="s"
    )
    max_scram_credentials: int = setting(
        "flakelog.max.scram.credentials",
        10_000,
        "SCRAM credentials of users: all are written anew when one is altered.",
        check=at_least(1),
    )
    authorizer_class_name: str = setting(
        "authorizer.class.name",
        "",
        "Checks what clients may do by access rules; empty: every client may do everything.",
        check=one_of(*AUTHORIZERS),
    )
    super_users: str = setting(
        "super.users",
        "",
        "Principals that may do everything with an authorizer, as User:ada, with a semicolon between them.",
        check=_super_users,
    )
    allow_everyone_if_no_acl_found: bool = setting(
        "allow.everyone.if.no.acl.found",
        False,
        "With an authorizer, whether every client may do everything with a resource that no access rule is about.",
    )
    max_acls: int = setting(
        "flakelog.max.acls",
        10_000,
        "Access rules that may be added: each change of one builds their index anew, some 2 microseconds a rule.",
        check=at_least(1),
        unit="rules",
    )
    audit_lines_max: int = setting(
        "flakelog.audit.lines.max",
        20,
        "Lines about denied requests in a second; the log then says how many were left out.",
        check=at_least(1),
        unit="lines",
    )
    max_request_partition_size_limit: int = setting(
        "max.request.partition.size.limit",
        2_000,
        "Most partitions in one answer to DescribeTopicPartitions; clients ask for the rest by its cursor.",
        check=at_least(1),
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes", 55 << 20, "Most bytes in one answer to Fetch.", check=at_least(1024), unit="bytes"
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        "max.incremental.fetch.session.cache.slots",
        1_000,
        "Fetch sessions kept at once; clients that find no room send whole requests.",
        check=at_least(0),
    )
    fetch_session_partitions_max: int = setting(
        "flakelog.fetch.session.partitions.max",
        500_000,
        "Partitions all fetch sessions remember together, at about half a kilobyte each; what is more has no session.",
        check=at_least(0),
    )
    lower_replication: bool = setting(
        "flakelog.lower.replication",
        False,
        "Take a replication factor or min.insync.replicas above the number of nodes as that number, with a line in the "
        "log; otherwise the first is refused, and the second kept and shown, and asks for no more. `--dev` sets it.",
    )
    replication_enable: bool = setting(
        "flakelog.replication.enable",
        True,
        "Let topics of a cluster have several copies. Otherwise this broker neither leads nor follows such partitions.",
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        1,
        "Copies of a topic made without saying how many. A server alone makes one.",
        check=at_least(1),
        unit="copies",
    )
    replica_lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms",
        30_000,
        "A follower that has not been at the end of the leader's log for so long leaves the ISR.",
        check=at_least(1),
        unit="ms",
    )
    replica_fetch_wait_max_ms: int = setting(
        "replica.fetch.wait.max.ms",
        500,
        "How long a leader holds a follower's Fetch while there is nothing to copy; at most replica.lag.time.max.ms.",
        check=between(0, INT_MAX),
        unit="ms",
    )
    replica_fetch_min_bytes: int = setting(
        "replica.fetch.min.bytes",
        1,
        "A leader answers a follower once it has so many bytes, or replica.fetch.wait.max.ms is over.",
        check=between(0, INT_MAX),
        unit="bytes",
    )
    replica_fetch_max_bytes: int = setting(
        "replica.fetch.max.bytes",
        1 << 20,
        "Most bytes of one partition in an answer to a follower; a larger batch is copied alone.",
        check=between(0, INT_MAX),
        unit="bytes",
    )
    replica_fetch_response_max_bytes: int = setting(
        "replica.fetch.response.max.bytes",
        10 << 20,
        "Most bytes of all partitions in an answer to a follower; a larger batch is copied alone.",
        check=between(0, INT_MAX),
        unit="bytes",
    )
    replica_fetch_backoff_ms: int = setting(
        "replica.fetch.backoff.ms",
        1_000,
        "How long a follower waits before it asks again for a partition that failed, or a leader that did not answer.",
        check=between(0, INT_MAX),
        unit="ms",
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        "replica.high.watermark.checkpoint.interval.ms",
        5_000,
        "How often the high watermarks of all partitions are written to the data directory.",
        check=at_least(1),
        unit="ms",
    )
    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable",
        True,
        "Let the controller give leaderships back to the first replica of each partition, now and then.",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        300,
        "How often the controller looks at that.",
        check=at_least(1),
        unit="s",
    )
    leader_imbalance_per_broker_percentage: int = setting(
        "leader.imbalance.per.broker.percentage",
        10,
        "A broker gets its leaderships back once others lead more than this share of the partitions it is first of.",
        check=at_least(0),
        unit="%",
    )
    broker_rack: str | None = setting(
        "broker.rack", None, "Where this broker stands, as told to clients; consumers with a client.rack compare it."
    )
    max_delayed_operations: int = setting(
        "flakelog.max.delayed.operations",
        1_000_000,
        "Requests that wait for data, members or disks, over all connections; past it they are answered at once. A "
        "Fetch counts with its partitions: 10,000 hold 0.9 MB.",
        check=at_least(1),
    )
    disk_full_bytes: int = setting(
        "flakelog.disk.full.bytes",
        131_072,
        "With fewer usable bytes the data directory's disk counts as full: the log, readiness and metrics say so, and "
        "Produce is refused. The file `reserve` keeps at least as many for writes that free space; 0 keeps none.",
        check=at_least(0),
        unit="bytes",
    )
    max_id_wait_ms: int = setting(
        "flakelog.max.id.wait.ms",
        1_000,
        "How long a request waits for ids at most, if its own timeout is not shorter; then it is refused with an error "
        "that clients retry. Nothing else of its connection is executed meanwhile.",
        check=at_least(0),
        unit="ms",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.connection_failed_authentication_delay_ms >= self.connections_max_idle_ms:  # as in Kafka
            why = f"must be below connections.max.idle.ms, which is {self.connections_max_idle_ms}"
            delay = str(self.connection_failed_authentication_delay_ms)
            raise InvalidSetting("connection.failed.authentication.delay.ms", delay, why)
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            # As in Kafka: a follower that is idle would leave the ISR between two requests.
            why = f"must not be above replica.lag.time.max.ms, which is {self.replica_lag_time_max_ms}"
            raise InvalidSetting("replica.fetch.wait.max.ms", str(self.replica_fetch_wait_max_ms), why)

    @cached_property
    def topic_defaults(self) -> TopicConfig:
        return TopicConfig(**{field: getattr(self, default) for field, default in TOPIC_DEFAULTS.items()})


# For each field of TopicConfig: the field of BrokerConfig that has its default.
TOPIC_DEFAULTS = {
    "segment_bytes": "log_segment_bytes",
    "segment_ms": "log_roll_ms",
    "index_interval_bytes": "log_index_interval_bytes",
    "max_message_bytes": "message_max_bytes",
    "flush_messages": "log_flush_interval_messages",
    "flush_ms": "log_flush_interval_ms",
    "cleanup_policy": "log_cleanup_policy",
    "retention_ms": "log_retention_ms",
    "retention_bytes": "log_retention_bytes",
    "file_delete_delay_ms": "log_segment_delete_delay_ms",
    "min_cleanable_dirty_ratio": "log_cleaner_min_cleanable_ratio",
    "delete_retention_ms": "log_cleaner_delete_retention_ms",
    "min_compaction_lag_ms": "log_cleaner_min_compaction_lag_ms",
    "max_compaction_lag_ms": "log_cleaner_max_compaction_lag_ms",
    "message_timestamp_type": "log_message_timestamp_type",
    "message_timestamp_before_max_ms": "log_message_timestamp_before_max_ms",
    "message_timestamp_after_max_ms": "log_message_timestamp_after_max_ms",
    "compression_type": "compression_type",
    "compression_gzip_level": "compression_gzip_level",
    "compression_lz4_level": "compression_lz4_level",
    "compression_zstd_level": "compression_zstd_level",
    "min_insync_replicas": "min_insync_replicas",
    "unclean_leader_election_enable": "unclean_leader_election_enable",
    "id_header": "id_header",
    "validate_records": "validate_records",
    "durable_acks": "durable_acks",
    "visible_after_flush": "visible_after_flush",
}


def is_secret(name: str) -> bool:
    """Return True if the setting of this name has a secret as its value, which is never shown."""
    return _SECRET.search(name) is not None


def default_name(name: str) -> str | None:
    """Return the name of the broker's setting that is a topic setting's default; None for an unknown topic setting."""
    fields = {setting.name: setting.field for setting in settings_of(TopicConfig)}
    names = {setting.field: setting.name for setting in settings_of(BrokerConfig)}
    return names[TOPIC_DEFAULTS[fields[name]]] if name in fields else None


# The broker's settings that can be altered at run time: those of Kafka's list (DynamicBrokerConfig) that the broker
# looks up at each use. All others are read once, at the start. `DYNAMIC` has the properties' names.
DYNAMIC_FIELDS = {
    *TOPIC_DEFAULTS.values(),
    "max_connections",
    "max_connections_per_ip",
    "max_connections_per_ip_overrides",
    "max_connection_creation_rate",
    "producer_id_expiration_ms",
    "log_cleaner_backoff_ms",
    "log_cleaner_io_max_bytes_per_second",
    "log_cleaner_dedupe_buffer_size",
}
DYNAMIC = frozenset(
    broker_setting.name for broker_setting in settings_of(BrokerConfig) if broker_setting.field in DYNAMIC_FIELDS
)

# Settings with a comma-separated list as value, to which clients can append.
LISTS = frozenset({"cleanup.policy", "log.cleanup.policy"})

__all__ = ["BrokerConfig", "InvalidSetting", "TopicConfig"]
