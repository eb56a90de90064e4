"""flakelog.testing: a broker for users' tests, and stock clients that meet the failures it makes."""

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from broker.client.blocking import Client
from broker.client.errors import Unreachable
from flakelog.testing import Broker, BrokerError, DidNotStart
from tests.patience import MS, SECONDS, until


@pytest.fixture(scope="module")
def shared():
    began = time.monotonic()
    with Broker(topics={"flights": 3, "trains": {"config": {"cleanup.policy": "compact,delete"}}}) as broker:
        print(f"ready after {time.monotonic() - began:.2f} s")
        yield broker


@pytest.fixture
def broker(shared):
    yield shared
    shared.heal()


def topics_of(broker):
    """Return {topic: number of partitions}."""
    with Client(broker.address) as client:
        return {topic.name: topic.partitions for topic in client.topics()}


def values(broker, topic):
    return [record.value for record in broker.records(topic)]


def idempotent(broker):
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0,
                     "retry.backoff.ms": 10, "reconnect.backoff.ms": 10})  # fmt: skip


def send_by_confluent(broker, topic, values):
    producer = idempotent(broker)
    for value in values:
        producer.produce(topic, value)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0


def send_by_kafka_python(broker, topic, values):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True, retry_backoff_ms=20,
                             reconnect_backoff_ms=20)  # fmt: skip
    sent = [producer.send(topic, value) for value in values]
    for future in sent:
        future.get(SECONDS)
    producer.close()


class Confluent:
    def __init__(self, broker, topic):
        self._consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"confluent-{topic}",
                                   "auto.offset.reset": "earliest", "reconnect.backoff.max.ms": 100})  # fmt: skip
        self._consumer.subscribe([topic])
        self.close = self._consumer.close

    def poll(self):
        message = self._consumer.poll(0.1)
        return [message.value()] if message is not None and message.error() is None else []


class KafkaPython:
    def __init__(self, broker, topic):
        self._consumer = KafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers, group_id=f"python-{topic}",
                                       auto_offset_reset="earliest", reconnect_backoff_max_ms=100)  # fmt: skip
        self.close = self._consumer.close

    def poll(self):
        # kafka-python 3.0.12 joins again when it learns of the topic's partitions. If the poll that began this join
        # ends first, it forgets the join and waits for ever, with Apache Kafka too. This long poll ends with messages.
        return [message.value for messages in self._consumer.poll(MS).values() for message in messages]


# --- topics, settings and the process --------------------------------------------------------------------------------


def test_topics_are_there_from_the_start_as_they_were_asked_for(broker):
    topics = topics_of(broker)
    assert (topics["flights"], topics["trains"]) == (3, 1)
    assert broker.bootstrap_servers == f"127.0.0.1:{broker.port}" == broker.address


def test_a_topic_is_made_read_and_deleted(broker):
    assert broker.create_topic("made", 2, {"retention.ms": 1000}) == "made"
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for n in range(4):
        producer.produce("made", b"%d" % n, partition=n % 2)
    assert producer.flush(SECONDS) == 0
    assert [record.value for record in broker.records("made", 1)] == [b"1", b"3"]
    assert values(broker, "made") == [b"0", b"2", b"1", b"3"]
    broker.delete_topic("made")
    assert "made" not in topics_of(broker)


def test_settings_are_a_servers_and_a_wrong_one_is_said_with_the_log():
    with pytest.raises(DidNotStart, match="did you mean num.partitions"):
        Broker(settings={"num.partition": 3}).start()


def test_a_topic_that_cannot_be_is_said_before_anything_is_started():
    with pytest.raises(ValueError, match="topic a: no partition; give partitions and config"):
        Broker(topics={"a": {"partition": 3}})


def test_a_server_does_not_load_what_tests_are_made_of(monkeypatch):
    """A server does not load hypothesis, which kio would import for a helper and which would delay the first answer."""
    assert find_spec("hypothesis")
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with Broker() as broker:
        topics_of(broker)
        assert "kio.schema" in broker.log() and "hypothesis.internal" not in broker.log()


def test_without_a_start_it_says_so():
    broker = Broker()
    for ask in (broker.kill, broker.log, lambda: broker.fail_next("Produce", 6)):
        with pytest.raises(BrokerError, match="it is not started; use it in a `with`"):
            ask()
    broker.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port cannot be held for another process")
