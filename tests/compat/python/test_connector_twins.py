"""The asyncio and the Twisted version of ConsumerConnector, with a real ZooKeeper and server."""

import asyncio
from dataclasses import replace

import pytest
from twisted.internet.defer import CancelledError, inlineCallbacks, maybeDeferred
from twisted.internet.epollreactor import EPollReactor
from twisted.python.failure import Failure

from broker.client.asyncio import AsyncClient
from broker.client.connector.async_connector import AsyncConsumerConnector
from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.consumer_connector import ConsumerConnector
from broker.client.connector.topic_filter import TopicFilter
from broker.client.connector.twisted_connector import TwistedConsumerConnector
from broker.client.errors import ClientError
from broker.record.records import BatchRecord, encode_batch
from tests.compat import numbers_topic
from tests.compat.server_process import ServerProcess

CONFIG = ConnectorConfig(
    zookeeper_session_timeout_ms=10_000, rebalance_goes_on=True, auto_commit_interval_ms=None, fetch_max_wait_ms=50
)
SOON = replace(CONFIG, consumer_timeout_ms=numbers_topic.SOON_MS)
ALL = list(range(10))


@pytest.fixture(scope="module")
def registry(zookeeper):
    return f"{zookeeper.hosts}/connector-twins"


@pytest.fixture(scope="module")
def server(tmp_path_factory, registry):
    settings = {"zookeeper.connect": registry, "broker.id": "1"}
    with ServerProcess(tmp_path_factory.mktemp("twins") / "data", settings) as server:
        yield server


@pytest.fixture
def topic(server, name):
    return numbers_topic.fill(server.address, name[:60])


def rest_of(registry, topic):
    """Return what the group has not committed."""
    with ConsumerConnector(registry, "g", config=SOON) as connector:
        (stream,) = connector.streams({topic: 1})[topic]
        uncommitted = []
        while len(uncommitted) < 10 and (some := list(stream)):
            uncommitted += some
        connector.abandon()
    return numbers_topic.values(uncommitted)


async def taken(stream, count):
    return [await anext(stream) for _ in range(count)]


def asynchronous(body):
    """Run a test's body on an event loop."""
    asyncio.run(asyncio.wait_for(body(), 120))


def on_reactor(body):
    """Run a test's body, a generator of Deferreds, on a new reactor."""
    reactor, ends = EPollReactor(), []

    def end(outcome):
        ends.append(outcome)
        reactor.stop()

    reactor.callWhenRunning(lambda: maybeDeferred(inlineCallbacks(body), reactor).addBoth(end))
    reactor.run(installSignalHandlers=False)
    if isinstance(ends[0], Failure):
        ends[0].raiseException()


class TestAsyncio:
    def test_a_stream_has_all_records_and_commits_what_its_task_is_done_with(self, registry, topic):
        async def body():
            async with AsyncConsumerConnector(registry, "g", config=CONFIG) as connector:
                (stream,) = (await connector.streams({topic: 1}, decoder=int))[topic]
                records = await taken(stream, 4)
                await connector.commit_offsets()
                await connector.abandon()
                return [record.value for record in records]

        first = asyncio.run(body())
        assert sorted(first + rest_of(registry, topic)) == ALL

    def test_a_record_that_the_program_fails_on_comes_again(self, registry, topic):
        async def body():
            async with AsyncConsumerConnector(registry, "g", config=CONFIG) as connector:
                (stream,) = (await connector.streams({topic: 1}))[topic]
                done.extend(await taken(stream, 3))
                await anext(stream)
                raise ZeroDivisionError

        done = []
        with pytest.raises(ZeroDivisionError):
            asynchronous(body)
        assert sorted(numbers_topic.values(done) + rest_of(registry, topic)) == ALL

    def test_a_filter_has_streams_that_tasks_read_at_the_same_time(self, registry, topic):
        async def body():
            async with AsyncConsumerConnector(registry, "g", config=CONFIG) as connector:
                streams = await connector.streams(TopicFilter(f"{topic}.*"), 2)
                return await asyncio.gather(*(taken(stream, 5) for stream in streams))

        first, second = asyncio.run(body())
        assert numbers_topic.values(first + second) == ALL
        assert len({record.partition for record in first}) == len({record.partition for record in second}) == 1

    def test_a_cancelled_wait_loses_no_record_and_a_second_task_is_refused(self, registry, server, topic):
        async def body():
            async with AsyncConsumerConnector(registry, "g", config=CONFIG) as connector:
                (stream,) = (await connector.streams({topic: 1}))[topic]
                await taken(stream, 10)
                waiting = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                with pytest.raises(ClientError, match="is asked for a record already"):
                    await anext(stream)
                waiting.cancel()
                await asyncio.wait([waiting])
                async with AsyncClient(server.address) as client:
                    await client.produce(topic, 0, encode_batch([BatchRecord(0, 0, None, b"10")], base_timestamp_ms=1))
                assert (await anext(stream)).value == b"10"

        asynchronous(body)

    def test_a_stream_ends_after_the_consumer_timeout_and_at_a_shutdown(self, registry, topic):
        async def body():
            connector = AsyncConsumerConnector(registry, "g", config=SOON)
            (stream,) = (await connector.streams({topic: 1}))[topic]
            records = []
            while len(records) < 10:
                records += [record async for record in stream]
            await connector.shutdown()
            assert [record async for record in stream] == []
            with pytest.raises(ClientError, match="was shut down"):
                await connector.commit_offsets()

        asynchronous(body)


