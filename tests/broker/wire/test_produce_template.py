"""Templates of Produce requests: a frame that has one is read as the full decoder reads it, and has the same answer."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.wire import produce
from broker.wire.frame import LENGTH_BYTES, request_header
from broker.wire.multi_produce_template import PARTITIONS_MAX
from broker.wire.primitives import tags as tag_section
from broker.wire.primitives import uvarint
from broker.wire.produce import PartitionResult, ProduceRequest, RecordError
from broker.wire.produce_template import ProduceTemplates
from broker.wire.templates import KEY_BYTES_MAX, TemplateStore
from tests.broker.wire.template_checks import decoded_by

VERSIONS = range(5, 14)  # those that have templates
FLEXIBLE = [version for version in VERSIONS if version >= produce.FLEXIBLE]
TOPIC_ID = UUID(int=7 << 64)
RECORDS = b"records, which no template looks at"


def templates_of(most):
    """Return the templates of Produce in a store of at most `most`."""
    return ProduceTemplates(TemplateStore(most))


def topic_of(version, name="flights"):
    return TOPIC_ID if version >= produce.TOPIC_IDS else name


def request_of(version, records=RECORDS, **fields):
    view = None if records is None else memoryview(records)
    parts = [(topic_of(version), 3, view)]
    return ProduceRequest(None, -1, 30_000, parts, False)._replace(**fields)


def several(version, number=3, records=RECORDS, **fields):
    """Return a request for several partitions of one topic, each with other records."""
    parts = [(topic_of(version), 7 * at, memoryview(records * at)) for at in range(1, number + 1)]
    return request_of(version, **fields)._replace(partitions=parts)


def frame_of(version, request=None, correlation_id=5, client_id="rdkafka"):
    """Return a frame without its length, in memory that may be written to, as a connection gives it."""
    header = request_header(0, version, correlation_id, client_id, version >= produce.FLEXIBLE)
    body = produce.encode_request(version, request or request_of(version))
    return memoryview(bytearray(header + body))


def decoded(frame):
    """Return what the full decoder reads of a frame, None for a frame that it refuses."""
    return decoded_by(produce, frame)


def opened(templates, frame, guess=0):
    """Return what a template reads of a frame, in the same form; None for a frame that has none."""
    reading = templates.open(frame, guess)
    if reading is None:
        return None
    template, correlation_id, request, records = reading
    assert not any(batch for _, _, batch in template.request.partitions), "a template keeps no records"
    if records is not None:  # they come beside the request
        ((topic, partition, _),) = request.partitions
        request = request._replace(partitions=[(topic, partition, records)])
    return template.version, template.client_id, correlation_id, request


def template_of(frame, templates=None):
    reading = (templates_of(10) if templates is None else templates).open(frame, 0)
    return reading and reading[0]


# --- what has a template ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("transactional_id", [None, "payments"])
def test_a_request_for_one_partition_is_read_as_by_the_full_decoder(version, acks, transactional_id):
    templates = templates_of(10)
    for correlation_id in (1, -1, 2**31 - 1):
        request = request_of(version, acks=acks, transactional_id=transactional_id)
        frame = frame_of(version, request, correlation_id)
        assert opened(templates, frame) == decoded(frame) is not None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", [2, 3, PARTITIONS_MAX])
@pytest.mark.parametrize("transactional_id", [None, "payments"])
def test_a_request_for_several_partitions_of_a_topic_is_read_as_by_the_full_decoder(version, number, transactional_id):
    templates, guess = templates_of(10), 0
    for records in (b"x", RECORDS, bytes(129), bytes(16_384)):
        frame = frame_of(version, several(version, number, records, transactional_id=transactional_id))
        assert opened(templates, frame, guess) == decoded(frame) is not None
        guess = templates.open(frame, guess)[0].key_end


@pytest.mark.parametrize("version", VERSIONS)
def test_one_template_reads_whichever_partitions_follow_the_first(version):
    templates = templates_of(10)
    request = several(version)
    first, second, third = request.partitions
    for partitions in ([first, second, third], [first, third, second], [first, first, third]):
        frame = frame_of(version, request._replace(partitions=partitions))
        assert opened(templates, frame) == decoded(frame) is not None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client_id", [None, "", "ü", "x" * 300])
def test_whatever_the_client_is_called(version, client_id):
    frame = frame_of(version, client_id=client_id)
    assert opened(templates_of(10), frame) == decoded(frame) is not None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 129, 16_382, 16_383, 16_384, 2_097_151, 2_097_152])
def test_records_of_every_size_are_found_where_their_length_takes_a_byte_more_too(version, size):
    templates = templates_of(10)
    for _ in range(2):
        frame = frame_of(version, request_of(version, bytes(size)))
        assert opened(templates, frame) == decoded(frame) is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_the_records_are_the_frames_own_memory(version):
    """The log writes the batch's offset into that memory."""
    frame = frame_of(version)
    _, _, _, records = templates_of(10).open(frame, 0)
    records[0] = ord("R")
    assert bytes(frame).count(b"Records") == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_the_place_where_the_last_key_ended_finds_the_same_as_no_guess_and_as_a_wrong_one(version):
    templates = templates_of(10)
    frame = frame_of(version)
    template = template_of(frame, templates)
    other = frame_of(version, client_id="another client")
    for guess in {0, 1, 8, 9, template.key_end, template.key_end + 1, len(frame), len(frame) + 99}:
        assert opened(templates, frame, guess) == decoded(frame)
        assert opened(templates, other, guess) == decoded(other)