def test_while_it_is_down_nobody_else_is_given_its_ports():
    with Broker(topics={"kept": 1}) as broker:
        before = broker.address, broker.http_address
        broker.kill()
        for address in before:
            host, _, port = address.rpartition(":")
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))
            with socket.socket() as client, pytest.raises(ConnectionRefusedError):
                client.connect((host, int(port)))
        broker.restart()
        assert (broker.address, broker.http_address) == before and "kept" in topics_of(broker)


def test_data_in_a_directory_of_ones_own_stay(tmp_path):
    with Broker(topics={"kept": 1}, directory=tmp_path / "data") as broker:
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers).send("kept", b"a").get(SECONDS)
    with Broker(directory=tmp_path / "data") as broker:
        assert values(broker, "kept") == [b"a"]


START_AND_WAIT = """
from broker.client.blocking import Client
from broker.client.errors import Unreachable
from flakelog.testing import Broker
broker = Broker().start()
print(broker.pid, broker._home, flush=True)
input()
"""


@pytest.mark.parametrize("end, stalled", [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, False),
                                          (None, False)])  # fmt: skip
def test_it_ends_with_the_program_that_started_it_and_leaves_nothing(end, stalled):
    program = subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid, home = program.stdout.readline().split()
    if stalled:
        os.kill(int(pid), signal.SIGSTOP)
        until(lambda: _has_stopped(int(pid)))  # otherwise the stop could come after the last wake-up
    if end is None:
        program.communicate("\n", timeout=SECONDS)
    else:
        program.send_signal(end)
        program.communicate(timeout=SECONDS)
    until(lambda: not Path(home).exists() and not _runs(int(pid)))


def _runs(pid):
    """Return False if the process has ended, even if its parent has not waited for it yet."""
    return _state(pid) not in ("Z", "gone")


def _has_stopped(pid):
    """Return True if each thread has stopped. The system wakes up no process of which one still runs."""
    return {_state(f"{pid}/task/{thread.name}") for thread in Path(f"/proc/{pid}/task").iterdir()} == {"T"}


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


# --- failures on demand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("send", [send_by_confluent, send_by_kafka_python])
def test_an_idempotent_producer_gets_over_errors_and_lost_answers_and_each_message_is_there_once(broker, send):
    topic = broker.create_topic(f"once-{send.__name__}")
    broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    broker.close_next("Produce", when="after")
    broker.close_next("Produce", when="before")
    broker.fail_next("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS")
    sent = [b"%d" % n for n in range(50)]
    send(broker, topic, sent)
    assert values(broker, topic) == sent
    assert broker.faults_left() == {}


def test_a_transaction_is_committed_once_though_the_coordinator_moves_and_answers_are_lost(broker):
    broker.create_topic("settled")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "settler"})
    broker.fail_next("InitProducerId", "NOT_COORDINATOR")
    producer.init_transactions(SECONDS)
    broker.fail_next("AddPartitionsToTxn", "CONCURRENT_TRANSACTIONS", times=2)
    broker.close_next("EndTxn", when="after")
    producer.begin_transaction()
    producer.produce("settled", b"a")
    producer.commit_transaction(SECONDS)
    assert broker.faults_left() == {}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "settled",
                         "auto.offset.reset": "earliest", "isolation.level": "read_committed"})  # fmt: skip
    consumer.subscribe(["settled"])
    assert consumer.poll(SECONDS).value() == b"a"
    consumer.close()


def test_a_producer_that_is_not_idempotent_writes_twice_when_an_answer_is_lost(broker):
    broker.create_topic("twice")
    broker.close_next("Produce", when="after")
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, enable_idempotence=False, acks=1, retries=5, retry_backoff_ms=20
    )
    producer.send("twice", b"a").get(SECONDS)
    producer.close()
    assert values(broker, "twice") == [b"a", b"a"]


def test_an_error_that_does_not_pass_reaches_the_program(broker):
    failed = []
    broker.create_topic("refused")
    broker.fail_next("Produce", "TOPIC_AUTHORIZATION_FAILED")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("refused", b"a", on_delivery=lambda error, message: failed.append(error.name()))
    assert producer.flush(SECONDS) == 0
    assert (failed, values(broker, "refused")) == (["TOPIC_AUTHORIZATION_FAILED"], [])


