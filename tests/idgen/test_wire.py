"""idgen.wire, compared with Apache Thrift's binary protocol, and given invalid bytes."""

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

import idgen
from flakelog.commands.command_client import PROBE
from idgen.wire import (
    Call,
    CallDecoder,
    ExceptionType,
    FrameDecoder,
    Reply,
    ThriftError,
    decode_reply,
    encode_call,
    encode_exception,
    encode_i64,
    encode_i64_struct,
    encode_id,
    encode_runs,
)

SEQIDS = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


def thrift_call(method, seqid, user_agent=None, count=None, strict=True, unknown=False):
    """Return a frame as a stock client writes it."""
    buffer = TMemoryBuffer()
    out = TBinaryProtocol(buffer, strictWrite=strict)
    out.writeMessageBegin(method, TMessageType.CALL, seqid)
    if unknown:
        out.writeFieldBegin("map", TType.MAP, 9)
        out.writeMapBegin(TType.STRING, TType.LIST, 1)
        out.writeString("k")
        out.writeListBegin(TType.I16, 2)
        out.writeI16(1)
        out.writeI16(2)
    if user_agent is not None:
        out.writeFieldBegin("useragent", TType.STRING, 1)
        out.writeString(user_agent)
    if count is not None:
        out.writeFieldBegin("count", TType.I32, 2)
        out.writeI32(count)
    out.writeFieldStop()
    out.writeMessageEnd()
    return struct.pack(">i", len(buffer.getvalue())) + buffer.getvalue()


def thrift_reader(frame):
    assert struct.unpack(">i", frame[:4])[0] == len(frame) - 4
    return TBinaryProtocol(TMemoryBuffer(frame[4:]), strictRead=True)


def calls(data):
    return list(CallDecoder().calls(data))


@given(SEQIDS, st.text(max_size=50), st.booleans(), st.booleans())
def test_a_stock_clients_get_id_is_understood(seqid, user_agent, strict, unknown):
    frame = thrift_call("get_id", seqid, user_agent, strict=strict, unknown=unknown)
    assert calls(frame * 2) == [Call("get_id", seqid, user_agent)] * 2


@given(SEQIDS, st.sampled_from(["get_worker_id", "get_timestamp", "get_ids", "no_such"]), st.integers(0, 2**31 - 1))
def test_our_calls_are_a_stock_clients_bytes(seqid, method, count):
    assert encode_call(Call(method, seqid, "agent", count)) == thrift_call(method, seqid, "agent", count)
    assert encode_call(Call(method, seqid)) == thrift_call(method, seqid)


@given(SEQIDS, I64)
def test_a_stock_client_reads_an_i64_answer(seqid, value):
    for frame in (encode_i64("get_id", seqid, value), encode_id(seqid, value)):
        read = thrift_reader(frame)
        assert read.readMessageBegin() == ("get_id", TMessageType.REPLY, seqid)
        assert read.readFieldBegin()[1:] == (TType.I64, 0)
        assert read.readI64() == value
        assert read.readFieldBegin()[1] == TType.STOP
        assert decode_reply(frame[4:]) == Reply(seqid, value)


RUNS = st.tuples(st.integers(0, 2**63 - 5_000), st.integers(1, 600))


@given(SEQIDS, st.lists(RUNS, max_size=4))
def test_a_stock_client_reads_the_ids_of_runs(seqid, runs):
    frame = encode_runs("get_ids", seqid, runs)
    values = [id for first, count in runs for id in range(first, first + count)]
    read = thrift_reader(frame)
    read.readMessageBegin()
    assert read.readFieldBegin()[1:] == (TType.LIST, 0)
    assert read.readListBegin() == (TType.I64, len(values))
    assert [read.readI64() for _ in values] == values
    assert decode_reply(frame[4:]) == Reply(seqid, values)


@given(SEQIDS, st.lists(I64, max_size=6))
def test_a_stock_client_reads_a_struct(seqid, values):
    frame = encode_i64_struct("decode_id", seqid, tuple(values))
    read = thrift_reader(frame)
    read.readMessageBegin()
    assert read.readFieldBegin()[1:] == (TType.STRUCT, 0)
    for number, value in enumerate(values, 1):
        assert read.readFieldBegin()[1:] == (TType.I64, number)
        assert read.readI64() == value
    assert read.readFieldBegin()[1] == TType.STOP  # of the struct
    assert read.readFieldBegin()[1] == TType.STOP  # of the answer
    assert decode_reply(frame[4:]) == Reply(seqid, values)


@given(SEQIDS, I64, I64)
def test_a_stock_clients_numbers_are_understood_in_any_order(seqid, first, second):
    for order in ((1, first), (2, second)), ((2, second), (1, first)):
        buffer = TMemoryBuffer()
        out = TBinaryProtocol(buffer)
        out.writeMessageBegin("get_id_range", TMessageType.CALL, seqid)
        for field, value in order:
            out.writeFieldBegin("", TType.I64, field)
            out.writeI64(value)
        out.writeFieldStop()
        frame = struct.pack(">i", len(buffer.getvalue())) + buffer.getvalue()
        assert calls(frame) == [Call("get_id_range", seqid, numbers=(first, second))]
    assert encode_call(Call("get_id_range", seqid, numbers=(first, second))) != frame
    call = Call("decode_id", seqid, numbers=(first,))
    assert calls(encode_call(call)) == [call]


