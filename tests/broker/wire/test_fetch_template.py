"""Templates of Fetch: a frame that has one is read as the full decoder reads it, and has the same answer."""

from functools import partial
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.wire import fetch
from broker.wire.fetch import CONSUMER, FetchedPartition, FetchPartition, FetchRequest, FetchResponse, IdRegion
from broker.wire.fetch_template import VERSION_MIN, FetchTemplates
from broker.wire.frame import FileRegion, read_request_header, request_header
from broker.wire.primitives import tags as tag_section
from broker.wire.templates import KEY_BYTES_MAX, TemplateStore
from tests.broker.wire.template_checks import decoded_by, opened, taught

VERSIONS = range(VERSION_MIN, 19)
BY_NAME = range(VERSION_MIN, fetch.TOPIC_IDS)
TOPIC_ID = UUID(int=7 << 64)
numbers_32 = st.integers(-(2**31), 2**31 - 1)
numbers_64 = st.integers(-(2**63), 2**63 - 1)


class File:
    def read(self, position, length):
        return b"r" * length

    def descriptor(self):
        return None


def request_of(version, offset=5, topic="flights", **fields):
    name = TOPIC_ID if version >= fetch.TOPIC_IDS else topic
    return FetchRequest(500, 1, 1 << 20, [FetchPartition(name, 3, offset, 1 << 19)])._replace(**fields)


def frame_of(version, request=None, correlation_id=9, client_id="rdkafka"):
    """Return a frame without its length."""
    header = request_header(fetch.API_KEY, version, correlation_id, client_id, version >= fetch.FLEXIBLE)
    return memoryview(bytearray(header + fetch.encode_request(version, request or request_of(version))))


decoded = partial(decoded_by, fetch)


def learned(*frames):
    """Return templates of frames that were decoded in full."""
    return taught(FetchTemplates(TemplateStore(100)), fetch, frames)


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "ü" * 100])
def test_a_request_that_repeats_another_is_read_as_by_the_full_decoder(version, client_id):
    templates = learned(frame_of(version, client_id=client_id))
    for fields in ({"offset": 2**62}, {"session_id": 2**31 - 1, "session_epoch": 0}, {"session_epoch": 77}):
        frame = frame_of(version, request_of(version, **fields), 2**31 - 1, client_id)
        assert opened(templates, frame) == decoded(frame) is not None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "fields",
    [
        {"isolation_level": 1},
        {"rack": "eu-1"},
        {"wants_ids": True},
        {"replica_id": 7},
        {"min_bytes": 0},
        {"forgotten": (("flights", 1),)},
    ],
    ids=str,
)
def test_other_fields_are_part_of_the_key(version, fields):
    plain = frame_of(version)
    if "forgotten" in fields and version >= fetch.TOPIC_IDS:
        fields = {"forgotten": ((TOPIC_ID, 1),)}
    if "wants_ids" in fields and version < fetch.FLEXIBLE:
        return
    other = frame_of(version, request_of(version, **fields))
    assert opened(learned(plain), other) is None
    assert opened(learned(plain, other), other) == decoded(other) != decoded(plain)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_for_no_or_several_partitions_has_none(version):
    (partition,) = request_of(version).partitions
    for partitions in ([], [partition, partition._replace(partition=4)]):
        frame = frame_of(version, request_of(version, partitions=partitions))
        assert opened(learned(frame_of(version), frame), frame) is None


@pytest.mark.parametrize("version", range(4, VERSION_MIN))
def test_versions_without_all_fields_have_none(version):
    assert opened(learned(frame_of(version)), frame_of(version)) is None


@pytest.mark.parametrize("version", BY_NAME)
@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 249])
def test_names_of_every_length_are_read_as_by_the_full_decoder(version, size):
    """In flexible versions the length of a long name takes two bytes, and its requests have no template."""
    first, second = (frame_of(version, request_of(version, offset, "t" * size)) for offset in (1, 2))
    templates = learned(first)
    if version < fetch.FLEXIBLE or size < 127:
        assert opened(templates, second) == decoded(second) is not None
    else:
        assert opened(templates, second) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_longer_than_a_key_may_be_has_none(version):
    other_bytes = len(frame_of(version, client_id=""))
    longest, longer = (frame_of(version, client_id="c" * (KEY_BYTES_MAX + more - other_bytes)) for more in (0, 1))
    assert opened(learned(longest), longest) == decoded(longest) is not None
    assert opened(learned(longer), longer) is None