# --- what has none ---------------------------------------------------------------------------------------------------


def refused(frame, times=3):
    """Return True if a frame never has a template, however often it comes."""
    templates = templates_of(10)
    return all(opened(templates, frame, guess) is None for guess in (0, len(frame), 30)[:times])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [0, 2, -2])
def test_a_request_that_has_no_plain_answer_has_no_template(version, acks):
    assert refused(frame_of(version, request_of(version, acks=acks)))


@pytest.mark.parametrize("version", [0, 3, 4, 14, 99, -1])
def test_an_unknown_version_or_one_without_log_start_offsets_has_no_template(version):
    frame = frame_of(5)
    frame[2:4] = version.to_bytes(2, "big", signed=True)
    assert refused(frame)


@pytest.mark.parametrize("version", VERSIONS)
def test_another_api_has_none(version):
    frame = frame_of(version)
    frame[:2] = b"\0\1"
    assert refused(frame)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_records_another_topic_or_too_many_partitions_have_none(version):
    part = request_of(version).partitions[0]
    other = (UUID(int=8) if version >= produce.TOPIC_IDS else "weather", *part[1:])
    empty = (*part[:2], None)
    assert refused(frame_of(version, request_of(version, None)))
    too_many = [part] * (PARTITIONS_MAX + 1)
    for partitions in ([], [part, other], [part, part, other], [part, empty], [empty, part], too_many):
        assert refused(frame_of(version, request_of(version)._replace(partitions=partitions)))


