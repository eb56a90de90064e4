"""Values of messages as typed columns: JSON and Avro by one schema; what does not decode is kept apart."""

import datetime
import io
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.load.avro_schema import SchemaError
from spark_bridge.load.value_decoder import REJECTED, AvroDecoder, JsonDecoder, decode_rows, row_schema
from spark_bridge.reading.row import ARROW, DEFAULT


def schema(*fields):
    return json.dumps({"type": "record", "name": "Order", "fields": [{"name": n, "type": t} for n, t in fields]})


NOT_JSON = "cannot be decoded from JSON; declare a string or leave the field out"
AT = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
DATE = {"type": "int", "logicalType": "date"}
ORDER = schema(("order", "long"), ("who", ["null", "string"]))


def decoded(decoder, *values):
    result = decoder.decode(values)
    rejected = [(rejection.value_index, rejection.reason) for rejection in result.rejected]
    return result.rows.to_pylist(), list(result.indexes), rejected


def test_json_fields_become_typed_columns():
    decoder = JsonDecoder(
        schema(
            ("order", "long"),
            ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
            ("at", {"type": "long", "logicalType": "timestamp-millis"}),
            ("day", DATE),
            ("lines", {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
                {"name": "sku", "type": "string"}, {"name": "due", "type": ["null", DATE]},
            ]}}),
        )
    )  # fmt: skip
    value = (
        b'{"order": 7, "price": 12.5, "at": "2024-01-01T00:00:00.123Z", "day": "2024-02-03", '
        b'"lines": [{"sku": "a", "due": null}, {"sku": "b", "due": "2024-02-04"}], "unknown": {"x": [1]}}'
    )
    rows, indexes, rejected = decoded(decoder, value)
    assert (indexes, rejected) == ([0], [])
    assert rows == [
        {
            "order": 7,
            "price": Decimal("12.50"),
            "at": datetime.datetime(2024, 1, 1, 0, 0, 0, 123000, datetime.UTC),
            "day": datetime.date(2024, 2, 3),
            "lines": [{"sku": "a", "due": None}, {"sku": "b", "due": datetime.date(2024, 2, 4)}],
        }
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "the message has no value"),
        (b"", "the value is no JSON object"),
        (b"[1]", "the value is no JSON object"),
        (b'{"order": 1', "the value is no JSON object"),
        (b'{"order": 1]}', "JSON parse error: Missing a comma or '}' after an object member."),
        (b'{"order": 1} {"order": 2}', "2 JSON objects in a value; there must be one"),
        (b'{"order": "1"}', "JSON parse error: Column(/order) changed from number to string"),
        (b'{"order": 1.5}', "Failed to convert JSON to int64, couldn't parse:1.5"),
        (b'{"order": 9223372036854775808}', "Failed to convert JSON to int64, couldn't parse:9223372036854775808"),
        (b'{"who": "a"}', "field order has no value, which it must have"),
        (b'{"order": 1, "who": "\xff"}', "Invalid UTF8 sequence at string index 0"),
    ],
)
def test_a_value_that_is_no_such_json_is_kept_apart(value, reason):
    rows, indexes, rejected = decoded(JsonDecoder(ORDER), b'{"order": 1}', value, b'{"order": 3}')
    assert [row["order"] for row in rows] == [1, 3] and indexes == [0, 2]
    assert rejected == [(1, reason)]


def test_a_symbol_that_an_enum_does_not_have_is_kept_apart_also_inside_a_list():
    colours = {"type": "array", "items": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}}
    decoder = JsonDecoder(schema(("colours", colours)))
    values = [b'{"colours": ["RED", "BLUE"]}', b'{"colours": ["GREEN"]}', b'{"colours": [null]}']
    rows, _, rejected = decoded(decoder, *values)
    assert rows == [{"colours": ["RED", "BLUE"]}]
    assert rejected == [
        (1, "field colours[] is none of the symbols RED, BLUE"),
        (2, "field colours[] has no value, which it must have"),
    ]


