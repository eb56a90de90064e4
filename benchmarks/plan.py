"""Plans of requests for the load program: the frames, and the places in them that it fills in (native/plan.h).

The program numbers the requests, gives each batch the current time and, for idempotent producers, a producer id and a
sequence number. It checks the error codes of the answers.
"""

import random
import re
import struct
from collections.abc import Mapping
from typing import NamedTuple

from broker.client.core import LATEST
from broker.record.records import BatchRecord, encode_batch
from broker.wire import cold, fetch, list_offsets, produce
from broker.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from broker.wire.frame import request_header
from broker.wire.list_offsets import FoundOffset, ListOffsetsResponse
from broker.wire.produce import PartitionResult, ProduceRequest

PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION, METADATA_VERSION = 9, 12, 7, 12
METADATA = 3
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
SASL_HANDSHAKE_VERSION, SASL_AUTHENTICATE_VERSION = 1, 2
VALUE_BYTES = 100
VALUE_BYTES_MIN, VALUE_BYTES_MAX = 20, 400  # of records whose sizes vary
SIZES = 8  # of the records that a plan has for each partition, where sizes vary
LATELY_BYTES = 4096  # what a Fetch of recent records asks for at most
SEED = 1
ACKS_ALL = -1
ACKS_LEADER = 1
TIMEOUT_MS = 30_000
WAIT_MS = 500

# Marks in sample requests and answers. Searching for a mark finds the place of its field, so that no layout is written
# down twice. No topic's name and no other field of the samples has these bytes.
ERROR_MARK = b"\x7e\xee"
OFFSET_MARK = b"\x7e\xee\x7d\xdd\x7e\xee\x7d\xdd"
ERROR = int.from_bytes(ERROR_MARK, "big")
OFFSET = int.from_bytes(OFFSET_MARK, "big")
ANSWER_HEAD_BYTES = 9  # length, correlation id, no tags
ERROR_BYTES = 2


class Batch(NamedTuple):
    """A record batch in a frame. Batches of one slot share their count of sequence numbers."""

    at: int
    size: int
    slot: int


class Planned(NamedTuple):
    """A request: its frame, and the places in it and in its answer that the load program uses. 0 is no place."""

    frame: bytes
    batches: tuple[Batch, ...] = ()
    errors_at: tuple[int, ...] = ()
    fetch_offset_at: int = 0
    base_offset_at: int = 0
    answer_bytes_min: int = 0

    def encode(self) -> bytes:
        batches = [number for batch in self.batches for number in batch]
        numbers = [len(self.frame), len(self.batches), *batches, len(self.errors_at), *self.errors_at]
        numbers += [self.fetch_offset_at, self.base_offset_at, self.answer_bytes_min]
        return struct.pack(f">{len(numbers)}I", *numbers) + self.frame


class Plan(NamedTuple):
    """Requests in groups of `group`: a connection plays a group as a whole."""

    requests: list[Planned]
    group: int = 1

    def encode(self) -> bytes:
        """The plan as the load program reads it."""
        slots = 1 + max((batch.slot for request in self.requests for batch in request.batches), default=0)
        head = struct.pack(">3I", len(self.requests), self.group, slots)
        return head + b"".join(request.encode() for request in self.requests)


def _frame(api_key: int, version: int, body: bytes, *, flexible: bool = True) -> bytes:
    message = request_header(api_key, version, 0, "bench", flexible) + body
    return struct.pack(">i", len(message)) + message


def _errors_at(answer_body: bytes) -> tuple[int, ...]:
    return tuple(ANSWER_HEAD_BYTES + match.start() for match in re.finditer(re.escape(ERROR_MARK), answer_body))


# --- requests ------------------------------------------------------------------------------------------------------


def produce_request(topic: str, values: Mapping[int, bytes], acks: int = ACKS_ALL) -> Planned:
    """Build a Produce request with one record for each partition of `values`."""
    batches = {
        partition: bytes(encode_batch([BatchRecord(0, 0, None, value, ())], base_timestamp_ms=0))
        for partition, value in values.items()
    }
    records = [(topic, partition, memoryview(batch)) for partition, batch in batches.items()]
    request = ProduceRequest(None, acks, TIMEOUT_MS, records, wants_ids=False)
    frame = _frame(produce.API_KEY, PRODUCE_VERSION, produce.encode_request(PRODUCE_VERSION, request))
    positions = tuple(Batch(frame.index(batch), len(batch), partition) for partition, batch in batches.items())
    errors_at = _errors_at(produce_answer(topic, *values))
    return Planned(frame, positions, errors_at, base_offset_at=errors_at[0] + ERROR_BYTES)


def produce_answer(topic: str, *partitions: int) -> bytes:
    """Build the body of a Produce answer, with ERROR for each partition."""
    results = [PartitionResult(topic, partition, ERROR, 0, -1, 0) for partition in partitions]
    return produce.encode_response(PRODUCE_VERSION, results)


