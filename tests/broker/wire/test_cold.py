"""The cold APIs, through kio's schema: a handler sees one shape, and unknown tags are skipped (KIP-482)."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from io import BytesIO
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.serial._serialize import get_field_writer

from broker.engine.api_table import APIS
from broker.now import Now
from broker.steps import at_once
from broker.wire import cold, tags
from broker.wire.cold_reader import Reader
from broker.wire.errors import ErrorCode as BrokerErrorCode
from broker.wire.errors import OverLimit, WireError
from broker.wire.inter_broker import REQUESTS, STOP_REPLICA
from broker.wire.primitives import tags as tag_section
from broker.wire.request_limits import DEFAULT_LIMITS, RequestLimits
from broker.wire.schema import names_of, plan_of, schema, versions_of

METADATA, LIST_OFFSETS, FIND_COORDINATOR, CREATE_TOPICS = 3, 2, 10, 19
OFFSET_COMMIT, END_TXN = 8, 26
ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS, ALTER_PARTITION, ALLOCATE_PRODUCER_IDS = 24, 27, 56, 67
NOW = Now(0, 0)
LONGEST_MS = timedelta.min // timedelta(milliseconds=1), timedelta.max // timedelta(milliseconds=1)


def test_an_older_message_is_lifted_to_the_newest_shape():
    body = cold.encode(METADATA, 1, "request", {"topics": [{"name": "flights"}]})
    message = cold.decode(METADATA, 1, "request", body, 0, newest=13)
    assert type(message.newest).__module__.endswith("v13.request")
    assert message.newest.topics[0].name == "flights"
    assert message.newest.topics[0].topic_id is None
    assert message.newest.allow_auto_topic_creation is True, "the schema's default, not false"


def test_a_field_that_moved_is_read_from_the_original():
    body = cold.encode(FIND_COORDINATOR, 2, "request", {"key": "group", "key_type": 0})
    message = cold.decode(FIND_COORDINATOR, 2, "request", body, 0, newest=6)
    assert message.newest.coordinator_keys == ()
    assert message.original.key == "group"


def test_fields_a_version_lacks_are_left_out_and_misspelled_ones_refused():
    with_epoch = {"throttle_time": 0, "topics": [{"name": "t", "partitions": [
        {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": 7, "leader_epoch": 3}]}]}  # fmt: skip
    body = cold.encode(LIST_OFFSETS, 1, "response", with_epoch)
    partition = cold.decode(LIST_OFFSETS, 1, "response", body, 0, newest=1).newest.topics[0].partitions[0]
    assert partition.offset == 7
    with pytest.raises(TypeError, match="ofset"):
        cold.encode(LIST_OFFSETS, 1, "response", {"ofset": 7})


def test_milliseconds_go_in_as_integers_and_come_out_as_durations():
    body = cold.encode(CREATE_TOPICS, 5, "request", {"topics": [], "timeout": 1500, "validate_only": False})
    assert cold.milliseconds(cold.decode(CREATE_TOPICS, 5, "request", body, 0, newest=7).newest.timeout) == 1500


def test_an_unknown_top_level_tag_is_kept_for_who_asked_for_it():
    body = cold.encode(LIST_OFFSETS, 6, "request", {"replica_id": -1, "topics": []}, tags={tags.IDS: tags.REQUEST})
    message = cold.decode(LIST_OFFSETS, 6, "request", body, 0, newest=11)
    assert bytes(message.tags[tags.IDS]) == tags.REQUEST


BETWEEN_BROKERS = *REQUESTS, ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS, ALTER_PARTITION, ALLOCATE_PRODUCER_IDS
FLEXIBLE = [
    key
    for key in (*api_key_map, *REQUESTS)
    if key not in (0, 1)
    and (key <= 61 or key in BETWEEN_BROKERS)
    and schema(key, versions_of(key)[-1], "request").__flexible__
]


@pytest.mark.parametrize(
    "api_key, kind", [(key, "request") for key in FLEXIBLE] + [(key, "response") for key in BETWEEN_BROKERS]
)
def test_an_unknown_tag_is_skipped_in_every_flexible_structure(api_key, kind):
    """The body has one item of every nested structure, each with an unknown tag."""
    version = versions_of(api_key)[-1]
    cls = schema(api_key, version, kind)
    plain = fill(cls)
    expected = build(cls, plain)
    body = write_with_unknown_tags(cls, expected)
    message = cold.decode(api_key, version, kind, body, 0, newest=version)
    assert message.newest == expected
    assert bytes(message.tags[9999]) == b"from the future"
    assert at_once(cold.decode_in_steps(api_key, version, kind, body, 0, version, DEFAULT_LIMITS), NOW) == message


def fill(cls):
    """Return fields for one instance; each array of structures has one item."""
    return {
        plan.name: [fill(plan.nested)] if plan.array else fill(plan.nested)
        for plan in plan_of(cls)
        if plan.nested is not None and plan.tag is None
    }


def build(cls, values):
    """Return kio's own object with these fields."""
    made = {}
    for plan in plan_of(cls):
        value = values.get(plan.name, plan.default)
        if plan.name in values and plan.nested is not None:
            value = tuple(build(plan.nested, nested) for nested in value) if plan.array else build(plan.nested, value)
        made[plan.name] = value
    return cls(**made)