@given(
    st.lists(
        st.sampled_from(
            [
                b'{"order": 1}', b'{"order": 2, "who": "x"}', b'{"order": ', b'{"order": 1', b'"who": 2}', b"{}",
                b"{} {}", b"", b" ", b'{"order": {"order": 1}', b'{"order": 3}\n', b'{"who": "}', b"{{}", b"{}}",
                b'{"}": 1, "order": 4}', None,
            ]
        )
    )
)  # fmt: skip
def test_a_value_decodes_the_same_alone_and_in_company(values):
    decoder = JsonDecoder(ORDER)
    rows, indexes, rejected = decoded(decoder, *values)
    alone = [decoded(decoder, value) for value in values]
    assert rows == [row for own_rows, _, _ in alone for row in own_rows]
    assert indexes == [index for index, (own_rows, _, _) in enumerate(alone) if own_rows]
    assert rejected == [(index, reason) for index, (_, _, why) in enumerate(alone) for _, reason in why]


def avro(text, record, prefix=b""):
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(json.loads(text)), record)
    return prefix + out.getvalue()


def test_avro_records_become_typed_columns():
    text = schema(
        ("order", "long"),
        ("who", ["null", "string"]),
        ("at", {"type": "long", "logicalType": "timestamp-micros"}),
        ("raw", "bytes"),
        ("tags", {"type": "map", "values": "int"}),
    )
    record = {"order": 7, "who": None, "at": AT, "raw": b"\0", "tags": {"a": 1}}
    rows, indexes, rejected = decoded(AvroDecoder(text), avro(text, record))
    assert rows == [record | {"tags": [("a", 1)]}] and indexes == [0] and rejected == []


def test_avro_that_is_damaged_or_goes_on_is_kept_apart():
    good = avro(ORDER, {"order": 7, "who": "me"})
    rows, indexes, rejected = decoded(AvroDecoder(ORDER), good, good[:-1], good + b"x", None, b"\x02\x07")
    assert rows == [{"order": 7, "who": "me"}] and indexes == [0]
    assert [index for index, _ in rejected] == [1, 2, 3, 4]
    assert rejected[1][1] == "1 bytes follow the Avro record"


def test_the_prefix_of_a_schema_registry_names_the_writers_schema():
    old = schema(("order", "int"))
    values = [
        avro(old, {"order": 1}, b"\0\0\0\0\x07"),
        avro(ORDER, {"order": 2, "who": "me"}, b"\0\0\0\0\x08"),
        avro(ORDER, {"order": 3, "who": "me"}, b"\0\0\0\0\x09"),
        avro(ORDER, {"order": 4, "who": "me"}, b"\x01\0\0\0\x08"),
    ]
    reader = json.loads(ORDER)
    reader["fields"][1]["default"] = None
    decoder = AvroDecoder(json.dumps(reader), {7: old, 8: ORDER})
    rows, _, rejected = decoded(decoder, *values)
    assert rows == [{"order": 1, "who": None}, {"order": 2, "who": "me"}]
    assert rejected == [
        (2, "schema id 9 has no schema; those of 7, 8 were given"),
        (3, "the value does not begin with a schema registry's prefix, a zero byte and a schema id"),
    ]


def test_a_prefix_that_was_not_expected_is_named():
    value = avro(ORDER, {"order": 4, "who": "me"}, b"\0\0\0\0\x08")
    _, _, ((_, reason),) = decoded(AvroDecoder(ORDER), value)
    assert reason.endswith("if values have a schema registry's prefix, give the schema of id 8")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"type": "map", "values": "int"}, f"f: a map {NOT_JSON}"),
        ("bytes", f"f: bytes {NOT_JSON}"),
        (["int", "string"], "f is a union of 2 types; a column is one type, or null and one type"),
        ("Order", "f refers to Order, which holds it; a recursive type cannot be columns"),
        ("integer", "f: there is no Avro type 'integer'"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 50},
            "f: a decimal of 50 digits; a column holds 1 to 38",
        ),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused_by_its_field(field, message):
    with pytest.raises(SchemaError) as error:
        JsonDecoder(schema(("f", field)))
    assert str(error.value) == message


@pytest.mark.parametrize(
    "text", ["", "[]", '"string"', '{"type": "record", "name": "r"}', '{"type": "record", "fields": [1]}']
)
def test_a_schema_that_is_no_record_is_refused(text):
    with pytest.raises(SchemaError):
        AvroDecoder(text)


def message(offset, value):
    columns = {"topic": "t", "partition": 0, "offset": offset, "timestamp": AT, "timestampType": 0, "id": 90}
    return {"key": b"k", "value": value} | columns


