"""Frames of the multilang protocol, whole and split anywhere."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spout.multilang.frames import SYNC, BadFrame, FrameDecoder, frame

# As Storm 2.8 writes them: `/` escaped, other text as UTF-8, and no spaces.
GOLDEN = [
    (b'{"id":"","command":"next"}\nend\n', {"id": "", "command": "next"}),
    (b'{"id":[1,"a\\/b"],"command":"ack"}\nend\n', {"id": [1, "a/b"], "command": "ack"}),
    ('{"tuple":["Zürich 🚲",-1]}\nend\n'.encode(), {"tuple": ["Zürich 🚲", -1]}),
    (b"[4,7]\nend\n", [4, 7]),
    (b'"end"\nend\n', "end"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aé/", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("data, message", GOLDEN)
def test_a_frame_is_json_and_a_line_with_end(data, message):
    assert FrameDecoder(1000).receive(data) == [message]


def test_frames_that_came_byte_by_byte_are_the_same():
    decoder = FrameDecoder(1000)
    data = b"".join(data for data, _ in GOLDEN)
    messages = [message for byte in data for message in decoder.receive(bytes([byte]))]
    assert messages == [message for _, message in GOLDEN]


@given(st.lists(JSON, max_size=6), st.lists(st.integers(1, 40), max_size=30))
def test_any_split_gives_the_same_messages(messages, sizes):
    data = b"".join(frame(message) for message in messages)
    decoder, decoded = FrameDecoder(10_000), []
    for size in [*sizes, len(data)]:
        piece, data = data[:size], data[size:]
        decoded += decoder.receive(piece) if piece else []
    assert decoded == messages


@given(st.binary(max_size=60))
def test_noise_is_messages_or_a_bad_frame_and_nothing_else(noise):
    decoder = FrameDecoder(1000)
    try:
        for byte in noise + b"\nend\n":
            decoder.receive(bytes([byte]))
    except BadFrame:
        pass


def test_spaces_and_lines_around_the_json_are_skipped():
    assert FrameDecoder(100).receive(b'\n {"a": 1} \n\nend\n[2]\nend\n') == [{"a": 1}, [2]]


@pytest.mark.parametrize("bad", [b"{]\nend\n", b"{} {}\nend\n", b"\nend\n", b'"\xff"\nend\n', b"[" * 9999 + b"\nend\n"])
def test_a_frame_that_is_no_json_is_refused(bad):
    with pytest.raises(BadFrame):
        FrameDecoder(1_000_000).receive(bad)


def test_a_frame_over_the_limit_is_refused_before_it_is_complete_and_the_message_names_the_setting():
    decoder = FrameDecoder(100)
    with pytest.raises(BadFrame, match="more than 100 bytes came .flakelog.storm.frame.max.bytes"):
        for _ in range(11):
            decoder.receive(b"x" * 10)


def test_a_frame_is_written_as_storm_reads_it():
    assert frame({"pid": 7, "msg": "é\n\ud800"}) == '{"pid":7,"msg":"é\\n?"}\nend\n'.encode()
    assert json.loads(SYNC.partition(b"\n")[0]) == {"command": "sync"}