def fetch_request(topic: str, partition: int, offset: int | None, max_bytes: int, answer_bytes_min: int) -> Planned:
    """Build a Fetch request; offset None stands for the base offset in the latest Produce answer of the connection."""
    wanted = FetchPartition(topic, partition, OFFSET if offset is None else offset, max_bytes)
    request = FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=max_bytes, partitions=[wanted])
    frame = _frame(fetch.API_KEY, FETCH_VERSION, fetch.encode_request(FETCH_VERSION, request))
    answer = FetchResponse([FetchedPartition(topic, partition, ERROR)], ERROR)
    body = b"".join(bytes(part) for part in fetch.encode_response(FETCH_VERSION, answer))
    offset_at = frame.index(OFFSET_MARK) if offset is None else 0
    return Planned(frame, (), _errors_at(body), fetch_offset_at=offset_at, answer_bytes_min=answer_bytes_min)


def list_offsets_request(topic: str) -> Planned:
    """Build a ListOffsets request: where partition 0 ends."""
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [partition]}]}
    body = cold.encode(list_offsets.API_KEY, LIST_OFFSETS_VERSION, "request", fields)
    answer = ListOffsetsResponse([FoundOffset(topic, 0, ERROR)])
    errors_at = _errors_at(list_offsets.encode_response(LIST_OFFSETS_VERSION, answer))
    return Planned(_frame(list_offsets.API_KEY, LIST_OFFSETS_VERSION, body), errors_at=errors_at)


def metadata_request(topic: str) -> Planned:
    """Build a Metadata request for one topic. Its errors go unchecked: their place depends on the broker's address."""
    fields = {
        "topics": [{"topic_id": None, "name": topic}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    return Planned(_frame(METADATA, METADATA_VERSION, cold.encode(METADATA, METADATA_VERSION, "request", fields)))


def plain_login(user: str, password: str) -> list[Planned]:
    """Build the two requests of a login by PLAIN (RFC 4616)."""
    handshake = cold.encode(SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION, "request", {"mechanism": "PLAIN"})
    token = {"auth_bytes": f"\0{user}\0{password}".encode()}
    authenticate = cold.encode(SASL_AUTHENTICATE, SASL_AUTHENTICATE_VERSION, "request", token)
    first = _frame(SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION, handshake, flexible=False)
    return [
        Planned(first, (), (ANSWER_HEAD_BYTES - 1,)),  # its answer has no tags in the head
        Planned(_frame(SASL_AUTHENTICATE, SASL_AUTHENTICATE_VERSION, authenticate), (), (ANSWER_HEAD_BYTES,)),
    ]


# --- plans ---------------------------------------------------------------------------------------------------------


def one_each(topic: str, partitions: int, acks: int = ACKS_ALL) -> Plan:
    """Plan one record of 100 bytes for each partition."""
    chance = random.Random(SEED)
    requests = [
        produce_request(topic, {partition: chance.randbytes(VALUE_BYTES)}, acks) for partition in range(partitions)
    ]
    return Plan(requests)


def leader_acks(topic: str, partitions: int) -> Plan:
    """Plan as `one_each`, with acks=1."""
    return one_each(topic, partitions, ACKS_LEADER)


def sizes_vary(topic: str, partitions: int) -> Plan:
    """Plan records of varying sizes, the partitions in turn."""
    chance = random.Random(SEED)
    sizes = [chance.randint(VALUE_BYTES_MIN, VALUE_BYTES_MAX) for _ in range(SIZES * partitions)]
    return Plan([produce_request(topic, {at % partitions: chance.randbytes(size)}) for at, size in enumerate(sizes)])


def two_each(topic: str, partitions: int) -> Plan:
    """Plan records of 100 bytes, one for a partition and one for the next partition in each request."""
    chance = random.Random(SEED)
    requests = []
    for partition in range(partitions):
        both = partition, (partition + 1) % partitions
        requests.append(produce_request(topic, {index: chance.randbytes(VALUE_BYTES) for index in both}))
    return Plan(requests)


def produce_then_fetch(topic: str, partitions: int) -> Plan:
    """Plan pairs: a Produce request, and a Fetch request that begins at the record just produced."""
    requests = []
    for planned in one_each(topic, partitions).requests:
        batch = planned.batches[0]
        requests += [planned, fetch_request(topic, batch.slot, None, LATELY_BYTES, batch.size)]
    return Plan(requests, group=2)


def questions(topic: str, _: int) -> Plan:
    """Plan a ListOffsets and a Metadata request."""
    return Plan([list_offsets_request(topic), metadata_request(topic)])


def logins(users: Mapping[str, str]) -> Plan:
    """Plan a login by PLAIN for each user, given with its password."""
    requests = [request for user, password in users.items() for request in plain_login(user, password)]
    return Plan(requests, group=len(requests) // len(users))
