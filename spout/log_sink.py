"""A bolt that writes its input tuples to a topic of Flakelog or Apache Kafka.

    topology.bolt("totals", LogSink("totals", key="carrier", value="total")).fields("delays", "carrier")

At least once, the default: a tuple is acked when all replicas in sync have its record. So no record is lost, and one
may be there twice: after a lost answer of the broker, or because another tuple of the same message failed.

With `exactly_once`, a read_committed consumer of the topic sees the outputs of each message once. The outputs of all
sinks of the process, its dead letters and the progress of its spouts are committed in one transaction (KIP-447). This
needs `store="kafka"` at all spouts that feed the sink, and one cluster for all. The state of bolts is not covered:
after a failure they process the message again.

A topic may never take a record, because it is too large for instance. The tuple then fails. With `exactly_once` the
message becomes a dead letter in the same transaction, or ends the topology if there are no dead letters.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, cast

from broker.client.address import parse_addresses
from broker.client.security.client_security import Security, checked_security
from spout.api import Bolt, Tuple, Unavailable
from spout.log_spout import LogSpout
from spout.settlement import Settlement
from spout.sink_batches import Outcome, SinkBatches
from spout.sink_config import SinkConfig
from spout.sink_ports import Output, SinkAnswer


class LogSink(Bolt):
    """A bolt that makes a record of `topic` from each tuple.

    `key` and `value` name fields of the tuples; a tuple without the field `key` gives a record without a key. Values
    are bytes, text (written as UTF-8) or None. Equal keys go to one partition, and records of one partition keep the
    order of the tuples in a task. Override `output` for other records. `servers` is host:port, or several separated by
    commas. `security` has Kafka's client properties for TLS and a login, as LogSpout's. The topic must exist. With
    `exactly_once`, messages follow each other in the order they were settled, and the outputs of a message keep theirs.
    Raise ValueError if `topic` is empty, or if `servers` or `security` is not valid.
    """

    auto_ack: ClassVar[bool] = False

    _settlement: Settlement | None = None
    _sources: Mapping[str, Security] = MappingProxyType({})

    def __init__(
        self,
        topic: str,
        *,
        servers: str = "127.0.0.1:9092",
        key: str = "key",
        value: str = "value",
        exactly_once: bool = False,
        config: SinkConfig = SinkConfig(),
        security: Security = None,
    ) -> None:
        if not isinstance(topic, str) or not topic:
            raise ValueError(f"topic={topic!r}: a LogSink needs the name of a topic")
        parse_addresses(servers)
        self.topic = topic
        self.servers = servers
        self.key = key
        self.value = value
        self.exactly_once = exactly_once
        self.config = config
        self.security = checked_security(security)

    def output(self, tup: Tuple) -> Output:
        """Return the record of a tuple. Raise KeyError if a field is missing, TypeError if a value is no text."""
        key = _bytes(tup[self.key], self.key) if self.key in tup.fields.index else None
        return Output(self.topic, key, _bytes(tup[self.value], self.value))

    def settle_with(self, settlement: Settlement, sources: Mapping[str, Security]) -> None:
        """Take part in these transactions. Called before `prepare`.

        `sources` are the servers that the spouts read, each with the security of its clients.
        """
        self._settlement = settlement
        self._sources = sources

    def prepare(self) -> None:
        """Create the port, and the batches if there are no transactions, without waiting for an answer."""
        context = self.context
        if self._settlement is not None:
            instance = context.config.topology_instance or self.config.sink_instance or context.run_id
            id = f"{context.topology_id}.{instance}"
            transactor = context.world.transactor
            make = partial(transactor, self.servers, self._sources, id, self.config, security=self.security)
            self._settlement.open(make, context.wake)
        else:
            self._batches = SinkBatches(self.topic, self.config)
            self._producer = context.world.producer(self.servers, security=self.security)
            self._failing = False

    def execute(self, tup: Tuple) -> None:
        """Hold the tuple's record for the next batch or transaction, or fail the tuple."""
        output = self.output(tup)
        limit = self.config.sink_record_bytes
        if output.size > limit:
            raise ValueError(f"a record of {output.size} bytes is over the {limit} of flakelog.sink.record.bytes")
        if self._settlement is not None:
            self._hold(self._settlement, output, tup)
        elif self._batches.is_full:
            held = f"{self._batches.held_bytes} bytes wait for {self.servers}"
            self.fail(tup, Unavailable(f"{held}; flakelog.sink.held.bytes allows no more"))
        else:
            self._batches.add(output, tup)
            self._send()

    def cleanup(self) -> None:
        """Close the port; the tuples of unconfirmed records are emitted again by the next run."""
        if self._settlement is not None:
            self._settlement.close()
        else:
            self._producer.close()

    # --- internals

    def _hold(self, settlement: Settlement, output: Output, tup: Tuple) -> None:
        keys = list(tup.link.roots()) if tup.link is not None else []
        if not keys:
            wanted = "exactly_once needs tuples that are anchored to their messages"
            raise ValueError(f"{tup!r} comes from no message: {wanted}")
        settlement.hold([(cast(LogSpout, spout).settlement_source, id) for spout, id in keys], output)
        self.ack(tup)

    def _send(self) -> None:
        for number, request in self._batches.take():
            self._producer.ask(request, partial(self._answered, number))

    def _answered(self, number: int, answer: SinkAnswer) -> None:
        self._settle(self._batches.answered(number, answer))
        self._send()
        self.context.wake()

    def _settle(self, outcome: Outcome) -> None:
        if outcome.failed and not (outcome.passes and self._failing):  # an outage is reported once, not for each batch
            self.collector.report_error(f"topic {self.topic}: {outcome.error}", outcome.failed)
        if outcome.acked or outcome.failed:
            self._failing = outcome.passes
        for tup in outcome.acked:
            self.ack(tup)
        for tup in outcome.failed:
            self.fail(tup, Unavailable(outcome.error) if outcome.passes else outcome.error)


def _bytes(value: Any, field: str) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    wanted = "LogSink writes bytes and text; encode it in a bolt before, or override LogSink.output"
    raise TypeError(f"field {field!r} holds a {type(value).__name__}: {wanted}")
