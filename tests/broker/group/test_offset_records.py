"""The records of __consumer_offsets, byte by byte against Kafka's OffsetCommitKey/Value and GroupMetadataKey/Value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.group.group import Group
from broker.group.member import Member
from broker.group.offset_records import (
    BadOffsetsRecord,
    GroupKey,
    OffsetKey,
    group_key,
    group_value,
    offset_key,
    offset_value,
    partition_of,
    read_group_value,
    read_key,
    read_offset_value,
)
from broker.group.offsets import CommittedOffset
from broker.group.results import GroupProtocol


def hexed(text):
    return bytes.fromhex(text.replace("|", ""))


TIME = "00 00 01 8b cf e5 68 00"  # 1,700,000,000,000
OFFSET = "00 00 00 00 00 00 00 2a"
HI = "68 69"


def test_the_key_of_an_offset():
    key = hexed("00 01 | 00 01 67 | 00 02 74 31 | 00 00 00 07")
    assert offset_key("g", "t1", 7) == key
    assert read_key(key) == OffsetKey("g", "t1", 7)


def test_the_key_of_an_offset_in_version_0_is_the_same():
    assert read_key(hexed("00 00 | 00 01 67 | 00 02 74 31 | 00 00 00 07")) == OffsetKey("g", "t1", 7)


def test_the_key_of_a_group():
    assert group_key("gr") == hexed("00 02 | 00 02 67 72")
    assert read_key(group_key("gr")) == GroupKey("gr")


def test_keys_of_newer_kinds_are_passed_over():
    """Versions 3 and later belong to the groups of KIP-848."""
    assert read_key(hexed("00 03 | 00 01 67")) is None


OFFSET_VALUES = {
    0: f"00 00 | {OFFSET} | 00 02 {HI} | {TIME}",
    1: f"00 01 | {OFFSET} | 00 02 {HI} | {TIME} | 00 00 01 8b cf e5 68 01",
    2: f"00 02 | {OFFSET} | 00 02 {HI} | {TIME}",
    3: f"00 03 | {OFFSET} | 00 00 00 05 | 00 02 {HI} | {TIME}",
    4: f"00 04 | {OFFSET} | 00 00 00 05 | 03 {HI} | {TIME} | 01 00 02 ff ff",
}


@pytest.mark.parametrize("version", OFFSET_VALUES)
def test_an_offset_is_read_in_every_version(version):
    epoch = 5 if version >= 3 else -1
    expire_ms = 1_700_000_000_001 if version == 1 else -1
    expected = CommittedOffset(42, epoch, "hi", 1_700_000_000_000, expire_ms)
    assert read_offset_value(hexed(OFFSET_VALUES[version])) == expected


def test_an_offset_is_written_in_version_3():
    committed = CommittedOffset(42, 5, "hi", 1_700_000_000_000)
    assert offset_value(committed) == hexed(OFFSET_VALUES[3])


def test_an_offset_with_an_expiry_is_written_in_version_1():
    """Only version 1 has the field (Kafka's GroupCoordinatorRecordHelpers)."""
    committed = CommittedOffset(42, -1, "hi", 1_700_000_000_000, 1_700_000_000_001)
    assert offset_value(committed) == hexed(OFFSET_VALUES[1])


HEAD = "00 01 63 | 00 00 00 09 | 00 01 72 | 00 01 6d"  # type c, generation 9, protocol r, leader m
NAMES = "00 01 63 | 00 01 68"  # client c, host h
BYTES = "00 00 00 01 73 | 00 00 00 02 61 62"  # subscription s, assignment ab
GROUP_VALUES = {
    0: f"00 00 | {HEAD} | 00 00 00 01 | 00 01 6d | {NAMES} | 00 00 00 1e | {BYTES}",
    1: f"00 01 | {HEAD} | 00 00 00 01 | 00 01 6d | {NAMES} | 00 00 00 3c | 00 00 00 1e | {BYTES}",
    2: f"00 02 | {HEAD} | {TIME} | 00 00 00 01 | 00 01 6d | {NAMES} | 00 00 00 3c | 00 00 00 1e | {BYTES}",
    3: f"00 03 | {HEAD} | {TIME} | 00 00 00 01 | 00 01 6d | 00 01 69 | {NAMES} | 00 00 00 3c | 00 00 00 1e | {BYTES}",
    4: f"00 04 | 02 63 | 00 00 00 09 | 02 72 | 02 6d | {TIME} | 02 | 02 6d | 02 69 | 02 63 | 02 68"
    f"| 00 00 00 3c | 00 00 00 1e | 02 73 | 03 61 62 | 00 | 00",
}


@pytest.mark.parametrize("version", GROUP_VALUES)
def test_a_group_is_read_in_every_version(version):
    stored = read_group_value(hexed(GROUP_VALUES[version]))
    state_since_ms = 1_700_000_000_000 if version >= 2 else -1
    assert stored[:5] == ("c", 9, "r", "m", state_since_ms)
    (member,) = stored.members
    assert (member.member_id, member.client_id, member.client_host) == ("m", "c", "h")
    assert member.instance_id == ("i" if version >= 3 else None)
    # Version 0 has one timeout for both.
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (30, 60 if version >= 1 else 30)
    assert (member.metadata("r"), member.assignment) == (b"s", b"ab")


def test_a_group_is_written_in_version_3():
    group = Group("g", 1_700_000_000_000)
    group.add(Member("m", "i", ("c", "h"), (30, 60), (GroupProtocol("x", b"?"), GroupProtocol("r", b"s")), b"ab"), "c")
    group.generation, group.protocol_name = 9, "r"
    assert group_value(group) == hexed(GROUP_VALUES[3])


def test_an_empty_group_has_neither_protocol_nor_leader():
    group = Group("g", 1_700_000_000_000)
    group.generation = 2
    value = hexed(f"00 03 | 00 00 | 00 00 00 02 | ff ff | ff ff | {TIME} | 00 00 00 00")
    assert group_value(group) == value
    assert read_group_value(value) == ("", 2, None, None, 1_700_000_000_000, ())


@pytest.mark.parametrize("read", [read_offset_value, read_group_value])
def test_an_unknown_version_is_named(read):
    with pytest.raises(BadOffsetsRecord, match="has version 5; versions 0 to 4 are known"):
        read(hexed("00 05 00"))


# (reader, record, number of bytes at the end that may be missing: the tagged fields of version 4)
WHOLE = (
    [(read_offset_value, value, 5 if version == 4 else 0) for version, value in OFFSET_VALUES.items()]
    + [(read_group_value, value, 1 if version == 4 else 0) for version, value in GROUP_VALUES.items()]
    + [(read_key, offset_key("g", "t", 1).hex(), 0), (read_key, group_key("g").hex(), 0)]
)


@pytest.mark.parametrize(("read", "record", "spare"), WHOLE)
def test_a_record_cut_anywhere_is_damaged_and_said_to_be(read, record, spare):
    whole = hexed(record)
    for end in range(len(whole) - spare):
        with pytest.raises(BadOffsetsRecord):
            read(whole[:end])


@given(data=st.binary(max_size=60), version=st.integers(0, 5))
def test_garbage_is_read_or_refused_never_worse(data, version):
    for read in (read_key, read_offset_value, read_group_value):
        try:
            read(version.to_bytes(2, "big") + data)
        except BadOffsetsRecord:
            pass


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    # String.hashCode() as the JDK computes it; the last two overflow, and the last one is the smallest int.
    [("", 0), ("a", 97), ("hello", 99162322), ("console-consumer-1", None), ("polygenelubricants", -(2**31))],
)
def test_a_group_is_kept_where_kafka_keeps_it(group_id, java_hash):
    """The partition is Kafka's Utils.abs(groupId.hashCode()) % offsets.topic.num.partitions."""
    if java_hash is None:
        java_hash = 0
        for character in group_id:
            java_hash = (java_hash * 31 + ord(character) + 2**31) % 2**32 - 2**31
    expected = 0 if java_hash == -(2**31) else abs(java_hash) % 50
    assert partition_of(group_id, 50) == expected


def test_a_character_outside_the_basic_plane_counts_as_two():
    """Java's strings are UTF-16: U+1F600 is d83d de00, so its hash is 0xd83d * 31 + 0xde00."""
    assert partition_of("\U0001f600", 1_000_000) == (0xD83D * 31 + 0xDE00) % 1_000_000
