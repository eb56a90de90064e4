"""Every setting of early Kafka's consumer (0.8.2), and its treatment by a ConsumerConnector. The module is data.

    TAKEN     ConnectorConfig has it, under this name or today's
    ARGUMENT  ConsumerConnector takes it as an argument
    REFUSED   ConsumerConnector has no such behaviour; the reason says what to do instead

A refused setting may have the value that describes ConsumerConnector (`offsets.storage=zookeeper`). Names and defaults
are those of https://kafka.apache.org/082/documentation.html#consumerconfigs.
"""

from typing import NamedTuple

TAKEN, ARGUMENT, REFUSED = "taken", "argument", "refused"


class EarlySetting(NamedTuple):
    """A setting of Kafka 0.8's consumer.

    `default` is Kafka's, as text. `ours` is the name of the setting or argument that takes it. `harmless` has the
    values of a refused setting that describe ConsumerConnector.
    """

    name: str
    default: str
    standing: str
    ours: str = ""
    reason: str = ""
    harmless: tuple[str, ...] = ()


_KAFKA_GROUPS = (
    "offsets are kept in ZooKeeper; a Consumer keeps them in Kafka, and `flakelog registry copy` copies them there"
)

EARLY_SETTINGS = (
    EarlySetting("group.id", "", ARGUMENT, "group"),
    EarlySetting("zookeeper.connect", "", ARGUMENT, "zookeeper"),
    EarlySetting(
        "consumer.id",
        "",
        REFUSED,
        reason="a consumer's name is its own, HOST:UUID, so that nodes with this name are its own; leave it out",
    ),
    EarlySetting("socket.timeout.ms", "30000", TAKEN, "socket.timeout.ms"),
    EarlySetting(
        "socket.receive.buffer.bytes",
        "65536",
        REFUSED,
        reason="the kernel sizes the buffer by the connection's speed; leave it out",
    ),
    EarlySetting("fetch.message.max.bytes", "1048576", TAKEN, "max.partition.fetch.bytes"),
    EarlySetting(
        "num.consumer.fetchers",
        "1",
        REFUSED,
        reason="each stream has one connection to each broker; ask for more streams",
        harmless=("1",),
    ),
    EarlySetting(
        "auto.commit.enable", "true", TAKEN, "auto.commit.interval.ms", "false is none"
    ),
    EarlySetting("auto.commit.interval.ms", "60000", TAKEN, "auto.commit.interval.ms"),
    EarlySetting(
        "queued.max.message.chunks",
        "2",
        REFUSED,
        reason="a stream's queue is limited by bytes; set flakelog.consumer.prefetch.bytes",
    ),
    EarlySetting("rebalance.max.retries", "4", TAKEN, "rebalance.retries.max", "the name of 0.7"),
    EarlySetting("fetch.min.bytes", "1", TAKEN, "fetch.min.bytes"),
    EarlySetting("fetch.wait.max.ms", "100", TAKEN, "fetch.max.wait.ms"),
    EarlySetting("rebalance.backoff.ms", "2000", TAKEN, "rebalance.backoff.ms"),
    EarlySetting(
        "refresh.leader.backoff.ms",
        "200",
        REFUSED,
        reason="a partition without a leader is asked for again after 100 ms, later after up to 1 s; leave it out",
    ),
    EarlySetting("auto.offset.reset", "largest", TAKEN, "auto.offset.reset"),
    EarlySetting("consumer.timeout.ms", "-1", TAKEN, "consumer.timeout.ms", "-1 is none"),
    EarlySetting(
        "exclude.internal.topics",
        "true",
        REFUSED,
        reason="a TopicFilter leaves out internal topics; name them to read them",
        harmless=("true",),
    ),
    EarlySetting(
        "partition.assignment.strategy",
        "range",
        REFUSED,
        reason="consumers agree only if all assign alike, and all here assign ranges",
        harmless=("range",),
    ),
    EarlySetting("client.id", "group.id", TAKEN, "client.id"),
    EarlySetting("zookeeper.session.timeout.ms", "6000", TAKEN, "zookeeper.session.timeout.ms"),
    EarlySetting("zookeeper.connection.timeout.ms", "6000", TAKEN, "zookeeper.connection.timeout.ms"),
    EarlySetting(
        "zookeeper.sync.time.ms",
        "2000",
        REFUSED,
        reason="nothing counts on a follower of ZooKeeper that is so far behind; set rebalance.backoff.ms",
    ),
    EarlySetting("offsets.storage", "zookeeper", REFUSED, reason=_KAFKA_GROUPS, harmless=("zookeeper",)),
    EarlySetting("dual.commit.enabled", "true", REFUSED, reason=_KAFKA_GROUPS, harmless=("false",)),
    EarlySetting("offsets.channel.backoff.ms", "1000", REFUSED, reason=_KAFKA_GROUPS),
    EarlySetting("offsets.channel.socket.timeout.ms", "10000", REFUSED, reason=_KAFKA_GROUPS),
    EarlySetting("offsets.commit.max.retries", "5", REFUSED, reason=_KAFKA_GROUPS),
)
