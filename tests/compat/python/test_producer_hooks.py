"""Hooks and event handlers of producers: each step of the queue, as early Kafka's CallbackHandler saw it.

https://github.com/apache/kafka/blob/0.7.2/core/src/main/scala/kafka/producer/async/CallbackHandler.scala
"""

import pytest

from broker.client.async_producer import AsyncProducer
from broker.client.blocking import Client
from broker.client.errors import ProduceError, QueueFull
from broker.client.producer import Producer
from broker.client.producer_hook import MessageOutcome, ProducerHook, QueuedMessage
from broker.client.producer_outcomes import Delivered
from tests.compat.numbers_topic import NOBODY, SOON_MS


class Steps(ProducerHook):
    """Write down each step."""

    def __init__(self, last=()):
        self.steps = []
        self.errors = []
        self._last = last

    def before_enqueue(self, message):
        self.steps.append(("before_enqueue", message.value))
        return message

    def after_enqueue(self, message, is_queued):
        self.steps.append(("after_enqueue" if is_queued else "not queued", message.value))

    def after_dequeue(self, message):
        self.steps.append(("after_dequeue", message.value))

    def dropped(self, message, error):
        self.steps.append(("dropped", message.value))
        self.errors.append(error)

    def last_batch(self):
        self.steps.append(("last_batch", None))
        return self._last


@pytest.fixture
def topic(broker, name):
    with Client(broker.address) as client:
        client.create_topic(name, 3)
    return name


def records(broker, topic, partition=0):
    with Client(broker.address) as client:
        return client.fetch(topic, partition, 0, max_wait_ms=0)[0]


def test_a_hook_sees_each_step_of_a_message(broker, topic):
    hook = Steps()
    with Producer(broker.address, hook=hook) as producer:
        producer.send(topic, "v")
        producer.flush()
        assert hook.steps == [("before_enqueue", b"v"), ("after_enqueue", b"v"), ("after_dequeue", b"v")]


def test_a_hook_sees_messages_that_are_waited_for_and_those_with_a_callback(broker, topic):
    hook, deliveries = Steps(), []
    with Producer(broker.address, hook=hook) as producer:
        producer.send(topic, "one", callback=lambda error, delivered: deliveries.append(delivered))
        delivered = producer.send_and_wait(topic, "two")
    assert [name for name, value in hook.steps if value == b"two"] == [
        "before_enqueue", "after_enqueue", "after_dequeue",
    ]  # fmt: skip
    assert len(deliveries) == 1 and isinstance(delivered, Delivered)


def test_a_hook_may_change_a_message_before_it_is_queued(broker, topic):
    class Marked(ProducerHook):
        def before_enqueue(self, message):
            return message._replace(value=message.value.upper(), partition=2, headers=[("mark", "x")], timestamp_ms=9)

    with Producer(broker.address, hook=Marked()) as producer:
        assert producer.send_and_wait(topic, "v").partition == 2
    (record,) = records(broker, topic, 2)
    assert (record.value, record.headers, record.timestamp_ms) == (b"V", (("mark", b"x"),), 9)


def test_a_hook_sees_a_message_before_its_id_is_stamped(broker, topic, tmp_path):
    class Headers(ProducerHook):
        def before_enqueue(self, message):
            seen.append(list(message.headers))
            return message

    seen = []
    with Producer(broker.address, hook=Headers(), ids="header", directory=tmp_path) as producer:
        producer.send(topic, "v", headers={"trace": "7"}, partition=0)
    (record,) = records(broker, topic)
    assert seen == [[("trace", b"7")]] and dict(record.headers).keys() == {"trace", "flakelog-id"}


def test_a_hook_sends_the_last_messages(broker, topic):
    with Producer(broker.address, hook=Steps([QueuedMessage(topic, b"last", partition=0)])) as producer:
        producer.send(topic, "first", partition=0)
    assert [record.value for record in records(broker, topic)] == [b"first", b"last"]


