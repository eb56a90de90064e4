"""Settings of the transaction coordinator, under Kafka's names (TransactionLogConfig, TransactionStateManagerConfig).
"""

from dataclasses import dataclass

from idgen.settings import at_least, check_settings, setting

DAY_MS = 86_400_000


@dataclass(frozen=True, kw_only=True)
class TransactionConfig:
    """Settings of transactions. Raises InvalidSetting if a value cannot work."""

    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        7 * DAY_MS,
        "A transactional id that nobody uses for so long is forgotten; a transaction that is on never is.",
        check=at_least(1),
        unit="ms",
    )
    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        900_000,
        "Longest transaction.timeout.ms a producer may ask for: an open transaction holds its readers back.",
        check=at_least(1),
        unit="ms",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often transactions are looked through for what has timed out, which is then aborted.",
        check=at_least(1),
        unit="ms",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often transactional ids are looked through for what has expired.",
        check=at_least(1),
        unit="ms",
    )
    transaction_state_log_num_partitions: int = setting(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of __transaction_state, counted when it is made: a transactional id's place in it depends on this.",
        check=at_least(1),
        unit="partitions",
    )
    transaction_state_log_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        3,
        "Copies of __transaction_state, when it is made. A server alone makes one, and `--processes 2` makes two.",
        check=at_least(1),
        unit="copies",
    )
    transaction_state_log_min_isr: int = setting(
        "transaction.state.log.min.isr",
        2,
        "min.insync.replicas of __transaction_state, when a cluster makes it. With `--processes 2` it is 1.",
        check=at_least(1),
        unit="copies",
    )
    transaction_state_log_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes",
        100 << 20,
        "Size of a segment of __transaction_state, when it is made; smaller ones are compacted sooner.",
        check=at_least(1 << 10),
        unit="bytes",
    )
    transaction_partition_verification_enable: bool = setting(
        "transaction.partition.verification.enable",
        True,
        "Whether a batch of a transaction is taken only for partitions that were added to it (KIP-890).",
    )
    transactional_ids_max: int = setting(
        "flakelog.transactional.ids.max",
        100_000,
        "Most transactional ids at a time; InitProducerId for one more is refused with POLICY_VIOLATION.",
        check=at_least(1),
        unit="ids",
    )
    transactional_id_pattern_steps_max: int = setting(
        "flakelog.transactional.id.pattern.steps.max",
        5_000_000,
        "Most steps that matching the pattern of one ListTransactions may take: nobody else is served for that second.",
        check=at_least(1),
        unit="steps",
    )
    marker_requests_max: int = setting(
        "flakelog.marker.requests.max",
        8,
        "Most requests for markers (WriteTxnMarkers) that are written some at a time: each may name a hundred thousand "
        "partitions, and is seen to though who asked has gone. Of one more all is refused with BROKER_NOT_AVAILABLE.",
        check=at_least(1),
        unit="requests",
    )
    transaction_marker_retry_ms: int = setting(
        "flakelog.transaction.marker.retry.ms",
        1_000,
        "How soon the end of a transaction is tried again where a partition could not take its marker.",
        check=at_least(1),
        unit="ms",
    )

    def __post_init__(self) -> None:
        check_settings(self)
