"""Settings of a spout that reads a log, each with the reason for its limit."""

from dataclasses import dataclass

from idgen.settings import InvalidSetting, at_least, between, check_settings, one_of, setting
from partition_manager.retry import RetryPolicy

EARLIEST = "earliest"
LATEST = "latest"
READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"
AT_LEAST_ONCE = "at-least-once"
AT_MOST_ONCE = "at-most-once"
NO_GUARANTEE = "none"


@dataclass(frozen=True)
class SpoutConfig:
    """Settings for reading, retrying and committing.

    Every limit applies to each partition separately, except `flakelog.spout.max.pending.bytes` for a whole task.

    Raise InvalidSetting if a value is out of range.
    """

    spout_max_topics: int = setting(
        "flakelog.spout.max.topics",
        1_000,
        "topics of one spout; of a pattern that matches more, the first by name are read and an error is logged",
        check=at_least(1),
    )
    spout_max_tuples: int = setting(
        "flakelog.spout.max.tuples",
        100_000,
        "tuples that the scheme may make of one message, held in memory at once; a message of more is undecodable",
        check=at_least(1),
    )
    spout_max_uncommitted: int = setting(
        "flakelog.spout.max.uncommitted",
        100_000,
        "messages fetched and not yet settled, in each partition; at the limit it reads no more. Settled messages do "
        "not count, so one message that takes long holds up no others; about 20 MB of bookkeeping",
        check=at_least(1),
    )
    spout_max_settled_ranges: int = setting(
        "flakelog.spout.max.settled.ranges",
        50_000,
        "ranges of settled messages behind the first unsettled one, in each partition. They grow no further: ranges "
        "and messages in flight are together twice as many at most, then only messages that extend a range are "
        "emitted; about 10 MB of bookkeeping",
        check=at_least(1),
    )
    spout_max_pending_bytes: int = setting(
        "flakelog.spout.max.pending.bytes",
        64 << 20,
        "messages not yet settled, kept in memory so that a retry needs no second fetch: all partitions of a task "
        "together. Half is divided evenly, and each partition can use its part; the other half goes to those that need "
        "more. It is exceeded by one message, while one batch is unpacked; at the limit partitions take turns",
        check=at_least(1),
        unit="bytes",
    )
    spout_fetch_max_records: int = setting(
        "flakelog.spout.fetch.max.records",
        2_000,
        "messages taken from one fetch; the next fetch begins when half as many wait in the partition, and fewer than "
        "as many in all partitions of the task",
        check=at_least(1),
    )
    spout_fetch_max_bytes: int = setting(
        "flakelog.spout.fetch.max.bytes",
        1 << 20,
        "bytes asked for in one fetch, as Kafka's max.partition.fetch.bytes",
        check=at_least(1),
        unit="bytes",
    )
    spout_fetch_answer_max_bytes: int = setting(
        "flakelog.spout.fetch.answer.max.bytes",
        4 << 20,
        "bytes asked for in one fetch from all partitions of a broker, as Kafka's fetch.max.bytes; they are decoded in "
        "one go, while the bolts wait",
        check=at_least(1),
        unit="bytes",
    )
    isolation_level: str = setting(
        "isolation.level",
        READ_UNCOMMITTED,
        "as Kafka's consumers: read_committed leaves out messages of aborted transactions, and waits for the end of "
        "open ones",
        check=one_of(READ_UNCOMMITTED, READ_COMMITTED),
    )
    spout_fetch_max_wait_ms: int = setting(
        "flakelog.spout.fetch.max.wait.ms",
        200,
        "how long the broker may hold a fetch that finds nothing new, as Kafka's fetch.max.wait.ms; the client gives "
        "an answer up after 30 s",
        check=between(0, 20_000),
        unit="ms",
    )
    spout_retry_initial_ms: int = setting(
        "flakelog.spout.retry.initial.ms", 100, "delay before the second attempt", check=at_least(0), unit="ms"
    )
    spout_retry_multiplier: float = setting(
        "flakelog.spout.retry.multiplier", 2.0, "each further delay is so many times the one before", check=at_least(1)
    )
    spout_retry_max_ms: int = setting(
        "flakelog.spout.retry.max.ms", 10_000, "no delay is longer", check=at_least(0), unit="ms"
    )
    spout_retry_jitter: float = setting(
        "flakelog.spout.retry.jitter",
        0.1,
        "share of a delay that is spread, so that what failed in one outage does not return in one moment",
        check=lambda share: None if 0 <= share < 1 else "must be a share, at least 0 and below 1",
    )
    spout_retry_share: int = setting(
        "flakelog.spout.retry.share",
        4,
        "retries emitted in a row while new messages wait: new ones get one of share + 1 turns",
        check=at_least(1),
    )
    spout_max_attempts: int = setting(
        "flakelog.spout.max.attempts",
        5,
        "attempts before a message goes to the dead letters, 0 tries for ever; five take 1.5 s with the default delays",
        check=at_least(0),
    )
    spout_outage_after_messages: int = setting(
        "flakelog.spout.outage.after.messages",
        20,
        "different messages that fail in a row, of one exception type, before the failures count as an outage: the "
        "spout tries one message at a time and counts no attempts; 0: never, every failure counts",
        check=at_least(0),
    )
    spout_outage_probe_max_ms: int = setting(
        "flakelog.spout.outage.probe.max.ms",
        60_000,
        "longest pause between two probes of an outage; the first is 100 ms, and each doubles the one before",
        check=at_least(1),
        unit="ms",
    )
    spout_outage_max_ms: int | None = setting(
        "flakelog.spout.outage.max.ms",
        None,
        "an outage that lasts longer is none: failures of its type count as attempts until a message succeeds, so that "
        "a topic of bad messages goes to the dead letters; none: an outage may last for ever, and buries no message",
        check=at_least(1),
        unit="ms",
    )
    spout_dead_letter_topic: str = setting(
        "flakelog.spout.dead.letter.topic",
        "{topic}.dead-letters",
        "where messages given up go, {topic} being the spout's; empty: nowhere, they are tried for ever",
    )
    spout_no_progress_ms: int = setting(
        "flakelog.spout.no.progress.ms",
        60_000,
        "a partition that has messages and settles none for so long stands still, and /health says so; a pause, a wait "
        "for a retry and work within its message timeout do not count. Twice the default message timeout, so that "
        "what only takes long has failed by then",
        check=at_least(1_000),
        unit="ms",
    )
    spout_max_offset_behind: int | None = setting(
        "flakelog.spout.max.offset.behind",
        None,
        "a message that fails further behind the next fetch goes to the dead letters as expired; none: no such limit",
        check=at_least(0),
    )
    spout_guarantee: str = setting(
        "flakelog.spout.guarantee",
        AT_LEAST_ONCE,
        "at-most-once stores progress before a message is emitted and repeats no failed one; none emits without ids, "
        "asks for no acks and stores its position at each commit",
        check=one_of(AT_LEAST_ONCE, AT_MOST_ONCE, NO_GUARANTEE),
    )
    spout_max_start_lag: int | None = setting(
        "flakelog.spout.max.start.lag",
        None,
        "stored progress further behind the end of the log is left for the start position, what is skipped is counted "
        "as lost; none: no such limit",
        check=at_least(0),
    )
    spout_out_of_range: str = setting(
        "flakelog.spout.out.of.range",
        EARLIEST,
        "where to go on when retention has removed what comes next; earliest skips nothing that can be read",
        check=one_of(EARLIEST, LATEST),
    )
    spout_ignore_stored: bool = setting(
        "flakelog.spout.ignore.stored",
        False,
        "leave progress stored by another topology id for the start position, as Storm's forceFromStart; "
        "the same id goes on",
    )
    spout_done_ranges_max: int = setting(
        "flakelog.spout.done.ranges.max",
        2_000,
        "settled ranges above the watermark kept in the offset document, the lowest; what lies in higher ones comes "
        "again after a restart; 2,000 are 90 KB at most, far below ZooKeeper's 1 MB",
        check=between(0, 10_000),
    )
    spout_commit_interval_ms: int = setting(
        "flakelog.spout.commit.interval.ms",
        2_000,
        "how often progress is stored, as Storm's stateUpdateIntervalMs",
        check=at_least(1),
        unit="ms",
    )
    spout_handover_ms: int = setting(
        "flakelog.spout.handover.ms",
        5_000,
        "how long a partition that its group gives to another process waits for messages in flight, before its "
        "progress is committed; those still in flight come again at the next owner. Below max.poll.interval.ms",
        check=at_least(0),
        unit="ms",
    )
    spout_refresh_interval_ms: int = setting(
        "flakelog.spout.refresh.interval.ms",
        60_000,
        "how often the topic's partitions are looked up, as Storm's refreshFreqSecs; in a consumer group its leader "
        "looks them up instead, every metadata.max.age.ms",
        check=at_least(1),
        unit="ms",
    )
    spout_error_backoff_ms: int = setting(
        "flakelog.spout.error.backoff.ms",
        250,
        "pause after the broker, the offset store or the dead letters failed, doubled up to 40 times as long",
        check=at_least(1),
        unit="ms",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.spout_retry_max_ms < self.spout_retry_initial_ms:
            wanted = f"must be at least flakelog.spout.retry.initial.ms ({self.spout_retry_initial_ms})"
            raise InvalidSetting("flakelog.spout.retry.max.ms", self.spout_retry_max_ms, wanted)

    def retry_policy(self) -> RetryPolicy:
        """Return the delays between the attempts of one message."""
        return RetryPolicy(
            self.spout_retry_initial_ms, self.spout_retry_multiplier, self.spout_retry_max_ms, self.spout_retry_jitter
        )

    def error_policy(self) -> RetryPolicy:
        """Return the delays between retries of a request to the broker, the offset store or the dead letters."""
        return RetryPolicy(self.spout_error_backoff_ms, 2.0, 40 * self.spout_error_backoff_ms)
