"""Requests of real clients to a real broker (tests/golden), sent again to an engine without sockets.

Each session is replayed whole, because later requests contain a group's members and a topic's id from earlier answers.
A replay replaces the names that the recorded broker made up (uuids, member ids, fetch sessions) with the new ones. kio,
whose readers are generated from Kafka's own schemas, reads every answer, and the error codes must be those recorded.
"""

from dataclasses import fields, is_dataclass
from uuid import UUID

import pytest

from broker.engine.api_table import APIS
from broker.record.batch import read_header
from broker.wire import cold
from broker.wire.codec import API_VERSIONS
from tests.broker.engine_client import FETCH, HEARTBEAT, INIT_PRODUCER_ID, METADATA, PRODUCE, EngineBroker
from tests.golden import frames

SETTINGS = {  # the settings of tests/compat/clients/capture_frames.py
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "auto_create_topics_enable": False,
}
WAIT_MS = 10_000
STEP_MS = 50
FILES = sorted(frames.HERE.glob(f"*{frames.SUFFIX}"))
MADE_UP = ("topic_id", "member_id", "session_id", "leader", "group_instance_id")


class Session:
    """A replay of one client's exchanges with a fresh broker."""

    def __init__(self):
        self.broker = EngineBroker(**SETTINGS)
        self._clients = {}
        self._instead = {}
        """Maps the bytes of names that the recorded broker made up to the bytes of the new names."""

    def ask(self, exchange):
        """Send a recorded request; return the answer without its length prefix, or None if the request has none."""
        client = self._clients.get(exchange.connection)
        if client is None:
            client = self._clients[exchange.connection] = self.broker.connect()
        request = exchange.request
        for old, new in self._instead.items():
            request = request.replace(old, new)
        client.feed(len(request).to_bytes(4, "big") + request)
        assert client.closed is None, client.closed
        end_ms = self.broker.now_ms + WAIT_MS
        while exchange.answer is not None and not client.received:
            assert self.broker.now_ms < end_ms, "no answer"
            self.broker.at(self.broker.now_ms + STEP_MS)
        answer = bytes(client.received[4:])
        assert int.from_bytes(client.received[:4], "big") == len(answer)
        client.received.clear()
        return answer or None

    def learn(self, before, now):
        """Note the names that this broker made up in place of the recorded ones."""
        for (name, old), (_, new) in zip(values_of(before), values_of(now), strict=False):
            if name == "log_dir":
                self.broker.storage.location = old
            elif name in MADE_UP and old and old != new and type(old) is type(new):
                self._instead[in_bytes(old)] = in_bytes(new)


def in_bytes(value):
    if isinstance(value, UUID):
        return value.bytes
    return value.to_bytes(4, "big") if isinstance(value, int) else value.encode()


def decoded(exchange, answer):
    """Return the answer as kio reads it, to its last byte."""
    api_key, version = exchange.api_key, exchange.version
    assert answer[:4] == exchange.correlation_id
    flexible = version >= APIS[api_key].flexible and api_key != API_VERSIONS
    assert not flexible or answer[4] == 0
    message = cold.decode(api_key, version, "response", memoryview(answer), 5 if flexible else 4, version)
    assert not message.tags, "no stock client asked for a private tag"
    return message.original


def values_of(entity, name=""):
    """Yield (field name, value) for every value of an answer, in order."""
    if is_dataclass(entity):
        for field in fields(entity):
            yield from values_of(getattr(entity, field.name), field.name)
    elif isinstance(entity, tuple):
        for nested in entity:
            yield from values_of(nested, name)
    else:
        yield name, entity


def codes_of(answer):
    return [int(value) for name, value in values_of(answer) if name == "error_code"]


def records_of(answer):
    """Return the batches of clients; the broker's own markers are left out, because their times differ."""
    return [written_in(bytes(value)) for name, value in values_of(answer) if name == "records" and value is not None]


def written_in(data):
    batches, position = [], 0
    while position < len(data):
        header = read_header(data, position)
        if not header.is_control:
            batches.append(data[position : position + header.size])
        position += header.size
    return batches


def replayed(path):
    """Yield (number, exchange, recorded answer, new answer), both answers decoded."""
    session = Session()
    for number, exchange in enumerate(frames.read(path)):
        answer = session.ask(exchange)
        if exchange.answer is None:
            assert answer is None
            continue
        before, now = decoded(exchange, exchange.answer), decoded(exchange, answer)
        session.learn(before, now)
        yield number, exchange, before, now


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_real_clients_session_is_answered_as_it_was(path):
    for number, exchange, before, now in replayed(path):
        request_name = f"request {number}, {APIS[exchange.api_key].name} v{exchange.version}"
        assert codes_of(now) == codes_of(before), f"{request_name}: {before}\nand now {now}"


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_what_it_wrote_it_reads(path):
    """The records come back byte for byte as they were recorded."""
    for _, exchange, before, now in replayed(path):
        if exchange.api_key == FETCH:
            assert records_of(now) == records_of(before)


def test_the_sessions_have_what_clients_live_by():
    for path in FILES:
        api_keys = {exchange.api_key for exchange in frames.read(path)}
        everyday = {PRODUCE, FETCH, METADATA, INIT_PRODUCER_ID, API_VERSIONS, *range(8, 17), 19, 20, 21, 24, 26}
        assert everyday - {HEARTBEAT} <= api_keys, path.stem


@pytest.mark.parametrize("api", APIS.values(), ids=[api.name for api in APIS.values()])
def test_each_api_is_asked_in_its_oldest_and_its_newest_version(api):
    """The bytes were made by another project's encoder; tests/README.md says how to capture them."""
    assert {api.oldest, api.newest} <= frames.asked().get(api.key, set())
