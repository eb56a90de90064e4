"""The broker's settings, by Kafka's names (https://kafka.apache.org/documentation/#brokerconfigs), and a topic's.

A topic's own setting goes before the broker's default for it (`log.segment.bytes` is the default of `segment.bytes`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from idgen.config import InvalidSetting, at_least, between, check_settings, from_properties, setting, settings_of

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """What a topic can set for itself (https://kafka.apache.org/documentation/#topicconfigs)."""

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
        "flush.messages", LONG_MAX, "Sync the log after so many messages.", check=at_least(1), unit="messages"
    )
    flush_ms: int = setting(
        "flush.ms", LONG_MAX, "Sync the log when a message is so long in it.", check=at_least(0), unit="ms"
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @staticmethod
    def check_names(properties: Mapping[str, str]) -> None:
        """InvalidSetting for the first name that no topic can set here, with the nearest that one can."""
        known = [each.name for each in settings_of(TopicConfig)]
        for name, value in properties.items():
            if name not in known:
                near = get_close_matches(name, known, 1)
                wanted = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise InvalidSetting(name, value, f"topics have no such setting; {wanted}")

    def with_properties(self, properties: Mapping[str, str]) -> "TopicConfig":
        """This configuration with a topic's own settings over it; InvalidSetting for an impossible one.

        Names that are not known here are left alone: `check_names` refuses them where a topic is made.
        """
        made = from_properties(TopicConfig, properties)
        fields = {each.field for each in settings_of(TopicConfig) if each.name in properties}
        return replace(self, **{name: getattr(made, name) for name in fields})


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """One broker process. Every limit has a name, a default and a reason."""

    node_id: int = setting("node.id", 1, "This broker's id in the cluster.", check=at_least(0))
    num_partitions: int = setting(
        "num.partitions", 1, "Partitions of a topic made without saying how many.", check=between(1, 100_000)
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable", True, "Make a topic when a producer or consumer first asks for it."
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
    log_flush_offset_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "How often logs are synced and the checkpoint is written; a restart after a crash reads what came after it.",
        check=at_least(100),
        unit="ms",
    )
    max_batch_records: int = setting(
        "flakelog.max.batch.records",
        1_000_000,
        "Most records in one batch: each takes an id, and a batch's ids must fit into the run-ahead of 500 ms.",
        check=between(1, 2_000_000),
        unit="records",
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
        "max.connections", INT_MAX, "Connections open at once; one more is closed at once.", check=at_least(1)
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
    fetch_max_bytes: int = setting(
        "fetch.max.bytes", 55 << 20, "Most bytes in one answer to Fetch.", check=at_least(1024), unit="bytes"
    )
    max_delayed_operations: int = setting(
        "flakelog.max.delayed.operations",
        1_000_000,
        "Requests that wait for data, members or disks, over all connections; past it they are answered at once.",
        check=at_least(1),
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def topic_defaults(self) -> TopicConfig:
        return TopicConfig(
            segment_bytes=self.log_segment_bytes,
            segment_ms=self.log_roll_ms,
            index_interval_bytes=self.log_index_interval_bytes,
            max_message_bytes=self.message_max_bytes,
            flush_messages=self.log_flush_interval_messages,
            flush_ms=self.log_flush_interval_ms,
        )


__all__ = ["BrokerConfig", "InvalidSetting", "TopicConfig"]