@pytest.mark.parametrize("version", FLEXIBLE)
def test_a_request_that_wants_ids_or_has_other_tags_has_none(version):
    tagged = tag_section({9: b"x"})
    for request in (request_of(version), several(version)):
        plain = bytes(frame_of(version, request))
        header_end = plain.index(b"rdkafka") + len(b"rdkafka")
        ends = [plain[: -3 + n] + tagged + plain[len(plain) - 2 + n :] for n in range(3)]
        for frame in [*ends, plain[:header_end] + tagged + plain[header_end + 1 :]]:
            assert decoded(memoryview(frame)) == decoded(memoryview(plain)), "tags from the future are passed over"
            assert refused(memoryview(frame))
        assert refused(frame_of(version, request._replace(wants_ids=True)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("behind", [b"\0", b"\0\0\0\0", bytes(50)])
def test_bytes_behind_the_request_have_none(version, behind):
    for request in (request_of(version), several(version)):
        assert refused(memoryview(bytes(frame_of(version, request)) + behind))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_id_has_one_up_to_the_most_bytes_of_a_key(version):
    without = template_of(frame_of(version, client_id="")).key_end
    longest = "x" * (KEY_BYTES_MAX - without)
    assert template_of(frame_of(version, client_id=longest)) is not None
    assert refused(frame_of(version, client_id=longest + "x"))


@pytest.mark.parametrize("version", [5, 8, 9, 12])
def test_a_topic_that_is_not_utf_8_has_none(version):
    """Its answer names it with U+FFFD in place of what is not (as Kafka's), so it is decoded each time."""
    frame = bytes(frame_of(version)).replace(b"flights", b"fligh\xff\xfe")
    assert decoded(memoryview(frame))[3].partitions[0][0] == "fligh\ufffd\ufffd"
    assert refused(memoryview(frame))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_id_that_is_not_utf_8_is_read_as_by_the_full_decoder(version):
    """No answer repeats it, so it may have a template."""
    frame = memoryview(bytes(frame_of(version)).replace(b"rdkafka", b"rd\xff\xfe\xfdka"))
    assert opened(templates_of(10), frame) == decoded(frame) is not None


def spelled(version, **lengths):
    """Return a flexible frame of one topic "flights" in which some lengths take a byte more than they need."""

    def length(name, value):
        return bytes([(value + 1) | 0x80, 0]) if name in lengths else uvarint(value + 1)

    body = b"\0" + b"\xff\xff\0\0\x75\x30" + length("topics", 1)
    body += TOPIC_ID.bytes if version >= produce.TOPIC_IDS else length("name", 7) + b"flights"
    body += length("partitions", 1) + b"\0\0\0\x03" + length("records", len(RECORDS)) + RECORDS + b"\0\0\0"
    return memoryview(bytearray(request_header(0, version, 5, "rdkafka", True) + body))


@pytest.mark.parametrize("version", FLEXIBLE)
def test_lengths_that_take_a_byte_too_many_are_left_to_the_full_decoder(version):
    assert bytes(spelled(version)) == bytes(frame_of(version))
    for name in ["topics", "partitions"] + ["name"] * (version < produce.TOPIC_IDS):
        frame = spelled(version, **{name: True})
        assert decoded(frame) == decoded(frame_of(version))
        assert refused(frame)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_the_length_of_the_records_may_take_a_byte_too_many(version):
    """It is not part of the key, and read as the full decoder reads it."""
    frame = spelled(version, records=True)
    assert opened(templates_of(10), frame) == decoded(frame) == decoded(frame_of(version))


@pytest.mark.parametrize("version", [5, 8])
@pytest.mark.parametrize("length", [-2, -32_768])
def test_a_negative_length_other_than_that_of_null_is_left_to_the_full_decoder(version, length):
    frame = frame_of(version)
    at = bytes(frame).index(b"rdkafka") + len(b"rdkafka")
    frame[at : at + 2] = length.to_bytes(2, "big", signed=True)
    assert decoded(frame)[3].transactional_id is None
    assert refused(frame)


# --- bad bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("request_of", [request_of, several])
def test_a_bit_that_is_flipped_anywhere_leads_to_what_the_full_decoder_reads_or_to_no_template(version, request_of):
    templates, frame = templates_of(10_000), frame_of(version, request_of(version))
    guess = template_of(frame, templates).key_end
    for position in range(len(frame)):
        for bit in range(8):
            other = memoryview(bytearray(frame))
            other[position] ^= 1 << bit
            for _ in range(2):
                reading = opened(templates, other, guess)
                assert reading is None or reading == decoded(other), f"bit {bit} of byte {position}"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("request_of", [request_of, several])
def test_a_frame_cut_anywhere_has_no_template(version, request_of):
    templates, frame = templates_of(10), frame_of(version, request_of(version))
    guess = template_of(frame, templates).key_end
    for size in range(len(frame)):
        assert opened(templates, frame[:size], guess) is None
        assert opened(templates, frame[:size]) is None


NAMES = st.none() | st.text(max_size=8) | st.sampled_from(["x" * 126, "x" * 127, "x" * 128])
PARTS = st.builds(
    lambda topic, partition, records: (topic, partition, records),
    st.sampled_from(["", "a", "flights", "ü" * 70]),
    st.integers(-1, 3),
    st.none() | st.binary(max_size=200),
)


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(range(3, 14)), NAMES, NAMES, st.integers(-2, 2), st.lists(PARTS, max_size=4), st.booleans(),
            st.integers(0, 60),
        ),
        max_size=8,
    )
)  # fmt: skip
def test_a_template_never_reads_anything_but_what_the_full_decoder_reads(requests):
    """Requests come in any order, and each guess is that of the request before."""
    templates, guess = templates_of(4), 0
    for version, client_id, transactional_id, acks, parts, wants_ids, at in requests:
        partitions = [
            (
                TOPIC_ID if version >= produce.TOPIC_IDS else topic, partition, records and memoryview(records)
            )
            for topic, partition, records in parts
        ]
        wants_ids = wants_ids and version >= produce.FLEXIBLE
        frame = frame_of(version, ProduceRequest(transactional_id, acks, 1000, partitions, wants_ids), at, client_id)
        for _ in range(2):
            reading = opened(templates, frame, guess)
            assert reading is None or reading == decoded(frame)
        guess = at if reading is None else templates.open(frame, guess)[0].key_end


# --- the answer ------------------------------------------------------------------------------------------------------