def test_a_hook_sees_a_message_that_is_dropped_because_nobody_acknowledges_it():
    hook = Steps()
    with Producer(NOBODY, hook=hook, timeout_ms=SOON_MS) as producer:
        producer.send("t", "lost")
        with pytest.raises(ProduceError, match="not acknowledged"):
            producer.flush()
    assert hook.steps[2:4] == [("after_dequeue", b"lost"), ("dropped", b"lost")]
    assert f"not acknowledged within {SOON_MS} ms" in str(hook.errors[0])


def test_a_hook_sees_a_message_that_a_full_queue_does_not_take():
    """It sees the message once, however long `send` waits for room."""
    hook = Steps()
    with Producer(NOBODY, hook=hook, queue_size=1, enqueue_timeout_ms=SOON_MS) as producer:
        producer.send("t", "one")
        with pytest.raises(QueueFull):
            producer.send("t", "two")
        assert hook.steps[2:] == [("before_enqueue", b"two"), ("not queued", b"two"), ("dropped", b"two")]
        with pytest.raises(ProduceError, match="dropped by purge"):
            producer.purge()
            producer.flush()


def test_what_a_hook_cannot_send_is_refused_by_name():
    class Wrong(ProducerHook):
        def __init__(self, result):
            self.result = result

        def before_enqueue(self, message):
            return self.result

    with Producer(NOBODY, hook=Wrong(None)) as producer:
        with pytest.raises(TypeError, match="before_enqueue returned None: return the message"):
            producer.send("t", "v")
        assert producer.figures().queued == 0
    with Producer(NOBODY, hook=Wrong(QueuedMessage("t", b"v", partition=-2))) as producer:
        with pytest.raises(ValueError, match="partition=-2: give a whole number from 0"):
            producer.send("t", "v")


def test_an_exception_of_a_hook_is_raised_by_the_call_in_which_it_ran(broker, topic):
    class Failing(ProducerHook):
        def after_dequeue(self, message):
            raise LookupError(message.value)

    deliveries = []
    with Producer(broker.address, hook=Failing()) as producer:
        producer.send(topic, "v", callback=lambda error, delivered: deliveries.append(delivered))
        with pytest.raises(LookupError):
            producer.flush()
    assert len(deliveries) == 1


def test_an_event_handler_sees_the_messages_in_batches(broker, topic):
    batches = []
    with Producer(broker.address, event_handler=batches.append, batch_size=10, queue_time_ms=1_000) as producer:
        for number in range(35):
            producer.send(topic, str(number), partition=1)
    assert max(map(len, batches)) <= 10
    outcomes = [outcome for batch in batches for outcome in batch]
    assert outcomes == [
        MessageOutcome(QueuedMessage(topic, b"%d" % number, partition=1, headers=[]), Delivered(topic, 1, number))
        for number in range(35)
    ]


def test_an_event_handler_sees_failures_and_may_send_again(broker, topic):
    seen = []

    def again(batch):
        for message, result in batch:
            seen.append(type(result))
            if len(seen) == 1:
                producer.send(message.topic, b"again")

    with Producer(NOBODY, event_handler=again, timeout_ms=SOON_MS) as producer:
        producer.send("t", "v")
        with pytest.raises(ProduceError, match="2 messages were not acknowledged"):
            while len(seen) < 2:
                producer.poll(timeout_ms=SOON_MS)
            producer.flush()
    assert seen == [ProduceError, ProduceError]


def test_an_event_handler_sees_the_messages_of_a_transaction(broker, topic, name):
    batches = []
    with Producer(broker.address, event_handler=batches.append, transactional_id=name) as producer:
        with producer.transaction():
            producer.send(topic, "v")
        assert sum(map(len, batches)) == 1


@pytest.mark.parametrize("arguments", [{"hook": print}, {"event_handler": "print"}])
def test_other_objects_are_refused(arguments):
    with pytest.raises(TypeError, match="give an object of a class derived from ProducerHook|give a function"):
        Producer(NOBODY, **arguments)
    with pytest.raises(TypeError, match="an AsyncProducer has no hook"):
        AsyncProducer(NOBODY, **arguments)
