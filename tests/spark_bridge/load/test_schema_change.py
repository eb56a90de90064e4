"""Which changes of --decode a place takes, and how it names those that it refuses."""

import json

import pytest

from spark_bridge.load.decoding import Decoding
from spark_bridge.load.schema_change import refused_change

ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "zip", "type": "string"}]}
CITY = {"name": "city", "type": ["null", "string"]}
STATE = {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}
AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
FIELDS = {
    "order": "long",
    "who": ["null", "string"],
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "address": ADDRESS,
    "state": STATE,
    "tags": {"type": "array", "items": "string"},
}


def schema(fields):
    declared = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "fields": declared})


def decode(fields=FIELDS, format="json", **more):
    return Decoding(format, schema(fields), **more).to_dict()


def without(name):
    return {field: kind for field, kind in FIELDS.items() if field != name}


@pytest.mark.parametrize(
    "now",
    [
        decode(FIELDS | {"note": ["null", "string"]}),
        decode(FIELDS | {"note": ["string", "null"], "last": ["null", {**ADDRESS, "name": "Last"}]}),
        decode(dict(reversed(FIELDS.items()))),
        decode() | {"schema": json.dumps(json.loads(schema(FIELDS)) | {"doc": "an order", "name": "Sale"}, indent=4)},
    ],
    ids=["a new field", "two new fields", "another order", "other texts"],
)
def test_new_nullable_fields_and_what_is_no_column_may_change(now):
    assert refused_change(decode(), now) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (FIELDS | {"order": "int"}, "field order has the type int, and had long"),
        (FIELDS | {"order": "string"}, "field order has the type string, and had long"),
        (
            FIELDS | {"at": {"type": "long", "logicalType": "timestamp-micros"}},
            "field at has the type timestamp-micros, and had timestamp-millis",
        ),
        (FIELDS | {"at": "long"}, "field at has the type long, and had timestamp-millis"),
        (without("who"), "field who is missing, and the earlier loads have it"),
        (FIELDS | {"note": "string"}, 'field note is new, so it must be nullable: {"type": ["null", ...]}'),
        (FIELDS | {"who": "string"}, "field who must have a value, and could be null"),
        (FIELDS | {"order": ["null", "long"]}, "field order may be null, and had to have a value"),
        (
            FIELDS | {"Who": ["null", "string"]},
            "field Who differs from field who in case only, so readers could not tell them apart",
        ),
        (
            FIELDS | {"state": {**STATE, "symbols": ["OPEN", "PAID", "LOST"]}},
            "field state has the symbols OPEN, PAID, LOST, and had OPEN, PAID",
        ),
        (FIELDS | {"state": "string"}, "field state has the type string, and had enum"),
        (
            FIELDS | {"address": {**ADDRESS, "fields": [*ADDRESS["fields"], CITY]}},
            "field address.city is new, and new fields are taken at the top level only",
        ),
        (
            FIELDS | {"address": {**ADDRESS, "fields": [{"name": "zip", "type": "int"}]}},
            "field address.zip has the type int, and had string",
        ),
        (FIELDS | {"tags": {"type": "array", "items": "long"}}, "field tags[] has the type long, and had string"),
        (FIELDS | {"tags": "string"}, "field tags has the type string, and had array"),
    ],
)
def test_any_other_change_of_a_field_is_refused_in_one_line_that_names_it(fields, reason):
    assert refused_change(decode(), decode(fields)) == reason


def test_a_decimal_of_other_digits_is_another_type():
    before, now = ({"amount": AMOUNT | {"precision": digits}} for digits in (10, 12))
    reason = "field amount has the type decimal(12, 2), and had decimal(10, 2)"
    assert refused_change(decode(before, "avro"), decode(now, "avro")) == reason


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        (None, decode(), "the earlier loads were made without --decode"),
        (decode(), None, "the earlier loads were made with --decode"),
        (decode(), decode(format="avro"), "the earlier loads were made with --decode json"),
        (
            decode(columns=("partition", "offset")),
            decode(),
            "the earlier loads were made with --columns partition,offset",
        ),
        (
            decode(format="avro"),
            decode(format="avro", writers={7: schema(FIELDS)}),
            "the earlier loads were made with no ID=FILE",
        ),
        (
            decode(format="avro", writers={7: schema(FIELDS)}),
            decode(format="avro", writers={8: schema(FIELDS)}),
            "the earlier loads have the schema of id 7: give it by --schema 7=FILE",
        ),
    ],
)
def test_values_are_decoded_as_in_the_earlier_loads(before, now, reason):
    assert refused_change(before, now) == reason


def test_a_registry_may_have_more_schemas_than_before():
    before = decode(format="avro", writers={7: schema(FIELDS)})
    more = FIELDS | {"note": ["null", "string"]}
    assert refused_change(before, decode(more, "avro", writers={7: schema(FIELDS), 8: schema(more)})) is None