def whole(version, correlation_id, body):
    header = correlation_id.to_bytes(4, "big", signed=True) + (b"\0" if version >= produce.FLEXIBLE else b"")
    return len(header + body).to_bytes(LENGTH_BYTES, "big") + header + body


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("base_offset, append_ms, start_offset", [(0, -1, 0), (2**62, 1_700_000_000_000, 2**40)])
def test_the_answer_is_the_one_that_is_encoded_in_full(version, base_offset, append_ms, start_offset):
    reply = template_of(frame_of(version)).encode_reply(-7, base_offset, append_ms, start_offset)
    result = PartitionResult(topic_of(version), 3, 0, base_offset, append_ms, start_offset)
    assert reply == whole(version, -7, produce.encode_response(version, [result]))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", [2, 5])
def test_so_is_the_answer_for_several_partitions(version, number):
    template = template_of(frame_of(version, several(version, number)))
    results = [PartitionResult(topic_of(version), 7 * at, 0, 1 << at, -at, at - 1) for at in range(1, number + 1)]
    parts, size = template.encode(-7, results)
    assert b"".join(parts) == whole(version, -7, produce.encode_response(version, results)) and len(parts[0]) == size


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_says_more_is_left_to_the_full_encoder(version):
    template = template_of(frame_of(version, several(version, 2)))
    plain = PartitionResult(topic_of(version), 7, 0, 1, -1, 0)
    for other in ({"message": "why"}, {"record_errors": (RecordError(0, None),)}, {"runs": ((9, 1),)}):
        assert template.encode(1, [plain, plain._replace(**other)]) is None
    assert template.encode(1, [plain, None]) is None


def test_a_key_that_differs_only_in_its_version_has_its_own_answer():
    """The bytes of v5 to v8 are the same but for the version, as are those of v9 to v12; the answers are not."""
    templates, guess = templates_of(20), 0
    for version in [*VERSIONS, *VERSIONS]:
        template, *_ = templates.open(frame_of(version), guess)
        guess = template.key_end
        reply = memoryview(template.encode_reply(5, 11, -1, 2))
        (result,) = produce.decode_response(version, reply, 9 if version >= produce.FLEXIBLE else 8)
        assert template.version == version
        assert (result.topic, result.partition, result.base_offset) == (topic_of(version), 3, 11)


def test_keys_that_differ_in_one_field_have_their_own_answers():
    templates, guess = templates_of(20), 0
    frames = [
        frame_of(9, request_of(9), client_id="a"),
        frame_of(9, request_of(9), client_id="b"),
        frame_of(9, request_of(9, acks=1)),
        frame_of(9, request_of(9, timeout_ms=1)),
        frame_of(9, request_of(9)._replace(partitions=[("flights", 4, memoryview(RECORDS))])),
        frame_of(9, request_of(9)._replace(partitions=[("flighty", 3, memoryview(RECORDS))])),
        frame_of(9, request_of(9, transactional_id="flights")),
    ]
    for frame in frames + frames:
        assert opened(templates, frame, guess) == decoded(frame)
        guess = templates.open(frame, guess)[0].key_end


# --- how many --------------------------------------------------------------------------------------------------------


def of_client(templates, number):
    """Return the template of one of many clients."""
    return template_of(frame_of(9, client_id=f"client-{number:06d}"), templates)


@pytest.mark.parametrize("most", [1, 2, 3, 10, 11])
def test_past_the_most_templates_those_unused_for_longest_are_dropped(most):
    store = TemplateStore(most)
    templates = ProduceTemplates(store)
    first = of_client(templates, 0)
    for number in range(100):
        of_client(templates, number)
        assert len(store) <= most
    again = of_client(templates, 0)
    assert again is not first and again.client_id == first.client_id, "it was made again"


@pytest.mark.parametrize("most", [4, 10, 11])
def test_a_template_that_is_used_again_and_again_stays(most):
    templates = templates_of(most)
    first = of_client(templates, 0)
    for number in range(1, 100):
        of_client(templates, number)
        assert of_client(templates, 0) is first


@pytest.mark.parametrize("most", [2, 10, 11])
def test_half_as_many_as_the_most_stay_however_they_are_used(most):
    templates = templates_of(most)
    first = [of_client(templates, number) for number in range(most // 2)]
    for _ in range(3):
        again = [of_client(templates, number) for number in range(most // 2)]
        assert all(template is before for template, before in zip(again, first, strict=True))


def test_frames_without_a_template_are_not_kept_without_end_either():
    """What they lack a template for is remembered as well."""
    store = TemplateStore(10)
    templates = ProduceTemplates(store)
    for number in range(100):
        assert template_of(frame_of(9, request_of(9, acks=0), client_id=f"client-{number:06d}"), templates) is None
        assert len(store) <= 10
