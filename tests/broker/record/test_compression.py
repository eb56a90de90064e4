"""The four codecs in the framings of Kafka's clients, checked against those clients' libraries (KIP-57, KIP-110)."""

import gzip
import zlib

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import example, given
from hypothesis import strategies as st

from broker.record.batch import CorruptBatch
from broker.record.compression import Codec, TooLarge, codec_of, compress, decompress
from broker.record.varint import read_varint, varint

XERIAL_BLOCK_BYTES = 32 << 10
REAL = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"the quick brown fox jumps over the lazy dog; " * 4000  # past one xerial block, past 64 KiB

ENCODE = {
    Codec.GZIP: aiokafka_codec.gzip_encode,
    Codec.SNAPPY: aiokafka_codec.snappy_encode,
    Codec.LZ4: aiokafka_codec.lz4_encode,
    Codec.ZSTD: aiokafka_codec.zstd_encode,
}
DECODE = {
    Codec.GZIP: aiokafka_codec.gzip_decode,
    Codec.SNAPPY: aiokafka_codec.snappy_decode,
    Codec.LZ4: aiokafka_codec.lz4_decode,
    Codec.ZSTD: aiokafka_codec.zstd_decode,
}


@pytest.mark.parametrize("codec", REAL)
@given(data=st.binary(max_size=500))
def test_what_a_client_compresses_is_unpacked(codec, data):
    assert decompress(codec, ENCODE[codec](data)) == data


@pytest.mark.parametrize("codec", REAL)
@pytest.mark.parametrize("data", [b"", b"x", TEXT])
def test_what_we_compress_is_unpacked_by_a_client(codec, data):
    assert DECODE[codec](compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, data))) == data


def test_snappy_without_framing_is_read():
    """librdkafka and franz-go write snappy without framing."""
    assert decompress(Codec.SNAPPY, cramjam.snappy.compress_raw(TEXT)) == TEXT


def test_our_lz4_blocks_are_independent():
    """Kafka's brokers and the Java client refuse linked blocks, so bit 5 of the frame's flags is set (KIP-57)."""
    assert compress(Codec.LZ4, TEXT)[:4] == b"\x04\x22\x4d\x18"
    assert compress(Codec.LZ4, TEXT)[4] & 0x20


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_several_frames_are_one_stream(codec):
    assert decompress(codec, bytes(ENCODE[codec](b"one ")) + bytes(ENCODE[codec](b"two"))) == b"one two"


def test_nothing_is_done_to_uncompressed_records():
    assert decompress(Codec.NONE, b"as it is") == compress(Codec.NONE, b"as it is") == b"as it is"


@pytest.mark.parametrize("codec", REAL)
def test_output_up_to_the_bound_is_given_and_not_a_byte_more(codec):
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    with pytest.raises(TooLarge, match=f"{codec.name.lower()} records unpack to more than {len(TEXT) - 1} bytes"):
        decompress(codec, packed, len(TEXT) - 1)


@pytest.mark.parametrize("codec", REAL)
@example(cut=1329)  # here a xerial block begins
@given(cut=st.integers(1, 10_000))
def test_a_stream_cut_short_is_corrupt(codec, cut):
    """Xerial's framing of snappy has no block count, so whole blocks, and the records in them, may be missing."""
    whole = zlib.compress(TEXT) * 100
    packed = compress(codec, whole)
    try:
        unpacked = decompress(codec, packed[: max(0, len(packed) - cut)])
    except CorruptBatch:
        return
    assert codec is Codec.SNAPPY and whole.startswith(unpacked) and len(unpacked) < len(whole)
    assert len(unpacked) % XERIAL_BLOCK_BYTES == 0


@pytest.mark.parametrize("codec", REAL)
@given(junk=st.binary(max_size=100))
def test_junk_is_corrupt_or_data(codec, junk):
    try:
        assert len(decompress(codec, junk, 1 << 16)) <= 1 << 16
    except CorruptBatch:
        pass


@pytest.mark.parametrize("length", [-1, 10_000, 1 << 30])
def test_a_xerial_block_longer_than_the_data_is_corrupt(length):
    packed = bytearray(compress(Codec.SNAPPY, b"some text"))
    packed[16:20] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatch, match="snappy block at byte 20 says"):
        decompress(Codec.SNAPPY, packed)


def test_gzip_of_the_standard_library_is_read():
    assert decompress(Codec.GZIP, gzip.compress(TEXT)) == TEXT


def test_an_unknown_codec_is_named_with_the_known_ones():
    with pytest.raises(CorruptBatch, match="compression 5; known are 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"):
        codec_of(5)


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_a_varint_comes_back(value):
    assert read_varint(b"\xff" + varint(value) + b"\xff", 1) == (value, 1 + len(varint(value)))


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (150, "ac02")]
)
def test_varints_are_zigzag(value, encoded):
    assert varint(value).hex() == encoded


@pytest.mark.parametrize("encoded", ["ff" * 10 + "01", "ff" * 9 + "7f"])
def test_a_varint_past_64_bits_is_corrupt(encoded):
    with pytest.raises(CorruptBatch, match="a varint before byte"):
        read_varint(bytes.fromhex(encoded), 0)
