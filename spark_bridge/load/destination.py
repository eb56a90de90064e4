"""SHELL (files, catalogs, random names, the clock): from what the user names to the sink of a load.

    flights/, s3://bucket/flights            parquet, or delta if the format says so
    iceberg://CATALOG/NAMESPACE.TABLE        a table of a catalog that pyiceberg's configuration names
    kafka://HOST:PORT,HOST:PORT/TOPIC        a topic; the record of loads is in a directory of its own
"""

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pyarrow as pa

from spark_bridge.load.decoding import decoding_of
from spark_bridge.load.ledger import LoadOptions
from spark_bridge.load.load import LoadError
from spark_bridge.load.parquet_sink import ParquetSink
from spark_bridge.load.sink import Sink
from spark_bridge.output.storage import Storage, without_user
from spark_bridge.reading.row import arrow_schema

PARQUET, DELTA, ICEBERG, TOPIC = "parquet", "delta", "iceberg", "topic"
FORMATS = (PARQUET, DELTA, ICEBERG, TOPIC)
_SCHEMES = {"iceberg": ICEBERG, "kafka": TOPIC}


@dataclass(frozen=True, slots=True)
class Destination:
    """Where loads go. `record` is the directory of the record of loads into a topic, else None.

    `security` has the properties of a Kafka client for the cluster of that topic. Raise LoadError if place, format,
    record and security do not fit together.
    """

    to: str
    format: str
    record: str | None = None
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        by_scheme = _SCHEMES.get(urlsplit(self.to).scheme)
        if by_scheme != (self.format if self.format in _SCHEMES.values() else None):
            raise LoadError(f"{self} is no place of the format {self.format}: {_EXAMPLES[self.format]}")
        if (self.format == TOPIC) != (self.record is not None):
            raise LoadError(
                "a load into a topic keeps its record of loads in a directory: name it by --record"
                if self.format == TOPIC
                else f"--record is for loads into a topic; {self.format} keeps the record of loads beside the data"
            )

        if self.security and self.format != TOPIC:
            raise LoadError(f"--to-config is for loads into a topic; {self.format} has no brokers")

    def __str__(self) -> str:
        """Return the place for people, without a name and password in it."""
        return without_user(self.to)

    def open(self, options: LoadOptions) -> Sink:
        """Return the sink. The namespace of an Iceberg table is created if it is not there.

        Raise LoadError, or storage.StorageError.
        """
        sink = self.find(options, create_namespace=True)
        assert sink is not None, "the namespace is there"
        return sink

    def find(self, options: LoadOptions, *, create_namespace: bool = False) -> Sink | None:
        """Return the sink as `open` does, but None for an Iceberg table whose namespace is not there. Change nothing.
        """
        decoding = decoding_of(options.layout)
        schema = arrow_schema(options.columns) if decoding is None else decoding.row_schema()
        try:
            if self.format == DELTA:
                return self._delta(options.topic, schema)
            if self.format == ICEBERG:
                return self._iceberg(options.topic, schema, options.layout.partition_by, create=create_namespace)
        except ImportError as error:
            raise LoadError(
                f"a load into {self.format} needs its package ({error}); try: pip install 'flakelog[{self.format}]'"
            ) from None
        if self.format == TOPIC:
            return self._topic(options)
        return ParquetSink(_directory(self.to), options.topic, _new_attempt)

    def _delta(self, topic: str, schema: pa.Schema) -> Sink:
        from spark_bridge.load.delta_sink import DeltaSink

        return DeltaSink(_directory(self.to), topic, _new_attempt, schema, _now_ms)

    def _iceberg(
        self, topic: str, schema: pa.Schema, partition_by: str | None, *, create: bool
    ) -> Sink | None:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, ServerError

        from spark_bridge.load.iceberg_sink import IcebergSink

        parts = urlsplit(self.to)
        identifier = parts.path.strip("/")
        if not parts.netloc or "." not in identifier:
            raise LoadError(f"{self.to} names no table: {_EXAMPLES[ICEBERG]}")
        try:
            catalog = load_catalog(parts.netloc)
            namespace = identifier.rpartition(".")[0]
            if not catalog.namespace_exists(namespace):
                if not create:
                    return None
                with suppress(NamespaceAlreadyExistsError):
                    catalog.create_namespace(namespace)
            return IcebergSink(catalog, identifier, topic, _new_attempt, schema, partition_by)
        except (ValueError, ServerError) as error:
            raise LoadError(f"the Iceberg catalog {parts.netloc!r}: {error}") from None

    def _topic(self, options: LoadOptions) -> Sink:
        from spark_bridge.load.topic_sink import COLUMNS, TopicSink

        parts = urlsplit(self.to)
        target = parts.path.strip("/")
        if not parts.netloc or not target or "/" in target:
            raise LoadError(f"{self.to} names no topic: {_EXAMPLES[TOPIC]}")
        if options.layout.decode is not None or options.layout.partition_by is not None:
            raise LoadError("messages go to a topic as they are: --decode and --partition-by are for files and tables")
        if options.columns != COLUMNS:
            raise LoadError("messages go to a topic as they are: --columns and --headers are for files and tables")
        assert self.record is not None, "checked when it was made"
        return TopicSink(_directory(self.record), options.topic, _new_attempt, parts.netloc, target, self.security)


def format_of(to: str, given: str | None) -> str:
    """Return the format that was given, or the one that a place has by its scheme."""
    return given or _SCHEMES.get(urlsplit(to).scheme, PARQUET)


_EXAMPLES = {
    PARQUET: "name a directory, or a URI such as s3://bucket/flights",
    DELTA: "name a directory, or a URI such as s3://bucket/flights",
    ICEBERG: "write iceberg://CATALOG/NAMESPACE.TABLE",
    TOPIC: "write kafka://HOST:PORT/TOPIC",
}


def _directory(location: str) -> Storage:
    """Return the place at a path or URI. Raise StorageError if it is a file, or no place."""
    storage = Storage.at(location)
    storage.check_directory()
    return storage


def _new_attempt() -> str:
    return uuid.uuid4().hex


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
