"""The messages between brokers, against the frames of Apache Kafka 3.9.1 (tests/golden/inter_broker)."""

import base64
import dataclasses
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from broker.now import Now
from broker.steps import at_once
from broker.wire import cold
from broker.wire.errors import WireError
from broker.wire.frame import read_request_header, request_header
from broker.wire.inter_broker import CONTROLLED_SHUTDOWN, LEADER_AND_ISR, REQUESTS, STOP_REPLICA, UPDATE_METADATA
from broker.wire.request_limits import DEFAULT_LIMITS
from broker.wire.schema import name_of, plan_of, schema, versions_of
from tests.golden.inter_broker_frames import FILES, read

ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS, ALTER_PARTITION, ALLOCATE_PRODUCER_IDS = 24, 27, 56, 67
VERSIONS = {
    LEADER_AND_ISR: [7], STOP_REPLICA: [4], UPDATE_METADATA: [8], CONTROLLED_SHUTDOWN: [3],
    ADD_PARTITIONS_TO_TXN: [4, 5], WRITE_TXN_MARKERS: [1], ALTER_PARTITION: [2, 3], ALLOCATE_PRODUCER_IDS: [0],
}  # fmt: skip
MESSAGES = [(key, version, kind) for key in VERSIONS for version in VERSIONS[key] for kind in ("request", "response")]
SAMPLES = [
    pytest.param(sample, id=f"{path.stem}-{number}")
    for path in FILES
    for number, sample in enumerate(read(path))
    if not path.stem.startswith("Fetch")  # Fetch has a codec of its own
]
NOW = Now(0, 0)


def values_of(entity):
    """Return a message under the names in Kafka's specs, in lower case; tagged fields only if they were sent."""
    values = {}
    for plan in plan_of(type(entity)):
        value = getattr(entity, plan.name)
        if plan.tag is None or value != plan.default:
            key = plan.name.replace("_", "") + ("ms" if plan.kafka_type.startswith("timedelta") else "")
            values[key] = [plain(item) for item in value] if plan.array else plain(value)
    return values


def plain(value):
    if hasattr(type(value), "__version__"):
        return values_of(value)
    if isinstance(value, UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    return cold.milliseconds(value) if isinstance(value, timedelta) else value


def in_lower_case(values):
    if isinstance(values, dict):
        return {name.lower(): in_lower_case(value) for name, value in values.items()}
    return [in_lower_case(value) for value in values] if isinstance(values, list) else values


def fields_of(cls, values):
    """Return what `cold.encode` takes, from values under the names in Kafka's specs."""
    lower = {name.lower().removesuffix("ms"): value for name, value in values.items()}
    encodable = {}
    for plan in plan_of(cls):
        name = plan.name.replace("_", "")
        if name in lower:
            value = lower.pop(name)
            if plan.nested is not None:
                value = [fields_of(plan.nested, item) for item in value]
            elif plan.kafka_type == "uuid":
                value = UUID(bytes=base64.urlsafe_b64decode(value + "=="))
            encodable[plan.name] = value
    assert not lower, f"{cls.__name__} lacks {sorted(lower)}"
    return encodable


@pytest.mark.parametrize("sample", SAMPLES)
def test_kafkas_request_is_read_and_written_byte_for_byte(sample):
    header = read_request_header(sample.request)
    cls = schema(header.api_key, header.version, "request")
    flexible = cls.__header_schema__.__version__ == 2
    written = request_header(header.api_key, header.version, header.correlation_id, sample.client_id, flexible)
    assert header.client_id == sample.client_id and sample.request.startswith(written)
    message = cold.decode(header.api_key, header.version, "request", sample.request, len(written), header.version)
    assert values_of(message.original) == in_lower_case(sample.request_values) and not message.tags
    body = cold.encode(header.api_key, header.version, "request", fields_of(cls, sample.request_values))
    assert written + body == sample.request


@pytest.mark.parametrize("sample", SAMPLES)
def test_kafkas_response_is_read_and_written_byte_for_byte(sample):
    header = read_request_header(sample.request)
    cls = schema(header.api_key, header.version, "response")
    written = header.correlation_id.to_bytes(4, "big") + b"\0" * cls.__header_schema__.__version__
    message = cold.decode(header.api_key, header.version, "response", sample.response, len(written), header.version)
    assert values_of(message.original) == in_lower_case(sample.response_values) and not message.tags
    body = cold.encode(header.api_key, header.version, "response", fields_of(cls, sample.response_values))
    assert written + body == sample.response


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample.id.startswith("AddPartitionsToTxn")])
def test_a_verification_in_version_4_has_the_bytes_of_version_5(sample):
    """v5 adds only an error code (KIP-890)."""
    bodies = {"request": read_request_header(sample.request).body + 1, "response": 5}
    for kind, position in bodies.items():
        values = getattr(sample, f"{kind}_values")
        fields = fields_of(schema(ADD_PARTITIONS_TO_TXN, 4, kind), values)
        body = cold.encode(ADD_PARTITIONS_TO_TXN, 4, kind, fields)
        assert body == getattr(sample, kind)[position:]