@pytest.mark.parametrize("version", range(fetch.FLEXIBLE, 19))
def test_unknown_tags_have_none(version):
    frame = bytes(frame_of(version))
    body = read_request_header(frame).body
    for tagged in (
        frame[:body] + tag_section({99: b"x"}) + frame[body + 1 :],
        frame[:-1] + tag_section({99: b"x"}),
    ):
        tagged = memoryview(tagged)
        assert decoded(tagged) == decoded(frame_of(version)) and opened(learned(tagged), tagged) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_id_that_is_not_utf_8_has_none(version):
    frame = frame_of(version, client_id="ab")
    frame[10] = 0xFF
    assert decoded(frame) is not None and opened(learned(frame), frame) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_that_differs_in_a_bit_or_is_cut_is_read_as_by_the_full_decoder_or_has_none(version):
    whole = frame_of(version, request_of(version, rack="eu"))
    templates = learned(whole)
    for position in range(len(whole)):
        assert opened(templates, whole[:position]) is None
        for bit in range(8):
            frame = memoryview(bytearray(whole))
            frame[position] ^= 1 << bit
            assert opened(templates, frame) in (None, decoded(frame))
    assert opened(templates, memoryview(bytes(whole) + b"\0")) is None


@given(data=st.data())
@settings(max_examples=200)
def test_a_template_never_reads_anything_but_what_the_full_decoder_reads(data):
    version = data.draw(st.sampled_from(VERSIONS))
    names = st.sampled_from(["flights", "f", "flights-2", "x" * 126, "x" * 200])

    def frame():
        partitions = st.builds(
            FetchPartition, st.just(TOPIC_ID) if version >= fetch.TOPIC_IDS else names, st.integers(0, 2), numbers_64,
            st.sampled_from([0, 1 << 20]), st.integers(-1, 1), st.just(-1), st.just(-1),
        )  # fmt: skip
        request = FetchRequest(
            500, 1, 1 << 20, data.draw(st.lists(partitions, min_size=1, max_size=2)),
            session_id=data.draw(numbers_32), session_epoch=data.draw(numbers_32),
            rack=data.draw(st.sampled_from(["", "eu"])), replica_id=data.draw(st.sampled_from([CONSUMER, 1])),
            replica_epoch=data.draw(st.sampled_from([-1, 7])),
        )  # fmt: skip
        return frame_of(version, request, data.draw(numbers_32), data.draw(st.sampled_from([None, "", "a", "ab"])))

    frames = [frame() for _ in range(6)]
    templates = learned(*frames[:3])
    for received in frames:
        assert opened(templates, received) in (None, decoded(received))


# --- answers ---------------------------------------------------------------------------------------------------------


def in_full(version, correlation_id, response):
    """Return an answer by the full encoder, with its length; regions are read."""
    body = [b"\0" if version >= fetch.FLEXIBLE else b"", *fetch.encode_response(version, response)]
    data = correlation_id.to_bytes(4, "big") + joined(body)
    return len(data).to_bytes(4, "big") + data


def joined(parts):
    return b"".join(
        part.file.read(part.position, part.length) if isinstance(part, FileRegion) else part for part in parts
    )


def answer_of(version, **fields):
    topic = TOPIC_ID if version >= fetch.TOPIC_IDS else "flights"
    partition = FetchedPartition(topic, 3, 0, 2**40, 2**40 - 1, 7, None, FileRegion(File(), 0, 100))
    for name, value in fields.items():
        setattr(partition, name, value)
    return FetchResponse([partition])


def template_of(version):
    return learned(frame_of(version)).open(frame_of(version))[0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("aborted", [None, ()])
@pytest.mark.parametrize("size", [1, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_150, 2_097_151, 2_097_152])
def test_the_plain_answer_is_the_one_that_is_encoded_in_full(version, aborted, size):
    response = answer_of(version, aborted=aborted, records=FileRegion(File(), 0, size))
    response.session_id = 2**31 - 1
    parts, length = template_of(version).encode(5, response)
    assert joined(parts) == in_full(version, 5, response) and length == len(joined(parts))


@pytest.mark.parametrize("version", [VERSION_MIN, 12, 18])
@pytest.mark.parametrize(
    "fields",
    [
        {"error_code": 1},
        {"aborted": ((7, 100),)},
        {"ids": IdRegion(0, b"")},
        {"diverging": (1, 2)},
        {"partition": 4},
        {"topic": "trains"},
        {"topic": UUID(int=8)},
        {"records": b""},
    ],
    ids=str,
)
def test_any_other_answer_is_left_to_the_full_encoder(version, fields):
    """A session may answer with another partition than the request names."""
    assert template_of(version).encode(5, answer_of(version, **fields)) is None


def test_an_answer_without_a_partition_with_an_error_or_a_throttle_time_is_left_to_the_full_encoder():
    template, plain = template_of(12), answer_of(12)
    assert template.encode(5, FetchResponse()) is None
    assert template.encode(5, FetchResponse(plain.partitions * 2)) is None
    assert template.encode(5, FetchResponse(plain.partitions, error_code=71)) is None
    assert template.encode(5, FetchResponse(plain.partitions, throttle_ms=1)) is None
