"""Frames that real clients sent (tests/golden), made ready to be sent to another broker.

Three kinds of names in them were made up by the broker that answered: topic ids, member ids and fetch session ids. Each
becomes a fill. The driver looks a topic id up by the topic's name, and learns the others from the answer that gives
them. All else is as recorded.
"""

from dataclasses import fields, is_dataclass
from functools import cache
from typing import NamedTuple
from uuid import UUID

from kio.index import load_response_schema
from kio.serial import entity_reader

from tests.golden import frames
from tests.oracle.batches import HEADER_BYTES, LENGTH_END, field_of
from tests.oracle.requests import ALTER_CLIENT_QUOTAS, FETCH, LENGTH_BYTES, PRODUCE, Frame

JOIN_GROUP = 11
MAGIC_AT, MAGIC = 16, 2  # in a record batch
SETTINGS = {
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "auto_create_topics_enable": False,
}
"""A broker with these answers as the recorded one did, apart from the names it makes up."""


class Sent(NamedTuple):
    """A frame, the number of the recorded connection, and whether the frame was answered."""

    connection: int
    frame: Frame
    answered: bool


@cache
def sessions():
    """{client's name: its frames in the order it sent them}."""
    paths = sorted(frames.HERE.glob(f"*{frames.SUFFIX}"))
    return {path.stem: _session(path.stem, frames.read(path)) for path in paths}


@cache
def strays():
    """All recorded frames but those that set quotas, to be sent out of their order."""
    frames = [sent.frame._replace(learn=None) for session in sessions().values() for sent in session]
    return [frame for frame in frames if frame.api_key != ALTER_CLIENT_QUOTAS]


def _session(name, exchanges):
    slots, learns = {}, []
    for number, exchange in enumerate(exchanges):
        learns.append(_learn(name, number, exchange, slots) if exchange.answer is not None else None)
    return [
        Sent(exchange.connection, _frame(exchange, slots, learn), exchange.answer is not None)
        for exchange, learn in zip(exchanges, learns, strict=True)
    ]


def _learn(name, number, exchange, slots):
    """Note in `slots` ({bytes made up: slot}) what the answer names; how the driver learns the name, if it must."""
    answer = decoded(exchange)
    for structure in structures(answer):
        topic_id = getattr(structure, "topic_id", None)
        topic = getattr(structure, "name", None)
        if isinstance(topic_id, UUID) and topic_id.int and topic:
            slots[topic_id.bytes] = "topic", topic
    made_up = b""
    if exchange.api_key == JOIN_GROUP:
        made_up = answer.member_id.encode()
    elif exchange.api_key == FETCH and getattr(answer, "session_id", 0):
        made_up = int(answer.session_id).to_bytes(4, "big")
    if not made_up or made_up in slots:
        return None
    slots[made_up] = slot = "recorded", name, number
    return slot, exchange.answer.index(made_up), len(made_up), None


def _frame(exchange, slots, learn):
    data = len(exchange.request).to_bytes(LENGTH_BYTES, "big") + exchange.request
    fills = []
    for made_up, slot in slots.items():
        at = data.find(made_up)
        while at >= 0:
            fills.append((at, slot))
            at = data.find(made_up, at + 1)
    batches = tuple(_batches(data)) if exchange.api_key == PRODUCE else ()
    return Frame(data, tuple(fills), (), learn, ((0, LENGTH_BYTES), (12, 2)), (), batches)


def _batches(data):
    """(start, end) of what looks like the record batches of a Produce."""
    for start in range(LENGTH_BYTES, len(data) - HEADER_BYTES + 1):
        if data[start + MAGIC_AT] == MAGIC and field_of(data, "base_offset", start) == 0:
            end = start + LENGTH_END + field_of(data, "batch_length", start)
            if start + HEADER_BYTES <= end <= len(data) and field_of(data, "record_count", start) > 0:
                yield start, end


def decoded(exchange):
    """The recorded answer as kio reads it."""
    schema = load_response_schema(exchange.api_key, exchange.version)
    data = memoryview(exchange.answer).toreadonly()
    _, position = entity_reader(schema.__header_schema__)(data, 0)
    return entity_reader(schema)(data, position)[0]


def structures(entity):
    """The message and every structure in it."""
    if is_dataclass(entity):
        yield entity
        for field in fields(entity):
            yield from structures(getattr(entity, field.name))
    elif isinstance(entity, tuple):
        for member in entity:
            yield from structures(member)
