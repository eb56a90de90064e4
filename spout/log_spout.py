"""A spout over topics of Flakelog or Apache Kafka: at least once, with backoff between retries and stored progress.

The scheme makes its tuples from each message, by default (id, key, value), with the message's Snowflake id first. A
message may be delivered again; see spout.once for a bolt that counts each message once.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any, cast

from broker.client.group_config import GroupMemberConfig, member_of
from broker.client.offset_spec import Earliest, OffsetSpec, check_start
from broker.client.security.client_security import Security, checked_security
from coordination.access import Access
from partition_manager.config import AT_LEAST_ONCE, NO_GUARANTEE
from partition_manager.coordinator import MessageId, PartitionCoordinator
from partition_manager.entry import Counts
from partition_manager.outage import Outage
from partition_manager.ports import GroupStore, OffsetStore, TopicPartition
from partition_manager.source import (
    KAFKA,
    ZOOKEEPER,
    InvalidSource,
    Source,
    config_in_group,
    id_of,
    servers_of,
    store_of,
    topics_of,
)
from partition_manager.standstill import Standstill
from partition_manager.task_partition import PartitionStatus
from spout.api import OutputDeclarer, SpoutOutput
from spout.config import SpoutConfig
from spout.coordinator_driver import CoordinatorDriver, SpoutPorts
from spout.engine_spout import EngineSpout
from spout.error_text import bare_text, error_text
from spout.origin import MessagePlace
from spout.scheme import Scheme, SchemeError, scheme_of, tuples_of
from spout.settlement import Settlement
from spout.transactional_driver import TransactionalDriver
from spout.work import EXITS, Interruption

STORE_ROOT = "/flakelog-spouts"  # 0.9.3's zkRoot


class LogSpout(EngineSpout):
    """A spout that reads `topic`; its tasks share the partitions.

    `topic` is one name, a list of names, or a pattern made by `re.compile`, which reads all topics whose whole name
    matches, also those that are created later. `servers` is host:port, or several separated by commas. `store` holds
    the progress: a directory, zookeeper://host:port,host:port/chroot, or "kafka". `access` gives that ZooKeeper's
    credentials, ACLs and TLS settings. `id` is the name the progress is stored under, by default <topology
    id>.<component>; two spouts with one id fence each other. With store="kafka" `id` names a consumer group instead:
    all processes with this id share the partitions, and the group's offsets hold the progress. `group` has the settings
    of a member. `security` has Kafka's client properties for TLS and a login; references such as ${file:...} and
    ${env:...} are read where the spout runs. `start` applies to partitions without stored progress. Raise
    InvalidSource, InvalidStart, InvalidScheme or InvalidSetting, all of them ValueErrors, if an argument cannot work.
    """

    def __init__(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        *,
        servers: str = "127.0.0.1:9092",
        store: str = "flakelog-progress",
        access: Access = Access(),
        id: str | None = None,
        scheme: Scheme | None = None,
        start: OffsetSpec = Earliest(),
        config: SpoutConfig = SpoutConfig(),
        group: GroupMemberConfig = GroupMemberConfig(),
        security: Security = None,
    ) -> None:
        for name, given, kind in (("config", config, SpoutConfig), ("group", group, GroupMemberConfig)):
            if not isinstance(given, kind):
                raise InvalidSource(f"{name}={given!r}: give a {kind.__name__}, such as {kind.__name__}()")
        self.topics = topics_of(topic, config)
        self.servers = servers_of(servers)
        self.store = store_of(store)
        self.access = access
        self.id = id_of(id)
        if self.store != KAFKA and "/" in (self.id or ""):
            wanted = f"progress is stored under it, so give a name such as {str(id).strip('/').replace('/', '-')!r}"
            raise InvalidSource(f"id={id!r}: it has a slash; {wanted}")
        self.scheme: Scheme = scheme_of(scheme)
        self.start = check_start(start)
        self.config = config_in_group(config, group) if self.store == KAFKA else config
        self.group = group
        self.security = checked_security(security)

    _settlement: Settlement | None = None

    @property
    def topic(self) -> str:
        """Return the name of the topic; of several, all names or the pattern."""
        return self._source().described

    @property
    def dead_letter_topic(self) -> str:
        """Return the topic for messages given up, of several topics with {topic} for the name of the message's.

        If it is empty, messages are retried for ever.
        """
        topic = self.config.spout_dead_letter_topic
        return topic.replace("{topic}", self.topics) if isinstance(self.topics, str) else topic

    @property
    def described(self) -> str:
        """Return the topic, the brokers, the store and the start, for the log."""
        start = ", ".join(f"{name} {value}" for name, value in asdict(self.start).items())
        begins = type(self.start).__name__ + (f" ({start})" if start else "")
        return f"topic {self.topic} at {self.servers}, progress in {self.store}, without any it begins at {begins}"

    def declare_output_fields(self, declarer: OutputDeclarer) -> None:
        """Declare the scheme's fields."""
        declarer.declare(*self.scheme.fields)

    # --- Storm's methods

    def open(self) -> None:
        """Create the ports and the coordinator, without sending a request."""
        context = self.context
        id = self.id or f"{context.topology_id}.{context.component}"
        path = f"{STORE_ROOT}/{id}"
        in_group = self.store == KAFKA
        folder = path if self.store.startswith(ZOOKEEPER) else f"/nodes{path}"  # as coordination.directory has it
        stored_at = f"the offsets of group {id}" if in_group else f"{self.store}{folder}"
        source = self._source(context.topology_id, context.topology, stored_at)
        owner = f"{context.run_id}.{context.task}"
        self._coordinator = PartitionCoordinator(source, context.index, context.parallelism, owner)
        self._output = cast(SpoutOutput, self.collector)
        self._started = False
        self._with_ids = self.config.spout_guarantee != NO_GUARANTEE
        store: OffsetStore | GroupStore
        if in_group:
            group = member_of(self.group, context.config.topology_instance, context.component)
            make = partial(context.world.group_member, self.servers, id, context.component, context.parallelism)
            store = make(group, security=self.security)(context.index)
        else:
            store = context.world.offset_store(self.store, path, self.access)
        fetcher = context.world.fetcher(self.servers, self.config, security=self.security)
        dead_letters = partial(context.world.dead_letters, self.servers, security=self.security)
        ports = SpoutPorts(fetcher, store, dead_letters)
        self._driver = self._make_driver(ports)
        self._messages = self._driver.messages

    def _make_driver(self, ports: SpoutPorts) -> CoordinatorDriver:
        if self._settlement is None:
            return CoordinatorDriver(self._coordinator, ports, self.context, self.config)
        return TransactionalDriver(self._settlement, self._coordinator, ports, self.context, self.config)

    def activate(self) -> None:
        """Begin to read; after `deactivate`, continue with the messages read meanwhile."""
        self._coordinator.standstills.is_paused = False
        if not self._started:
            self._started = True
            self._coordinator.start(self.context.now_ms)

    def next_tuple(self) -> None:
        """Emit the tuples of one message. Skip messages without tuples; reject those that cannot be decoded."""
        self._emit_next(self.context.now_ms)

    def next_tuples(self, limit: int, now_ms: int) -> None:
        """Emit the tuples of messages until about `limit` are emitted or no message is ready."""
        while limit > 0 and (emitted := self._emit_next(now_ms)):
            limit -= emitted

    def _emit_next(self, now_ms: int) -> int:
        """Emit the tuples of one message. Return their number, 0 if no message is ready."""
        while (emission := self._messages.next(now_ms)) is not None:
            id, message = emission
            try:
                rows = self._rows(tuples_of(self.scheme, id.topic, message.record, id.partition))
                self._output.emit_all(rows, id if self._with_ids else None)
            except (*EXITS, Interruption) as error:
                error.add_note(f"{id.topic}-{id.partition} offset {id.offset}")
                raise
            except BaseException as error:  # of the user's scheme: any of them would come again at each attempt
                self._messages.reject(id, now_ms, _reason(error))
                continue
            if len(rows) != 1:  # a message is one tuple unless told otherwise
                self._messages.fan_out(id, len(rows))  # no ack comes before this call returns
            if rows:
                if not self._with_ids:
                    self._coordinator.settle(id)
                return len(rows)
        return 0

    def ack(self, id: MessageId) -> None:
        """Ack one tuple of the message."""
        self._messages.ack(id)

    def ack_many(self, ids: Sequence[MessageId]) -> None:
        """Ack the messages of a step in one call."""
        self._messages.ack_many(ids)

    def fail(self, id: MessageId) -> None:
        """Fail one tuple of the message: it is retried later, or given up as the guarantee and the settings say."""
        context = self.context
        self._messages.fail(id, context.now_ms, context.failure, unavailable=context.unavailable)

    def place(self, id: MessageId) -> MessagePlace:
        """Return the id (or name, if it has none) of the message's topic, the partition and the offset."""
        return MessagePlace(id.topic_id or id.topic, id.partition, id.offset)

    def details(self, id: MessageId) -> Mapping[str, object]:
        """Return the message's topic, partition and offset; with its id and attempt, unless it is settled by now."""
        position = {"topic": id.topic, "partition": id.partition, "offset": id.offset}
        message = self._coordinator.message(id)
        return position if message is None else {**position, "id": message.record.id, "attempt": message.attempt}

    def watermarks(self) -> Mapping[tuple[str, int], int]:
        """Return the stored watermark of each partition of this task."""
        return self._coordinator.watermarks()

    def deactivate(self) -> None:
        """Store the progress so far; acks still come."""
        self._coordinator.standstills.is_paused = True
        self._coordinator.commit(self.context.now_ms)

    def close(self) -> None:
        """Close the ports; messages not covered by stored progress are emitted again."""
        self._driver.close()

    # --- the engine's methods

    def poll(self, now_ms: int) -> None:
        """Process answers and send requests; with a sink that is exactly once, begin transactions that are due.

        Raise CannotSettle if no transaction can ever succeed.
        """
        self._driver.poll(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when a retry, commit or request is due; now if an answer waits."""
        return self._driver.next_deadline_ms()

    def finish(self, now_ms: int) -> None:
        """Store the progress and release the partitions; `idle` becomes True when that is done."""
        self._driver.stop(now_ms)

    @property
    def idle(self) -> bool:
        """Return True if, after `finish`, every partition is stored and released."""
        return self._driver.idle

    # --- exactly once

    def exactly_once_fault(self) -> str | None:
        """Return None if the progress lies in a consumer group, because a transaction can write only there."""
        if self.config.spout_guarantee != AT_LEAST_ONCE:
            return f"its guarantee is {self.config.spout_guarantee}; flakelog.spout.guarantee must be {AT_LEAST_ONCE}"
        return None if self.store == KAFKA else f'its progress lies in {self.store}; give it store="kafka"'

    def settle_with(self, settlement: Settlement) -> None:
        """Settle the messages by these transactions."""
        self._settlement = settlement

    @property
    def settlement(self) -> Settlement | None:
        """Return the transactions of a sink that this spout feeds and that is exactly once, or None."""
        return self._settlement

    @property
    def settlement_source(self) -> TransactionalDriver:
        """Return the source of this spout's messages in the settlement."""
        return cast(TransactionalDriver, self._driver)

    # --- figures

    @property
    def counts(self) -> Counts:
        """Return the counts of message outcomes in this task's partitions."""
        return self._driver.counts

    def outage(self) -> Outage | None:
        """Return the outage because of which the spout tries messages one at a time, or None."""
        return self._coordinator.outage(self.context.now_ms)

    def group_wait_ms(self, now_ms: int) -> int:
        """Return for how long the process has waited for its group; 0 if it does not. `now_ms` as in `standstills`."""
        return self._coordinator.group_wait_ms(now_ms)

    @property
    def group_error(self) -> str:
        """Return why the group does not take this process, which then reads nothing; "" if it does."""
        return self._coordinator.refused_by

    def standstills(self, now_ms: int) -> Mapping[TopicPartition, Standstill]:
        """Return the partitions without progress. `now_ms` is on the engine's clock, which a frozen engine stops."""
        timeout_ms = self.context.config.message_timeout_ms
        return self._coordinator.standstills.find(now_ms, timeout_ms=timeout_ms, cut_ms=self._driver.next_cut_ms())

    def status(self) -> list[PartitionStatus]:
        """Return the status of this task's partitions."""
        return self._coordinator.status()

    def _rows(self, tuples: object) -> Sequence[Sequence[Any]]:
        """Return the tuples of one message, made by now. Raise SchemeError if they are no rows of values."""
        if type(tuples) is tuple and len(tuples) == 1 and type(tuples[0]) is tuple:
            return tuples  # the usual case, in short
        limit = self.config.spout_max_tuples
        if not isinstance(tuples, (tuple, list)):
            if not isinstance(tuples, Iterable):
                raise SchemeError(f"the scheme returned {type(tuples).__name__}, not an iterable of tuples")
            tuples = list(islice(tuples, limit + 1))
        if len(tuples) > limit:
            raise SchemeError(f"the scheme makes more than {limit} tuples of it (flakelog.spout.max.tuples)")
        for values in tuples:
            if not isinstance(values, (tuple, list)):
                raise SchemeError(f"the scheme made {type(values).__name__}, not a tuple of values")
        return tuples

    def _source(self, topology_id: str = "", topology: str = "", stored_at: str = "") -> Source:
        in_group = self.store == KAFKA
        return Source(self.topics, topology_id, topology, self.start, self.config, stored_at, in_group)


def clusters_read(spouts: Iterable[Any]) -> dict[str, Security]:
    """Return the servers that these spouts read, in order, each with the security of its clients."""
    clusters = {spout.servers: spout.security for spout in spouts if isinstance(spout, LogSpout)}
    return dict(sorted(clusters.items()))


def _reason(error: BaseException) -> str:
    """Return why a message is undecodable: a scheme's own text, or an exception's type and text."""
    return bare_text(error) if isinstance(error, SchemeError) else error_text(error)
