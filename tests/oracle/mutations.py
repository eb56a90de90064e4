"""Damage to requests: flipped bits, lengths that lie, frames that end early or late, integers spelled long.

Most damage goes to headers, lengths and record batch headers, because the bytes of values decide nothing.
"""

from tests.oracle.batches import CRC_COVERS_FROM, HEADER_BYTES, sealed
from tests.oracle.requests import LENGTH_BYTES

HEADER_AREA = 64  # of a frame, in which its header and the first fields of its body lie


def mutated(chance, frame, others):
    """A damaged copy of the frame. `others` are frames that a splice may take bytes from."""
    mutations = (
        (flipped, 6), (stuffed, 3), (spelled_long, 3), (resealed, 3), (cut_short, 2), (lengthened, 2), (spliced, 2),
        (of_another_version, 1), (with_another_length, 1),
    )  # fmt: skip
    (mutate,) = chance.choices([mutation for mutation, _ in mutations], [weight for _, weight in mutations])
    return mutate(chance, frame._replace(learn=None), others)


def random_position(chance, frame):
    """A byte of the frame after its length field, more often one that says how to read the others."""
    luck = chance.random()
    size = len(frame.data)
    if luck < 0.35 and len(frame.marks) > 1:
        at, length = chance.choice(frame.marks[1:])
        return min(at + chance.randrange(max(length, 1)), size - 1)
    if luck < 0.55 and frame.batches:
        start, _ = chance.choice(frame.batches)
        return min(start + chance.randrange(HEADER_BYTES), size - 1)
    if luck < 0.85:
        return chance.randrange(LENGTH_BYTES, min(HEADER_AREA, size))
    return chance.randrange(LENGTH_BYTES, size)


def flipped(chance, frame, others):
    """Flip one to three bits."""
    data = bytearray(frame.data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        data[random_position(chance, frame)] ^= 1 << chance.randrange(8)
    return frame._replace(data=bytes(data))


def stuffed(chance, frame, others):
    """Set a byte to an extreme."""
    data = bytearray(frame.data)
    data[random_position(chance, frame)] = chance.choice((0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF))
    return frame._replace(data=bytes(data))


def resealed(chance, frame, others):
    """Flip a bit inside a record batch, and make its CRC hold."""
    if not frame.batches:
        return flipped(chance, frame, others)
    start, end = chance.choice(frame.batches)
    batch = bytearray(frame.data[start:end])
    if len(batch) <= HEADER_BYTES:
        return flipped(chance, frame, others)
    last = HEADER_BYTES + 8 if chance.random() < 0.7 else len(batch)
    batch[chance.randrange(CRC_COVERS_FROM, min(last, len(batch)))] ^= 1 << chance.randrange(8)
    return frame._replace(data=frame.data[:start] + sealed(batch) + frame.data[end:])


def cut_short(chance, frame, others):
    """Drop the end; mostly the length field is right."""
    body = len(frame.data) - LENGTH_BYTES
    bytes_left = max(body - chance.choice((1, 2, 3, 8, chance.randrange(1, body + 1))), 0)
    size = LENGTH_BYTES + bytes_left
    return relengthened(frame, size, frame.data[:size], chance.random() < 0.8)


def lengthened(chance, frame, others):
    """Add bytes at the end or in the middle; mostly the length field is right."""
    more = bytes(chance.choice((1, 2, 4, 16))) if chance.random() < 0.5 else chance.randbytes(chance.randrange(1, 9))
    at = len(frame.data) if chance.random() < 0.5 else random_position(chance, frame)
    data = frame.data[:at] + more + frame.data[at:]
    return relengthened(frame, at, data, chance.random() < 0.8)


def spliced(chance, frame, others):
    """Join the beginning of one frame and the end of another."""
    other = chance.choice(others).data if others else frame.data
    at = random_position(chance, frame)
    tail = other[min(at, len(other)) :] if chance.random() < 0.7 else other[chance.randrange(len(other)) :]
    return relengthened(frame, at, frame.data[:at] + tail, True)


def spelled_long(chance, frame, others):
    """Spell a variable-length integer with more bytes than it needs."""
    if not frame.varints:
        return flipped(chance, frame, others)
    at, size = chance.choice(frame.varints)
    end = at + size
    zeros = chance.choice((1, 1, 1, 2, 5, 9))
    long = frame.data[at : end - 1] + bytes([frame.data[end - 1] | 0x80]) + b"\x80" * (zeros - 1) + b"\0"
    moved = frame.data[:at] + long + frame.data[end:]
    shift = len(long) - size

    def after(position):
        return position if position < end else position + shift

    return relengthened(frame, len(moved), moved, True)._replace(
        fills=tuple((after(position), slot) for position, slot in frame.fills),
        seals=tuple((after(start), after(stop)) for start, stop in frame.seals),
        marks=(), varints=(), batches=(),
    )  # fmt: skip


def of_another_version(chance, frame, others):
    """Change the version or the API key."""
    data = bytearray(frame.data)
    if chance.random() < 0.8:
        version = chance.choice((frame.version + 1, max(frame.version - 1, 0), chance.randrange(20)))
        data[6:8] = version.to_bytes(2, "big")
    else:
        data[4:6] = chance.randrange(80).to_bytes(2, "big")
    return frame._replace(data=bytes(data))


def with_another_length(chance, frame, others):
    """Change the length field."""
    body = len(frame.data) - LENGTH_BYTES
    size = chance.choice((body + 1, body - 1, 0, 1, 7, 8, 9, 10, 1 << 31, (1 << 32) - 1, 0x16030100, 0x47455420))
    return frame._replace(data=size.to_bytes(4, "big") + frame.data[LENGTH_BYTES:])


def relengthened(frame, whole_to, data, honest):
    """The frame of other bytes, with a length field that is right if `honest`. Fills past `whole_to` are dropped."""
    if honest:
        data = (len(data) - LENGTH_BYTES).to_bytes(4, "big") + data[LENGTH_BYTES:]
    return frame._replace(
        data=data,
        fills=tuple((at, slot) for at, slot in frame.fills if at + 16 <= whole_to),
        seals=tuple((start, end) for start, end in frame.seals if end <= whole_to),
        marks=frame.marks[:2], varints=(), batches=(),
    )  # fmt: skip
