"""Bytes of messages are shown so that people see what they are, whatever they are."""

import json

import pytest

from flakelog.console.text import BODY_CHARACTERS, SUMMARY_CHARACTERS, duration, number, shown, size, time


def test_null_and_empty_are_told_apart():
    assert (shown(None).kind, shown(b"").kind) == ("null", "empty")


def test_a_short_text_is_one_line():
    value = shown("grüße".encode())
    assert (value.kind, value.summary, value.body, value.size) == ("text", "grüße", "", 7)


def test_json_is_folded_and_every_token_stays_as_it_was():
    text = '{"a":1.50,"a":[1e3,{}],"b":"x,{\\"y\\"}","c":12345678901234567890123}'
    value = shown(text.encode())
    assert value.kind == "json" and value.summary == text
    assert value.body.split("\n")[1] == '  "a": 1.50,'
    assert "".join(value.body.split()) == text


@pytest.mark.parametrize("text", ["{", "[1,]", '{"a"}', "{not json}"])
def test_a_text_that_only_begins_as_json_is_text(text):
    assert shown(text.encode()).kind == "text"


def test_json_that_is_nested_too_deep_is_text():
    assert shown(b"[" * 20_000 + b"]" * 20_000).kind == "text"


@pytest.mark.parametrize("data", [b"\xff\xfe", b"ok\x80", "é".encode()[:1]])
def test_invalid_utf_8_is_shown_as_bytes(data):
    value = shown(data)
    assert value.kind == "bytes" and value.summary == data.hex(" ") and value.body.startswith("000000")


@pytest.mark.parametrize("hidden", ["\u202e", "\u2066", "\x00", "\x1b", "\u200b", "\u2028", "\U000e0041", "\x85"])
def test_characters_that_hide_or_reorder_others_are_written_out(hidden):
    value = shown(f"a{hidden}b".encode())
    assert hidden not in value.summary + value.body and f"\\u{{{ord(hidden):x}}}" in value.summary


def test_lone_surrogates_of_json_cannot_break_the_page():
    value = shown(json.dumps({"a": "\ud800"}).encode())
    (value.summary + value.body).encode()


MB = 1 << 20


@pytest.mark.parametrize("data", [b"x" * MB, "é".encode() * (MB // 2), b'{"a":"' + b"y" * MB + b'"}'])
def test_a_large_value_is_cut(data):
    value = shown(data)
    assert value.is_cut and value.size == len(data)
    assert len(value.summary) <= SUMMARY_CHARACTERS and len(value.body) <= BODY_CHARACTERS


def test_a_value_whose_character_is_cut_in_two_is_still_text():
    assert shown(b"a" + "é".encode() * 100_000).kind == "text"


def test_numbers_have_units():
    assert [number(1_234_567), number(3.14159), number(None)] == ["1,234,567", "3.1", "–"]
    assert [size(999), size(1_500), size(2_000_000_000)] == ["999 B", "1.5 kB", "2.0 GB"]
    durations = [duration(ms) for ms in (0.48, 30, 1_500, 7_200_000, None)]
    assert durations == ["0.48 ms", "30 ms", "1.5 s", "2.0 h", "–"]


def test_times_are_utc_and_odd_ones_are_numbers():
    assert time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert [time(-1), time(1 << 62)] == ["–", str(1 << 62)]