def test_a_slow_broker_makes_a_request_time_out(broker):
    broker.create_topic("slow")
    broker.delay("Produce", 5_000)
    failed = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 300})
    producer.produce("slow", b"a", on_delivery=lambda error, message: failed.append(error.name()))
    assert producer.flush(SECONDS) == 0
    assert failed == ["_MSG_TIMED_OUT"]


def test_a_stalled_broker_has_stopped(broker):
    for _ in range(20):  # a signal sometimes takes effect late
        broker.stall()
        assert _state(broker.pid) == "T"
        broker.resume()


def test_a_stalled_broker_goes_on_where_it_was(broker):
    broker.create_topic("stalled")
    producer = idempotent(broker)
    broker.stall()
    producer.produce("stalled", b"a")
    assert producer.flush(0.3) == 1
    with pytest.raises(BrokerError, match="it is stalled and takes no orders"):
        broker.clear_faults()
    broker.resume()
    assert producer.flush(SECONDS) == 0
    assert values(broker, "stalled") == [b"a"]


@pytest.mark.parametrize("kind", [Confluent, KafkaPython])
def test_a_consumer_goes_on_over_kill_and_restart(broker, kind):
    topic = broker.create_topic(f"survives-{kind.__name__}")
    producer = idempotent(broker)
    producer.produce(topic, b"before")
    assert producer.flush(SECONDS) == 0
    consumer = kind(broker, topic)
    read = []
    until(lambda: read.extend(consumer.poll()) or read == [b"before"])
    address = broker.address
    broker.kill()
    assert not broker.running
    producer.produce(topic, b"after")
    broker.restart()
    assert broker.address == address
    assert producer.flush(SECONDS) == 0
    until(lambda: read.extend(consumer.poll()) or b"after" in read)
    # A consumer that joins again reads uncommitted messages again.
    assert list(dict.fromkeys(read)) == [b"before", b"after"]
    consumer.close()


def test_what_makes_no_sense_is_refused_by_name(broker):
    with pytest.raises(ValueError, match="no API 'produce' is served; did you mean Produce?"):
        broker.fail_next("produce", 6)
    with pytest.raises(ValueError, match="did you mean NOT_LEADER_OR_FOLLOWER?"):
        broker.fail_next("Produce", "NOT_LEADER")
    with pytest.raises(ValueError, match="when='never'"):
        broker.close_next("Produce", when="never")


def test_a_killed_and_a_stalled_broker_are_healed(broker):
    broker.fail_next("Produce", 6, times=100)
    broker.kill()
    broker.heal()
    broker.delay("Fetch", 100)
    broker.stall()
    broker.heal()
    assert broker.running and broker.faults_left() == {}


def test_an_answer_that_came_too_late_is_not_taken_for_the_next_one(broker, monkeypatch):
    monkeypatch.setattr("flakelog.testing.process.ORDER_SECONDS", 0.1)
    os.kill(broker.pid, signal.SIGSTOP)  # unknown to the Broker object, like a pause of a machine under load
    with pytest.raises(BrokerError, match="it said nothing in time"):
        broker.fail_next("Produce", 6)
    monkeypatch.undo()
    broker.resume()
    assert broker.faults_left() == {"Produce": {"queue": 1, "delay_ms": 0}}


def test_its_log_says_what_it_did_since_a_mark(broker):
    mark = broker.mark()
    broker.close_next("Metadata")
    with pytest.raises(Unreachable):
        topics_of(broker)
    assert "a test wants it closed before a Metadata" in broker.wait_for_log("closed", since=mark)


def test_a_server_that_was_not_started_for_tests_takes_no_orders(tmp_path):
    """A server that was not started for tests ignores its stdin and uses the usual engine."""
    server = subprocess.Popen(
        [sys.executable, "-m", "flakelog", "server", "--dev", "--set=listeners=PLAINTEXT://127.0.0.1:0",
         "--set=flakelog.ids.listener=", "--set=flakelog.http.listener="],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout.readline().startswith("ready: ")
    server.stdin.write('{"do": "left"}\n')
    server.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        server.wait(0.5)
    server.terminate()
    assert server.stdout.read() == ""
    server.wait(SECONDS)
