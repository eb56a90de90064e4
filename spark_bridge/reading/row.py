"""The rows of a read: the Kafka connector's columns with its names and types, plus `id` and `id_time`.

    key          binary     null if the record has no key
    value        binary     null for a tombstone
    topic        string
    partition    int
    offset       long
    timestamp    timestamp  ms precision, UTC
    timestampType int       0 the producer's time, 1 the log's append time
    headers      array<struct<key: string, value: binary>>, with includeHeaders; null if there are no headers
    id           long       the message's Snowflake id; from a broker without ids (Apache Kafka), that of its header
                             `flakelog-id`, null without one
    id_time      timestamp  the time in the id, ms precision, UTC; null without an id; only if `columns` names it

All are nullable, as in the connector. Spark does not prune the columns of a Python data source (SPARK-51713), so users
select columns with the option `columns`.
"""

from collections.abc import Sequence

import pyarrow as pa

HEADERS = "headers"
ID = "id"
ID_TIME = "id_time"

ARROW: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
    ID: pa.int64(),
    ID_TIME: pa.timestamp("us", tz="UTC"),
}

_SQL = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    HEADERS: "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    ID: "BIGINT",
    ID_TIME: "TIMESTAMP",
}

STORED = tuple(name for name in ARROW if name != ID_TIME)
"""The columns that a log has; `id_time` is made from `id`."""
DEFAULT = tuple(name for name in STORED if name != HEADERS)


def choose(names: Sequence[str] | None = None, *, include_headers: bool = False) -> tuple[str, ...]:
    """Return the columns of a read, in the table's order. Raise ValueError naming the unknown and the known columns."""
    if names is None:
        names = DEFAULT
    column_names = {name.lower(): name for name in ARROW}  # Spark ignores the case of column names
    unknown = [name for name in names if name.lower() not in column_names]
    if unknown or not names:
        raise ValueError(f"columns {', '.join(unknown) or 'none'} asked for; there are {', '.join(ARROW)}")
    wanted = {column_names[name.lower()] for name in names} | ({HEADERS} if include_headers else set())
    return tuple(name for name in ARROW if name in wanted)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, ARROW[name]) for name in columns])


def sql_schema(columns: Sequence[str]) -> str:
    """Return the columns as Spark's DDL."""
    return ", ".join(f"`{name}` {_SQL[name]}" for name in columns)
