"""Ctrl-C while a client of the Python API waits: the call ends, and a line counts the messages that it leaves."""

import signal
import threading
from contextlib import suppress

import pytest

from broker.client.blocking import Client
from broker.client.producer import Producer
from coordination.free_port import FreePort
from tests.compat.python.test_python_ends import committed, run
from tests.compat.server_process import ServerProcess
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
    producer.send("t", "v")
    print("waits", flush=True)
    producer.flush()
""",
    "asyncio": """
import asyncio
from flakelog import AsyncProducer
async def main():
    async with AsyncProducer("127.0.0.1:1", timeout_ms=600_000) as producer:
        await producer.send("t", "v")
        await producer.send("t", "v")
        print("waits", flush=True)
        await producer.flush()
asyncio.run(main())
""",
}


@pytest.mark.parametrize("kind", INTERRUPTED_PRODUCERS)
def test_ctrl_c_tells_of_messages_that_wait_and_a_second_one_drops_them(kind):
    with run(INTERRUPTED_PRODUCERS[kind]) as program:
        assert program.stdout.readline() == "waits\n"
        program.send_signal(signal.SIGINT)
        warning = program.stderr.readline()
        assert warning.startswith("the producer closes once its messages are acknowledged or have failed"), warning
        assert warning.endswith("Ctrl-C drops them: 2\n")
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=SECONDS)
        assert program.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors
        assert "messages that may be lost, because the close of their producer was interrupted: 2\n" in errors
        assert "did not close" not in errors


def test_messages_that_a_second_ctrl_c_drops_are_not_sent_later(tmp_path, name):
    with FreePort() as port:
        servers = f"127.0.0.1:{port.number}"
        with suppress(KeyboardInterrupt):
            with Producer(servers) as producer:
                producer.send(name, "v")
                ends_wait = threading.Timer(1, signal.raise_signal, [signal.SIGINT])
                ends_wait.start()
                raise KeyboardInterrupt
        with ServerProcess(tmp_path / "data", {"listeners": f"PLAINTEXT://{servers}"}) as server:
            assert producer.figures().queued == 0
            with Client(server.address) as client:
                assert name not in {topic.name for topic in client.topics()}
