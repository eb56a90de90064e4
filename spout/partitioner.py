"""Which partition a record belongs to, as other clients choose it."""

from collections.abc import Callable
from zlib import crc32

CRC32 = "crc32"
MURMUR2 = "murmur2"

_MASK = 0xFFFFFFFF
_M, _R, _SEED = 0x5BD1E995, 24, 0x9747B28C  # of MurmurHash2 as Kafka's Java clients use it


def murmur2(key: bytes) -> int:
    """Return Kafka's hash of a key: MurmurHash2 of 32 bits, without its highest bit (Utils.murmur2, toPositive)."""
    hashed = (_SEED ^ len(key)) & _MASK
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> _R)) * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ k
    if whole < len(key):
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ (hashed >> 13)) * _M & _MASK
    return (hashed ^ (hashed >> 15)) & 0x7FFFFFFF


HASHES: dict[str, Callable[[bytes], int]] = {CRC32: crc32, MURMUR2: murmur2}


def partition_of(key: bytes | None, partitions: int, turn: int, partitioner: str = CRC32) -> int:
    """Return the partition of a key: equal keys share one. Records without a key take turns; `turn` counts them."""
    return (turn if key is None else HASHES[partitioner](key)) % partitions
