"""Count the calls and the files that one message passes: what a reader follows, independent of the machine.

    python -m benchmarks.calls            each kind of message, a line each
    python -m benchmarks.calls --calls    also each function in the order of its calls

A call is one of a Python function of the product's packages. Storage in memory, sockets in memory and the test driver
stand for the disk, the network and the clock, so their calls do not count. The message comes after others like it, when
templates are learned and files are open.
"""

import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Iterator

from broker.security.authorization.acl import AclBinding, Operation, PatternType, Permission, ResourceType
from flakelog import Bolt, LogSpout, Topology
from flakelog.testing.topology import TopologyDriver
from tests.broker.engine_client import FETCH, PRODUCE, fetch_request, produce_request
from tests.broker.net.polled_server import PolledServer

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("broker", "coordination", "flakelog", "idgen", "partition_manager", "spout")
STAND_INS = ("flakelog/testing/", "broker/log/storage/memory_storage.py")
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
RULE = AclBinding(
    ResourceType.TOPIC, PatternType.LITERAL, "flights", "User:*", "*", Operation.READ, Permission.ALLOW
)
WARM_UP = 60  # messages before the one that counts; it is not one of the few that get an entry in the offset index


class Calls:
    """The Python functions of the product that a piece of work called, in order."""

    def __init__(self) -> None:
        self.codes: list[CodeType] = []

    @property
    def files(self) -> set[str]:
        return {file_of(code) for code in self.codes}

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and is_product(file_of(frame.f_code)):
            self.codes.append(frame.f_code)


def file_of(code: CodeType) -> str:
    """Return the file of a function below the checkout, or the whole path of a file outside."""
    path = Path(code.co_filename)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else code.co_filename


def is_product(path: str) -> bool:
    return path.startswith(tuple(f"{package}/" for package in PACKAGES)) and not path.startswith(STAND_INS)


def counted(work: Callable[[], object]) -> Calls:
    """Return the calls of `work` in this thread."""
    calls = Calls()
    sys.setprofile(calls.profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@contextmanager
def polled_server(*, has_authorizer: bool) -> Iterator[PolledServer]:
    """Run a server, with rules by which all users may read and write the topic if it has an authorizer."""
    server = PolledServer(authorizer_class_name=AUTHORIZER if has_authorizer else "")
    if has_authorizer:
        rights = Operation.READ, Operation.WRITE
        server.broker.services.authorizer.use(frozenset(RULE._replace(operation=operation) for operation in rights))
    try:
        yield server
    finally:
        server.stop()


def produce(*, has_authorizer: bool = False) -> Calls:
    """Return the calls of a Produce with one record, from the read event to the sent answer."""
    with polled_server(has_authorizer=has_authorizer) as server:
        peer = server.connect()
        for _ in range(WARM_UP):
            peer.send((PRODUCE, 9, produce_request("flights", b"x" * 100)))
            server.poll_until_idle()
        peer.answered()
        peer.send((PRODUCE, 9, produce_request("flights", b"x" * 100)))
        calls = counted(server.poll)
        assert len(peer.answered()) == 1
        return calls


def fetch(*, has_authorizer: bool = False) -> Calls:
    """Return the calls of a Fetch of one record, from the read event to the sent answer."""
    with polled_server(has_authorizer=has_authorizer) as server:
        peer = server.connect()
        peer.send(*[(PRODUCE, 9, produce_request("flights", b"x" * 100)) for _ in range(WARM_UP)])
        server.poll_until_idle()
        for offset in range(WARM_UP - 1):
            peer.send((FETCH, 12, fetch_request("flights", offset, max_bytes=100)))
            server.poll_until_idle()
        peer.answered()
        peer.send((FETCH, 12, fetch_request("flights", WARM_UP - 1, max_bytes=100)))
        calls = counted(server.poll)
        assert len(peer.answered()) == 1
        return calls


class Pass(Bolt):
    """Acks each message by returning."""

    def execute(self, tup: Any) -> None:
        pass


def spout_to_ack() -> Calls:
    """Return the calls of a message from its fetch by a LogSpout through a bolt to its ack."""
    topology = Topology("calls")
    topology.spout("log", LogSpout("flights"))
    topology.bolt("pass", Pass()).shuffle("log")
    with TopologyDriver(topology) as driver:
        log = driver.log("flights")
        for _ in range(WARM_UP):
            log.append(b"x" * 100)
            driver.run()
        log.append(b"x" * 100)
        return counted(driver.run)


MESSAGES: dict[str, Callable[[], Calls]] = {
    "Produce by template": produce,
    "Fetch by template": fetch,
    "Produce with an authorizer": partial(produce, has_authorizer=True),
    "Fetch with an authorizer": partial(fetch, has_authorizer=True),
    "spout to bolt to ack": spout_to_ack,
}


def main(*options: str) -> None:
    for name, count in MESSAGES.items():
        calls = count()
        print(f"{name}: {len(calls.codes)} calls in {len(calls.files)} files")
        if "--calls" in options:
            for code in calls.codes:
                print(f"    {file_of(code)}  {code.co_qualname}")


if __name__ == "__main__":
    main(*sys.argv[1:])
