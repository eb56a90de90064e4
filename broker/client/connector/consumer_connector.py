"""SHELL (threads): early Kafka's consumer, for programs with threads."""

from collections.abc import Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, Self, overload

from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.connector_thread import ConnectorThread
from broker.client.connector.stream_feed import Decoder, StreamFeed, decoded
from broker.client.connector.topic_filter import TopicFilter
from broker.client.log_record import Record
from broker.client.security.client_security import Security


class MessageStream:
    """An iterator of the records of one stream. It refuses a second thread that asks while one waits.

    It ends after `consumer_timeout_ms` without a record, and may be asked again; and when the connector is shut down. A
    record counts as processed when the next one is asked for.
    """

    def __init__(self, thread: ConnectorThread, feed: StreamFeed, decoder: Decoder | None) -> None:
        self._thread = thread
        self._feed = feed
        self._decoder = decoder
        self._timeout_ms = thread.config.consumer_timeout_ms

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """Return the next record, its value decoded. Raise what the decoder raises; the next call skips the record."""
        if self._thread.is_child:
            self._thread.check_process()
        record = self._feed.take(self._timeout_ms)
        if record is None:
            raise StopIteration
        return record if self._decoder is None else decoded(record, self._decoder)


class ConsumerConnector:
    """A consumer that shares topics with the others of its group through ZooKeeper, as early Kafka's did.

        with ConsumerConnector("zk1:2181/chroot", "billing") as connector:
            [stream] = connector.streams({"orders": 1})["orders"]
            for record in stream:
                print(record.topic, record.partition, record.offset, record.id, record.value)

    **Groups.** Consumers with the same `group` share the partitions: each runs the rebalance by itself. Their nodes
    have the layout of Kafka 0.8, below /consumers. The brokers keep nothing of it, so they may be of any kind. They are
    those that ZooKeeper names, or `servers`. A group may have consumers of both kinds.

    **Security.** `security` has properties of Kafka's clients. From ZooKeeper come the brokers' listeners of its
    `security.protocol`.

    **Streams.** `streams` begins to consume. Each stream reads some of the partitions, and may have a thread of its
    own. Partitions that are added, and topics that begin to match a TopicFilter, join by themselves. A full queue of a
    stream stops its fetches, and no other's.

    **Commits.** The connector commits processed records every `auto_commit_interval_ms`, before a partition goes to
    another consumer, and at the end. A record counts as processed when its stream is asked for the next one. In
    `commit_offsets` and `shutdown`, and at the end of the `with` block, the record that the calling thread took last
    counts too. If an exception leaves the block, it comes again. After a crash, all records since the last commit
    come again.

    **Start.** Where the group has no offset, and where the log no longer has it, a stream begins by
    `auto_offset_reset`. A topic that was made again counts as one without offsets, and the log says so.

    **ZooKeeper.** If it does not answer, the streams go on until the session may have ended, and then wait for it.

    **Errors.** The constructor raises ClientError if no ZooKeeper answers, and ValueError for arguments that cannot
    work. A stream raises GroupRefused if another consumer does not let go of a partition within `rebalance_retries_max`
    tries. Failures that may pass are logged and tried again.
    """

    def __init__(
        self,
        zookeeper: str,
        group: str,
        servers: str | None = None,
        *,
        config: ConnectorConfig | None = None,
        security: Security = None,
    ) -> None:
        self._thread = ConnectorThread(zookeeper, group, servers, config, security)
        self._thread.open()

    @property
    def name(self) -> str:
        """The name of the consumer in the registry: HOST:UUID."""
        return self._thread.name

    @overload
    def streams(
        self, topics: Mapping[str, int], *, decoder: Decoder | None = None
    ) -> dict[str, list[MessageStream]]: ...

    @overload
    def streams(
        self, topics: TopicFilter, count: int = 1, *, decoder: Decoder | None = None
    ) -> list[MessageStream]: ...

    def streams(
        self, topics: Mapping[str, int] | TopicFilter, count: int = 1, *, decoder: Decoder | None = None
    ) -> Any:
        """Begin to consume. Call it once.

        With {"orders": 2}, return {"orders": [two streams]}. With a TopicFilter, return `count` streams that share all
        topics that it allows, now and later. `decoder` gets the bytes of each value, unless the value is null, and its
        result becomes the record's `value`. Raise InvalidTopics or ClientError.
        """
        return self._thread.streams(topics, count, lambda feed: MessageStream(self._thread, feed, decoder))

    def commit_offsets(self) -> None:
        """Commit what the streams' callers have processed, with the records that this thread took last.

        Raise CommitFailed if a partition has gone to another consumer, or if ZooKeeper does not answer.
        """
        self._thread.commit(get_ident()).result()

    def shutdown(self) -> None:
        """Commit processed records, release the partitions and leave the group. Harmless if repeated.

        Any thread may call it, and a signal handler. The streams end.
        """
        self._thread.close(get_ident())
        self._thread.join()

    def abandon(self) -> None:
        """Shut down, but let the records come again that were taken last."""
        self._thread.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.shutdown()
        else:
            self.abandon()