@pytest.mark.parametrize(
    "api_key, client_ids",
    [
        (LEADER_AND_ISR, {"1"}),
        (STOP_REPLICA, {"1"}),
        (UPDATE_METADATA, {"1"}),
        (CONTROLLED_SHUTDOWN, {"1"}),
        (ADD_PARTITIONS_TO_TXN, {"AddPartitionsManager-client-1", "AddPartitionsManager-client-2"}),
        (WRITE_TXN_MARKERS, {"broker-2-txn-marker-sender"}),
        (ALTER_PARTITION, {"1", "2", "3"}),
        (ALLOCATE_PRODUCER_IDS, {"2"}),
    ],
)
def test_the_client_id_names_the_sender(api_key, client_ids):
    """An order has the id of the controller, another request the id of the broker that sent it."""
    headers = [read_request_header(sample.request) for path in FILES for sample in read(path)]
    assert {header.client_id for header in headers if header.api_key == api_key} == client_ids


def test_kafkas_frames_have_every_api_in_the_version_of_3_9():
    headers = [read_request_header(sample.request) for path in FILES for sample in read(path)]
    newest = {(key, versions[-1]) for key, versions in VERSIONS.items()}
    assert {(header.api_key, header.version) for header in headers} == newest | {(1, 17)}


def test_each_api_that_kio_lacks_has_one_version_and_kafkas_name():
    assert [name_of(key) for key in REQUESTS] == ["LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown"]
    assert {key: versions_of(key) for key in REQUESTS} == {key: VERSIONS[key] for key in REQUESTS}
    with pytest.raises(RuntimeError, match="LeaderAndIsrRequest v4 has no schema; v7 has one"):
        schema(LEADER_AND_ISR, 4, "request")


PRIMITIVES = {
    "string": st.text(max_size=20), "bool": st.booleans(), "uuid": st.none() | st.uuids(),
    "int8": st.integers(-(2**7), 2**7 - 1), "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1), "int64": st.integers(-(2**63), 2**63 - 1),
    "error_code": st.sampled_from(ErrorCode), "timedelta_i32": st.integers(0, 2**31 - 1),
}  # fmt: skip


def message_fields(cls):
    """Return a strategy for the fields of a message."""
    strategies = {}
    for plan in plan_of(cls):
        value = PRIMITIVES[plan.kafka_type] if plan.nested is None else message_fields(plan.nested)
        if plan.array:
            value = st.lists(value, max_size=3)
        elif plan.optional and plan.kafka_type != "uuid":
            value = st.none() | value
        strategies[plan.name] = value
    return st.fixed_dictionaries(strategies)


def as_given(entity):
    """Return the fields of a decoded message, in the form that `cold.encode` takes."""
    values = {}
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if isinstance(value, tuple):
            value = [as_given(item) if hasattr(type(item), "__version__") else item for item in value]
        values[field.name] = cold.milliseconds(value) if isinstance(value, timedelta) else value
    return values


@pytest.mark.parametrize("api_key, version, kind", MESSAGES)
def test_every_message_reads_back_as_it_was_written(api_key, version, kind):
    @given(message_fields(schema(api_key, version, kind)))
    def reads_back(values):
        body = cold.encode(api_key, version, kind, values)
        assert at_once(cold.encode_in_steps(api_key, version, kind, values), NOW) == body
        message = cold.decode(api_key, version, kind, body, 0, version)
        steps = cold.decode_in_steps(api_key, version, kind, body, 0, version, DEFAULT_LIMITS)
        assert at_once(steps, NOW) == message
        assert as_given(message.original) == values

    reads_back()


def test_an_order_that_is_cut_anywhere_is_a_wire_error_that_names_it():
    path = next(path for path in FILES if path.stem == "LeaderAndIsr-v7")
    frame = read(path)[0].request
    body = frame[read_request_header(frame).body + 1 :]
    cold.decode(LEADER_AND_ISR, 7, "request", body, 0, 7)
    for size in range(len(body)):
        with pytest.raises(WireError, match="LeaderAndIsrRequest v7"):
            cold.decode(LEADER_AND_ISR, 7, "request", body[:size], 0, 7)