def differing(cls):
    """Return fields that all differ from their defaults, tagged ones included."""
    values = {}
    for plan in plan_of(cls):
        if plan.nested is not None:
            value = differing(plan.nested)
        else:
            value = OTHERS[plan.kafka_type]
        values[plan.name] = (value, value) if plan.array else value
    return values


OTHERS = {
    "string": "héllo" * 40, "bytes": b"x" * 200, "records": b"y" * 200, "bool": True, "uuid": UUID(int=7),
    "int8": -3, "int16": -300, "int32": -70_000, "int64": 1 << 40, "uint8": 200, "uint16": 60_000, "uint32": 1 << 31,
    "uint64": 1 << 63, "float64": 1.5, "error_code": ErrorCode.offset_out_of_range,
    "timedelta_i32": timedelta(milliseconds=1500), "timedelta_i64": timedelta(milliseconds=1500),
    "datetime_i64": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
}  # fmt: skip


@pytest.mark.parametrize("api_key", sorted((APIS.keys() | REQUESTS.keys()) - {0, 1}))
@pytest.mark.parametrize("kind", ["request", "response"])
def test_our_writer_writes_every_version_as_kios_own(api_key, kind):
    for version in versions_of(api_key):
        cls = schema(api_key, version, kind)
        for values in ({}, fill(cls), differing(cls)):
            out = BytesIO()
            entity_writer(cls)(out, build(cls, values))
            assert cold.encode(api_key, version, kind, values) == out.getvalue(), f"v{version} of {values}"
            assert at_once(cold.encode_in_steps(api_key, version, kind, values), NOW) == out.getvalue()


@pytest.mark.parametrize("fields", [{"topics": None}, {"topics": [{"name": None}]}])
def test_none_is_refused_where_the_schema_has_no_null(fields):
    with pytest.raises(TypeError, match="is None, and the schema has no null there"):
        cold.encode(CREATE_TOPICS, 7, "request", fields)


def write_with_unknown_tags(cls, entity):
    out = BytesIO()
    for field in fields(cls):
        if "tag" in field.metadata:
            continue
        plan = next(plan for plan in plan_of(cls) if plan.name == field.name)
        value = getattr(entity, field.name)
        if plan.nested is None:
            get_field_writer(field, True, False, False)(out, value)
        elif plan.array:
            nested = [write_with_unknown_tags(plan.nested, entity) for entity in value]
            out.write(bytes([len(value) + 1]) + b"".join(nested))
        else:
            out.write(b"\x01" * plan.optional + write_with_unknown_tags(plan.nested, value))
    out.write(tag_section({9999: b"from the future"}))
    return out.getvalue()


@pytest.mark.parametrize("api_key", sorted(k for k in (*api_key_map, *REQUESTS) if 2 <= k < 52))
@pytest.mark.parametrize("kind", ["request", "response"])
def test_our_reader_reads_every_version_as_kios_own(api_key, kind):
    for version in versions_of(api_key):
        cls = schema(api_key, version, kind)
        body = memoryview(cold.encode(api_key, version, kind, fill(cls)))
        assert Reader(cls, None).read(body, 0)[0] == entity_reader(cls)(body, 0)[0]
        assert at_once(Reader(cls, None).read_in_steps(body, 0), NOW)[0] == entity_reader(cls)(body, 0)[0]


@pytest.mark.parametrize(
    "api_key, version, count",
    [
        (METADATA, 1, b"\x7f\xff\xff\xff"),
        (METADATA, 12, b"\xff\xff\xff\xff\x0f"),
        (CREATE_TOPICS, 7, b"\x81\x80\x01"),
    ],
)
def test_an_array_that_says_more_than_there_is_takes_no_memory_for_it(api_key, version, count):
    """kio's own reader allocates the array beforehand, and aborts the process if there is not enough memory."""
    body = count + b"\0\0\0"
    message = f"Request v{version}: an array at byte .* says .* more than the bytes that follow can hold"
    with pytest.raises(WireError, match=message):
        cold.decode(api_key, version, "request", body, 0, newest=version)


def test_the_partitions_of_an_order_count_against_the_limit():
    topics = [{"topic_name": name, "partition_states": [{}, {}]} for name in "ab"]
    body = cold.encode(STOP_REPLICA, 4, "request", {"topic_states": topics})
    with pytest.raises(OverLimit, match="StopReplicaRequest v4: .*flakelog.max.request.partitions"):
        cold.decode(STOP_REPLICA, 4, "request", body, 0, 4, RequestLimits(partitions=3))
    cold.decode(STOP_REPLICA, 4, "request", body, 0, 4, RequestLimits(partitions=4))