def test_rows_keep_the_columns_of_their_message_and_rejected_messages_their_place():
    batch = pa.RecordBatch.from_pylist(
        [message(5, b'{"order": 1}'), message(6, b"no"), message(7, b'{"order": 2}')],
        pa.schema([pa.field(name, ARROW[name]) for name in DEFAULT]),
    )
    decoder = JsonDecoder(ORDER)
    columns = row_schema(decoder, [pa.field("offset", pa.int64()), pa.field("id", pa.int64())])
    rows, apart = decode_rows(batch, decoder, columns)
    assert rows.to_pylist() == [
        {"order": 1, "who": None, "offset": 5, "id": 90},
        {"order": 2, "who": None, "offset": 7, "id": 90},
    ]
    assert apart.schema == REJECTED
    assert [(row["offset"], row["value"], row["reason"]) for row in apart.to_pylist()] == [
        (6, b"no", "the value is no JSON object")
    ]


def test_a_field_with_the_name_of_a_kept_column_is_refused():
    decoder = JsonDecoder(schema(("Offset", "long")))
    with pytest.raises(SchemaError, match="offset: a column of the message and a field of the value"):
        row_schema(decoder, [pa.field("offset", pa.int64())])


INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [
        {"name": "zip", "type": "string"},
        {"name": "floor", "type": "int"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "at", "type": {"type": "record", "name": "At", "fields": [{"name": "x", "type": "double"}]}},
    ],
}
NESTED = {
    "type": "record",
    "name": "Outer",
    "fields": [
        {"name": "inner", "type": ["null", INNER]},
        {"name": "all", "type": {"type": "array", "items": ["null", "Inner"]}},
    ],
}
PRESENT = {"zip": "1", "floor": 2, "tags": ["a"], "at": {"x": 0.5}}


@pytest.mark.parametrize("format", ["json", "avro"])
def test_a_record_that_may_be_null_needs_no_values_of_its_fields_then(format):
    """Parquet keeps such rows, and readers get the nulls back."""
    records = [
        {"inner": None, "all": [None]},
        {"inner": PRESENT, "all": [PRESENT, None, PRESENT]},
        {"inner": None, "all": []},
    ]
    if format == "json":
        decoder, values = JsonDecoder(json.dumps(NESTED)), [json.dumps(record).encode() for record in records]
    else:
        decoder, values = AvroDecoder(json.dumps(NESTED)), [avro(json.dumps(NESTED), record) for record in records]
    decoded = decoder.decode(values)
    assert decoded.rejected == []
    file = io.BytesIO()
    pq.write_table(pa.Table.from_batches([decoded.rows]), file)
    assert pq.read_table(file).to_pylist() == records


def test_a_record_that_is_there_must_have_the_values_of_its_fields():
    decoder = JsonDecoder(json.dumps(NESTED))
    inner = {name: value for name, value in PRESENT.items() if name != "zip"}
    decoded = decoder.decode([json.dumps({"inner": inner, "all": []}).encode()])
    assert [rejection.reason for rejection in decoded.rejected] == ["field inner.zip has no value, which it must have"]


def test_a_uuid_in_avro_is_text():
    text = schema(("key", {"type": "string", "logicalType": "uuid"}), ("list", {"type": "array", "items": [
        "null", {"type": "string", "logicalType": "uuid"}]}))  # fmt: skip
    key = "12345678-1234-1234-1234-123456789012"
    plain = schema(("key", "string"), ("list", {"type": "array", "items": ["null", "string"]}))
    rows, _, rejected = decoded(AvroDecoder(text), avro(plain, {"key": key, "list": [None, key]}))
    assert (rows, rejected) == ([{"key": key, "list": [None, key]}], [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"type":' * 100_000, "the schema is nested too deep"),
        (schema(("a", {"type": "long", "logicalType": ["x"]})), "a: a logical type is a name; got"),
        (schema(("a", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}})), r"a\[\]: a fixed has a"),
        (schema(("a", {"type": "fixed", "name": "F"})), "a: a fixed has a size of at least 1 byte; got None"),
    ],
)
def test_a_hostile_schema_is_refused_in_one_line(text, message):
    """An array of elements without bytes could have any number of them in a short value."""
    with pytest.raises(SchemaError, match=message):
        AvroDecoder(text)
