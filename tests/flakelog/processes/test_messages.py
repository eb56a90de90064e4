"""flakelog.processes.messages: lines between a parent and its children."""

import json

from flakelog.processes.messages import (
    BEAT,
    LINE_BYTES_MAX,
    Inherited,
    LineBuffer,
    Ready,
    forwarded,
    messages_of,
    ready_message,
    take_inherited,
    with_inherited,
)
from flakelog.ready_line import ready_line

READY = Ready({"broker": "127.0.0.1:9092", "broker.INSIDE": "[::1]:9094"}, "directory /data/ids")


def test_messages_arrive_in_order_however_the_bytes_are_cut():
    for size in range(1, 60):
        lines = LineBuffer()
        data = BEAT + ready_message(READY) + BEAT
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        assert list(messages_of([line for part in parts for line in lines.feed(part)])) == [None, READY, None]


def test_a_line_that_is_no_message_is_a_sign_of_life():
    lines = [b"\xff", b"{}", b"[1]", b"3", b'{"ready": 1}', b'{"ready": {"addresses": [], "scope": ""}}']
    assert list(messages_of(lines)) == [None] * len(lines)


def test_a_line_without_an_end_fills_no_memory_and_the_last_one_is_kept():
    lines = LineBuffer()
    assert lines.feed(b"x" * (2 * LINE_BYTES_MAX + 1)) == [b"x" * LINE_BYTES_MAX] * 2
    assert lines.end() == [b"x"] and lines.end() == []


def test_a_child_takes_its_descriptors_out_of_the_environment():
    environment = with_inherited({"HOME": "/"}, Inherited(3, 4, {"http": 5}, "/data/cluster", [1, 2]))
    assert take_inherited(environment) == Inherited(3, 4, {"http": 5}, "/data/cluster", [1, 2])
    assert environment == {"HOME": "/"} and take_inherited(environment) is None


def test_a_line_of_output_names_its_child_and_stays_json():
    line = b'{"level": "info", "message": "serves"}'
    assert forwarded("broker 2", line, as_json=False) == b"[broker 2] " + line + b"\n"
    named = json.loads(forwarded("broker 2", line, as_json=True))
    assert named == {"process": "broker 2", "level": "info", "message": "serves"}
    assert forwarded("broker 2", b"Error: x", as_json=True) == b"[broker 2] Error: x\n"


def test_the_message_is_one_line():
    assert ready_message(READY).count(b"\n") == 1 and json.loads(ready_message(READY))


def test_the_ready_line_has_the_words_of_a_single_server():
    assert ready_line(*READY) == (
        "ready: broker=127.0.0.1:9092 broker.INSIDE=[::1]:9094 ids unique in directory /data/ids"
    )