@pytest.mark.parametrize("byte, is_true", [(b"\0", False), (b"\1", True), (b"\2", True), (b"\xff", True)])
def test_every_byte_but_zero_is_true(byte, is_true):
    """Kafka reads it so. kio's own reader stops there, in a message with an array and in one without."""
    assert cold.decode(METADATA, 4, "request", b"\0\0\0\0" + byte, 0, 13).newest.allow_auto_topic_creation is is_true
    assert cold.decode(END_TXN, 1, "request", b"\0\1x" + bytes(10) + byte, 0, 5).newest.committed is is_true


@pytest.mark.parametrize("wanted_ms", [2**63 - 1, -(2**63), -1, 86_400_000])
def test_a_duration_may_be_longer_than_there_are_days_for(wanted_ms):
    """OffsetCommit's retention is one: Kafka accepts every long, but kio's own reader stops past Python's timedelta."""
    body = cold.encode(OFFSET_COMMIT, 4, "request", {"group_id": "g", "retention_time": wanted_ms})
    retention = cold.decode(OFFSET_COMMIT, 4, "request", body, 0, 4).newest.retention_time
    assert retention // timedelta(milliseconds=1) == max(LONGEST_MS[0], min(wanted_ms, LONGEST_MS[1]))


@pytest.mark.parametrize("code", [-2, 134, 32_767])
def test_an_error_code_that_this_version_does_not_know_is_an_unknown_error(code):
    """A newer broker may answer it. Kafka's clients take it for UNKNOWN_SERVER_ERROR too."""
    body = memoryview(bytes(4) + code.to_bytes(2, "big", signed=True) + bytes(8) + b"\0\0\0\1" + b"\0")
    message = cold.decode(ALLOCATE_PRODUCER_IDS, 0, "response", body, 0, 0)
    in_steps = at_once(cold.decode_in_steps(ALLOCATE_PRODUCER_IDS, 0, "response", body, 0, 0, DEFAULT_LIMITS), NOW)
    for answer in (message.original, in_steps.original):
        assert (answer.error_code, answer.producer_id_len) == (ErrorCode.unknown_server_error, 1)
    with pytest.raises(WireError):
        cold.decode(ALLOCATE_PRODUCER_IDS, 0, "response", body[:5], 0, 0)


def test_the_error_codes_of_the_schema_are_those_of_the_broker():
    assert {int(code) for code in ErrorCode} == {int(code) for code in BrokerErrorCode}


@pytest.mark.parametrize("version, null", [(2, b"\xff\xff\xff\xff"), (7, b"\0")])
def test_an_array_that_may_not_be_null_is_not(version, null):
    """Kafka's generated readers refuse it too, and handlers rely on that."""
    with pytest.raises(WireError, match=f"CreateTopicsRequest v{version}: topics is null"):
        cold.decode(CREATE_TOPICS, version, "request", null + bytes(6), 0, newest=7)


@pytest.mark.parametrize("api_key, version", [(METADATA, 1), (METADATA, 12), *((FIND_COORDINATOR, v) for v in (2, 3))])
def test_a_name_that_is_no_utf8_is_read_as_by_kafka(api_key, version):
    """FindCoordinator has no arrays, so kio alone reads it."""
    fields = {"key": "flights", "key_type": 1} if api_key == FIND_COORDINATOR else {"topics": [{"name": "flights"}]}
    body = cold.encode(api_key, version, "request", fields).replace(b"flights", b"fl\xffghts")
    read = cold.decode(api_key, version, "request", body, 0, version).original
    name = read.key if api_key == FIND_COORDINATOR else read.topics[0].name
    assert name == "fl\ufffdghts" and getattr(read, "key_type", 1) == 1


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_a_message_cut_short_is_a_wire_error_that_names_it(cut):
    body = cold.encode(METADATA, 12, "request", {"topics": [{"name": "flights"}]})
    with pytest.raises(WireError, match="MetadataRequest v12"):
        cold.decode(METADATA, 12, "request", body[:cut], 0, newest=13)


@pytest.mark.parametrize("api_key", sorted(k for k in (*api_key_map, *REQUESTS) if k < 76))
@pytest.mark.parametrize("kind", ["request", "response"])
def test_every_field_of_every_version_has_a_name(api_key, kind):
    def names(cls):
        for plan in plan_of(cls):
            yield plan.name
            if plan.nested is not None:
                yield from names(plan.nested)

    every = {name for version in versions_of(api_key) for name in names(schema(api_key, version, kind))}
    assert every <= names_of(api_key, kind)


@pytest.mark.parametrize("api_key", sorted(APIS.keys() - {0, 1, LIST_OFFSETS}))
def test_every_old_version_is_lifted_alike_at_once_and_in_slices(api_key):
    for version in versions_of(api_key):
        body = cold.encode(api_key, version, "request", fill(schema(api_key, version, "request")))
        message = cold.decode(api_key, version, "request", body, 0, newest=versions_of(api_key)[-1])
        steps = cold.decode_in_steps(api_key, version, "request", body, 0, versions_of(api_key)[-1], DEFAULT_LIMITS)
        assert at_once(steps, NOW) == message