def test_a_stock_client_reads_an_exception():
    frame = encode_exception("get_id", 5, ExceptionType.INTERNAL_ERROR, "Fenced: …")
    read = thrift_reader(frame)
    assert read.readMessageBegin() == ("get_id", TMessageType.EXCEPTION, 5)
    error = TApplicationException()
    error.read(read)
    assert (error.type, error.message) == (TApplicationException.INTERNAL_ERROR, "Fenced: …")
    assert decode_reply(frame[4:]) == Reply(5, None, "Fenced: …")


@given(st.data())
def test_calls_come_out_whole_however_the_bytes_are_cut(data):
    sent = [Call("get_id", n, f"agent{n % 3}") for n in range(7)]
    stream = b"".join(map(encode_call, sent))
    decoder, decoded = CallDecoder(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        decoded += decoder.calls(stream[:size])
        stream = stream[size:]
    assert decoded == sent


def test_byte_by_byte():
    decoder = CallDecoder()
    frame = encode_call(Call("get_ids", 1, "agent", 10))
    decoded = [call for byte in frame * 2 for call in decoder.calls(bytes([byte]))]
    assert decoded == [Call("get_ids", 1, "agent", 10)] * 2


def test_calls_before_a_fault_are_answered_first():
    stream = CallDecoder().calls(encode_call(Call("get_id", 1, "agent")) + struct.pack(">i", -1))
    assert next(stream).seqid == 1
    with pytest.raises(ThriftError):
        next(stream)


@pytest.mark.parametrize(
    "data, reason",
    [
        (thrift_call("get_id", 1, "a")[4:], "an unframed Thrift message; this service uses TFramedTransport"),
        (b"POST /ids HTTP/1.1\r\n", "an HTTP request; ids over HTTP are at flakelog.http.listener"),
        (PROBE + b" /- HTTP/1.0\r\n\r\n", "has not answered the command in time"),
        (b"\x16\x03\x01\x02\x00", "a TLS handshake"),
        (struct.pack(">i", 4097), "a frame of 4097 bytes .* frames have 1 to 4096"),
        (struct.pack(">i", 0), "a frame of 0 bytes"),
        (struct.pack(">iI", 4, 0x80020001), "protocol version"),
        (struct.pack(">iI", 8, 0x80010001) + struct.pack(">i", 99), "99 bytes are due"),
        (encode_i64("get_id", 1, 5), "a message of type 2 where a call"),
        (b"\x00\x00\x00\x14" + thrift_call("get_id", 1)[4:] + b"!", "1 bytes after the end"),
    ],
)
def test_bytes_that_are_not_framed_thrift_are_named(data, reason):
    with pytest.raises(ThriftError, match=reason):
        calls(data)


def test_values_nested_without_end_are_refused():
    nested = b"\x0c\x00\x05" + b"\x0c\x00\x01" * 500
    frame = thrift_call("get_id", 1)[4:-1] + nested
    with pytest.raises(ThriftError, match="nested more than"):
        calls(struct.pack(">i", len(frame)) + frame)


@given(st.binary(max_size=200))
def test_garbage_is_a_thrift_error_or_waits_for_more(data):
    for framed in (data, struct.pack(">i", len(data)) + data):
        try:
            calls(framed)
        except ThriftError:
            pass


def test_a_reply_decoder_takes_answers_of_any_allowed_size():
    frame = encode_runs("get_ids", 1, [(0, 100_000)])
    frames = FrameDecoder(1 << 20)
    answers = [f for at in range(0, len(frame), 65_536) for f in frames.frames(frame[at : at + 65_536])]
    assert decode_reply(answers[0]).value == list(range(100_000))


def test_a_caller_that_stops_after_one_frame_loses_none():
    frame = encode_i64("get_id", 1, 5)
    frames = FrameDecoder()
    assert next(frames.frames(frame[:9]), None) is None
    assert next(frames.frames(frame[9:] + frame + frame[:3])) == frame[4:]
    assert list(frames.frames(frame[3:])) == [frame[4:]] * 2


def test_the_idl_file_names_the_methods_that_are_served():
    idl = (Path(idgen.__file__).parent / "flakelog.thrift").read_text()
    service = idl[idl.index("service Snowflake") :]
    methods = re.findall(r"^  (?:i64|list<i64>|IdRange|IdParts) (\w+)\(", service, re.M)
    assert set(methods) == {"get_id", "get_ids", "get_worker_id", "get_datacenter_id", "get_timestamp"} | {
        "get_id_range",
        "decode_id",
    }


def test_the_idl_file_uses_no_word_that_a_compiler_of_thrifts_refuses():
    """Some compilers reserve the keywords of all their languages: a field called `end` once kept thriftpy2 out."""
    refused = "alias args begin break case class def default del delete do end except exec from function global in"
    refused += " interface is lambda module native new next nil not package pass print raise return self static then"
    idl = (Path(idgen.__file__).parent / "flakelog.thrift").read_text()
    words = set(re.findall(r"[a-zA-Z_]\w*", re.sub(r"(?s:/\*.*?\*/)|namespace.*", "", idl)))
    assert not words & set(refused.split())