class TestTwisted:
    def test_a_stream_has_all_records_and_commits_what_is_finished(self, registry, topic):
        def body(reactor):
            connector = TwistedConsumerConnector(registry, "g", reactor=reactor, config=CONFIG)
            (stream,) = (yield connector.streams({topic: 1}, decoder=int))[topic]
            for _ in range(4):
                first.append((yield stream.next()).value)
            stream.finish()
            yield connector.commit_offsets()
            yield connector.shutdown()
            assert (yield stream.next()) is None

        first = []
        on_reactor(body)
        assert sorted(first + rest_of(registry, topic)) == ALL

    def test_a_stream_fires_with_none_after_the_consumer_timeout(self, registry, topic):
        def body(reactor):
            connector = TwistedConsumerConnector(registry, "g", reactor=reactor, config=SOON)
            (stream,) = yield connector.streams(TopicFilter(topic), 1)
            values = []
            while len(values) < 10:
                if (record := (yield stream.next())) is not None:
                    values.append(int(record.value))
            assert (yield stream.next()) is None and sorted(values) == ALL
            yield connector.shutdown()

        on_reactor(body)

    def test_a_cancelled_deferred_loses_no_record_and_a_second_one_is_refused(self, registry, topic):
        def body(reactor):
            connector = TwistedConsumerConnector(registry, "g", reactor=reactor, config=CONFIG)
            (stream,) = (yield connector.streams({topic: 1}))[topic]
            waiting = stream.next()
            with pytest.raises(ClientError, match="is asked for a record already"):
                yield stream.next()
            waiting.cancel()
            with pytest.raises(CancelledError):
                yield waiting
            values = []
            for _ in range(10):
                values.append(int((yield stream.next()).value))
            assert sorted(values) == ALL
            yield connector.shutdown()

        on_reactor(body)

    def test_a_decoder_that_raises_fails_the_deferred_and_the_next_skips_the_record(self, registry, topic):
        def decode(value):
            if value == b"0":
                raise ZeroDivisionError
            return int(value)

        def body(reactor):
            connector = TwistedConsumerConnector(registry, "g", reactor=reactor, config=CONFIG)
            (stream,) = (yield connector.streams({topic: 1}, decoder=decode))[topic]
            values = []
            while len(values) < 10:
                try:
                    values.append((yield stream.next()).value)
                except ZeroDivisionError:
                    values.append(0)
            assert sorted(values) == ALL
            yield connector.shutdown()

        on_reactor(body)

    def test_no_zookeeper_is_an_error_of_the_deferred(self):
        def body(reactor):
            config = replace(CONFIG, zookeeper_connection_timeout_ms=100)
            connector = TwistedConsumerConnector("127.0.0.1:1", "g", reactor=reactor, config=config)
            with pytest.raises(ClientError, match="no ZooKeeper answered at 127.0.0.1:1 in 100 ms"):
                yield connector.streams({"t": 1})
            yield connector.shutdown()

        on_reactor(body)
