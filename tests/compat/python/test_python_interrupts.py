"""Ctrl-C while a client of the Python API waits: the call ends, and a line counts the messages that it leaves."""

import signal

import pytest

from tests.compat.python.test_python_ends import committed, run
from tests.patience import SECONDS

INTERRUPTED = """
import sys
from flakelog import Consumer
with Consumer(sys.argv[1], sys.argv[2], group=sys.argv[3]) as consumer:
    read = [next(consumer) for _ in range(10)]
    try:
        print("waits", flush=True)
        next(consumer)
    except KeyboardInterrupt:
        print(sum(consumer.committed().values()), flush=True)
    consumer.commit()
    assert consumer.poll(0) == []
    print("ended", flush=True)
"""


def test_ctrl_c_ends_a_call_that_waits_and_the_consumer_can_be_used_on(group_broker, topic, name):
    with run(INTERRUPTED, group_broker.address, topic, name) as program:
        assert program.stdout.readline() == "waits\n"
        program.send_signal(signal.SIGINT)
        out, errors = program.communicate(timeout=SECONDS)
        assert out.splitlines()[-1:] == ["ended"] and program.returncode == 0, errors
    assert committed(group_broker, name) == 10


INTERRUPTED_PRODUCERS = {
    "blocking": """
from flakelog import Producer
with Producer("127.0.0.1:1", timeout_ms=600_000) as producer:
    producer.send("t", "v")
    print("waits", flush=True)
    producer.send_and_wait("t", "v")
""",
    "asyncio": """
import asyncio
from flakelog import AsyncProducer
async def main():
    async with AsyncProducer("127.0.0.1:1", timeout_ms=600_000) as producer:
        await producer.send("t", "v")
        print("waits", flush=True)
        await producer.send_and_wait("t", "v")
asyncio.run(main())
""",
}


@pytest.mark.parametrize("kind", INTERRUPTED_PRODUCERS)
def test_ctrl_c_tells_of_messages_that_wait_and_a_second_one_drops_them(kind):
    with run(INTERRUPTED_PRODUCERS[kind]) as program:
        assert program.stdout.readline() == "waits\n"
        program.send_signal(signal.SIGINT)
        warning = program.stderr.readline()
        assert warning.startswith("the program ends, and 2 messages wait for their acknowledgement"), warning
        assert "another Ctrl-C drops them" in warning
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=SECONDS)
        assert program.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors
        assert "messages that may be lost" in errors and errors.count("2") >= 1
