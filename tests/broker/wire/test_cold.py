"""The cold APIs, through kio's schema: one shape for a handler, unknown tags passed over (KIP-482)."""

from dataclasses import fields, is_dataclass

import pytest
from kio.serial import entity_reader

from broker.wire import cold, tags
from broker.wire.errors import WireError
from broker.wire.primitives import tags as tag_section

METADATA, LIST_OFFSETS, FIND_COORDINATOR, CREATE_TOPICS = 3, 2, 10, 19


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


def flexible_structures(api_key, version, kind):
    found = []

    def collect(cls):
        if cls.__flexible__:
            found.append(cls)
        for field in fields(cls):
            inner = cold._item(field)[0]
            if is_dataclass(inner):
                collect(inner)

    collect(cold.schema(api_key, version, kind))
    return found


FLEXIBLE = [
    key
    for key in cold.api_key_map
    if key not in (0, 1) and key <= 61 and cold.schema(key, cold.versions_of(key)[-1], "request").__flexible__
]


@pytest.mark.parametrize("api_key", FLEXIBLE)
def test_a_tag_nobody_knows_is_passed_over_in_every_flexible_structure(api_key):
    """Writes one filled-in item of every nested structure, each with an unknown tag, and reads it back."""
    version = cold.versions_of(api_key)[-1]
    cls = cold.schema(api_key, version, "request")
    plain = fill(cls)
    names = cold._names(api_key, "request")
    expected = cold._build(cls, plain, names)
    body = write_with_unknown_tags(cls, expected)
    message = cold.decode(api_key, version, "request", body, 0, newest=version)
    assert message.newest == expected
    assert bytes(message.tags[9999]) == b"from the future"


def fill(cls):
    """Fields for one instance, each array of structures with one item."""
    values = {}
    for field in fields(cls):
        kind, array, _ = cold._item(field)
        if is_dataclass(kind) and "tag" not in field.metadata:
            values[field.name] = [fill(kind)] if array else fill(kind)
    return values


def write_with_unknown_tags(cls, entity):
    from io import BytesIO

    from kio.serial._serialize import get_field_writer

    out = BytesIO()
    for field in fields(cls):
        if "tag" in field.metadata:
            continue
        kind, array, optional = cold._item(field)
        value = getattr(entity, field.name)
        if not is_dataclass(kind):
            get_field_writer(field, True, False, False)(out, value)
        elif array:
            out.write(bytes([len(value) + 1]) + b"".join(write_with_unknown_tags(kind, each) for each in value))
        else:
            out.write(b"\x01" * optional + write_with_unknown_tags(kind, value))
    out.write(tag_section({9999: b"from the future"}))
    return out.getvalue()


@pytest.mark.parametrize("api_key", sorted(k for k in cold.api_key_map if 2 <= k < 52))
@pytest.mark.parametrize("kind", ["request", "response"])
def test_our_reader_reads_every_version_as_kios_own(api_key, kind):
    for version in cold.versions_of(api_key):
        cls = cold.schema(api_key, version, kind)
        body = memoryview(cold.encode(api_key, version, kind, fill(cls)))
        assert cold._Reader(cls).read(body, 0)[0] == entity_reader(cls)(body, 0)[0]


@pytest.mark.parametrize(
    "api_key, version, count",
    [
        (METADATA, 1, b"\x7f\xff\xff\xff"),
        (METADATA, 12, b"\xff\xff\xff\xff\x0f"),
        (CREATE_TOPICS, 7, b"\x81\x80\x01"),
    ],
)
def test_an_array_that_says_more_than_there_is_takes_no_memory_for_it(api_key, version, count):
    """kio's own reader takes it all beforehand, and aborts the process where it is not to be had."""
    body = count + b"\0\0\0"
    said = f"Request v{version}: an array at byte .* says .* more than the bytes that follow can hold"
    with pytest.raises(WireError, match=said):
        cold.decode(api_key, version, "request", body, 0, newest=version)


@pytest.mark.parametrize("version, null", [(2, b"\xff\xff\xff\xff"), (7, b"\0")])
def test_an_array_that_may_not_be_null_is_not(version, null):
    """As Kafka's generated readers; handlers rely on it."""
    with pytest.raises(WireError, match=f"CreateTopicsRequest v{version}: topics is null"):
        cold.decode(CREATE_TOPICS, version, "request", null + bytes(6), 0, newest=7)


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_a_message_cut_short_is_a_wire_error_that_names_it(cut):
    body = cold.encode(METADATA, 12, "request", {"topics": [{"name": "flights"}]})
    with pytest.raises(WireError, match="MetadataRequest v12"):
        cold.decode(METADATA, 12, "request", body[:cut], 0, newest=13)


@pytest.mark.parametrize("api_key", sorted(k for k in cold.api_key_map if k < 76))
@pytest.mark.parametrize("kind", ["request", "response"])
def test_every_field_of_every_version_has_its_name_known(api_key, kind):
    def names(cls):
        for field in fields(cls):
            yield field.name
            inner = cold._item(field)[0]
            if is_dataclass(inner):
                yield from names(inner)

    every = {name for version in cold.versions_of(api_key) for name in names(cold.schema(api_key, version, kind))}
    assert every <= cold._names(api_key, kind)
