"""The id service in a separate process: a stock Thrift client, HTTP, our client, kill -9, restart and fork."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TFramedTransport

from coordination.directory import DirectoryCoordinator
from coordination.port import Children
from idgen.client.blocking import IdClient
from idgen.client.core import IdServiceError
from idgen.config import IdgenConfig
from idgen.errors import Fenced, LayoutMismatch
from idgen.layout import Layout
from idgen.snowflake import Snowflake
from tests.compat.server_process import PYTHONPATH
from tests.patience import MS, SECONDS

ROOT = Path(__file__).resolve().parents[3]
LAYOUT = Layout()


@contextmanager
def service(kind, where):
    """Run an id service and yield (process, {"worker":, "thrift":, "http":})."""
    program = Path(__file__).with_name("id_service_process.py")
    process = subprocess.Popen(
        [sys.executable, str(program), kind, str(where)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("ready:"), line
        yield process, {name: int(value) for name, value in (word.split("=") for word in line.split()[1:])}
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def running(tmp_path):
    with service("directory", tmp_path / "ids") as (_, at):
        yield at


class StockClient:
    """A client as thrift's compiler would generate it for flakelog.thrift, over Apache Thrift's own library."""

    def __init__(self, port):
        self.transport = TFramedTransport(TSocket("127.0.0.1", port))
        self.protocol = TBinaryProtocol(self.transport)
        self.transport.open()

    def send(self, method, seqid, user_agent=None, count=None):
        out = self.protocol
        out.writeMessageBegin(method, TMessageType.CALL, seqid)
        if user_agent is not None:
            out.writeFieldBegin("useragent", TType.STRING, 1)
            out.writeString(user_agent)
        if count is not None:
            out.writeFieldBegin("count", TType.I32, 2)
            out.writeI32(count)
        out.writeFieldStop()
        out.writeMessageEnd()
        self.transport.flush()

    def receive(self):
        """Return (seqid, value); raise TApplicationException if the answer is one."""
        read = self.protocol
        _, kind, seqid = read.readMessageBegin()
        if kind == TMessageType.EXCEPTION:
            error = TApplicationException()
            error.read(read)
            raise error
        _, field_type, _ = read.readFieldBegin()
        if field_type == TType.LIST:
            _, size = read.readListBegin()
            value = [read.readI64() for _ in range(size)]
        else:
            value = read.readI64()
        assert read.readFieldBegin()[1] == TType.STOP
        read.readMessageEnd()
        return seqid, value

    def call(self, method, *arguments):
        self.send(method, 7, *arguments)
        return self.receive()[1]


@pytest.fixture
def stock(running):
    client = StockClient(running["thrift"])
    yield client
    client.transport.close()


def test_a_stock_thrift_client_gets_what_twitters_service_gave(stock, running):
    """The service answers the methods of snowflake-2010's Snowflake.thrift."""
    ids = [stock.call("get_id", "test-agent") for _ in range(100)]
    assert ids == sorted(set(ids))
    assert stock.call("get_worker_id") == running["worker"] & 31
    assert stock.call("get_datacenter_id") == running["worker"] >> 5
    parts = LAYOUT.unpack(ids[-1])
    assert parts.worker_number == running["worker"]
    assert parts.time_ms <= stock.call("get_timestamp") <= time.time_ns() // 1_000_000


def test_a_stock_client_may_pipeline_and_gets_its_answers_in_order(stock):
    for seqid in range(1_000):
        stock.send("get_id", seqid, "test-agent")
    answers = [stock.receive() for _ in range(1_000)]
    assert [seqid for seqid, _ in answers] == list(range(1_000))
    assert len({id for _, id in answers}) == 1_000


def test_a_stock_client_gets_many_ids_and_waits_when_they_run_ahead_of_the_clock(stock):
    ids = [id for _ in range(40) for id in stock.call("get_ids", "test-agent", 100_000)]
    assert len(ids) == 4_000_000  # more than the 2,052,096 ids that may run ahead of the clock
    assert all(a < b for a, b in zip(ids, ids[1:]))


def test_errors_are_application_exceptions_and_the_connection_lives_on(stock):
    for arguments in (("get_id", "1bad"), ("get_ids", "agent", 0), ("no_such_method",)):
        with pytest.raises(TApplicationException):
            stock.call(*arguments)
    assert stock.call("get_id", "agent") > 0


def test_an_unframed_client_is_closed_and_others_are_served_on(stock, running):
    with socket.create_connection(("127.0.0.1", running["thrift"]), timeout=SECONDS) as unframed:
        unframed.sendall(b"\x80\x01\x00\x01\x00\x00\x00\x06get_id")
        assert unframed.recv(100) == b""
    assert stock.call("get_id", "agent") > 0


def http(running, method, path):
    request = urllib.request.Request(f"http://127.0.0.1:{running['http']}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_ids_over_http_come_as_numbers_and_as_strings(running):
    status, answer = http(running, "POST", "/ids?count=3")
    assert status == 200 and len(answer["ids"]) == 3
    assert answer["id_strs"] == [str(id) for id in answer["ids"]]
    assert len(http(running, "POST", "/ids")[1]["ids"]) == 1


def test_an_id_is_decoded_over_http(running):
    id = LAYOUT.pack(1_357_000_000_123, 103, 5)
    assert http(running, "GET", f"/ids/{id}") == (
        200,
        {
            "id": id,
            "id_str": str(id),
            "time": "2013-01-01T00:26:40.123Z",
            "time_ms": 1_357_000_000_123,
            "datacenter": 3,
            "worker": 7,
            "sequence": 5,
            "worker_number": 103,
        },
    )


@pytest.mark.parametrize(
    "method, path, error",
    [
        ("POST", "/ids?count=0", "InvalidCount"),
        ("POST", "/ids?count=many", "InvalidCount"),
        ("POST", "/ids?count=100001", "InvalidCount"),
        ("GET", "/ids/banana", "InvalidId"),
        ("GET", f"/ids/{1 << 63}", "InvalidId"),
        ("GET", f"/ids/{'9' * 5000}", "InvalidId"),
    ],
)
def test_what_is_wrong_with_a_request_is_said_in_the_answer(running, method, path, error):
    status, answer = http(running, method, path)
    assert (status, answer["error"]) == (400, error)


def test_our_client_reconnects_and_names_the_address_when_nobody_answers(tmp_path):
    with service("directory", tmp_path) as (process, at):
        client = IdClient(f"127.0.0.1:{at['thrift']}", timeout_ms=MS)
        ids = [*client.get_ids(3), client.get_id(), *client.get_ids(2)]
        assert len(ids) == 6 and ids == sorted(set(ids))
        many = client.get_ids(100_000) + client.get_ids(100_000)  # answers that come in many pieces
        assert len(many) == 200_000 and many == sorted(set(many))
        assert client.get_worker_id() == at["worker"]
        with pytest.raises(IdServiceError, match="InvalidCount"):
            client.get_ids(0)
        process.kill()
        process.wait()
        with pytest.raises(ConnectionError, match=f"127.0.0.1:{at['thrift']}: .*`flakelog idgen` starts one"):
            client.get_id()


@pytest.mark.parametrize("kind", ["directory", "zookeeper"])
def test_no_id_is_repeated_over_kill_9_and_clean_restarts(kind, tmp_path, request):
    where = tmp_path / "ids" if kind == "directory" else f"{request.getfixturevalue('zookeeper').hosts}/restarts"
    ids, workers = [], []
    for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        with service(kind, where) as (process, at):
            with IdClient(f"127.0.0.1:{at['thrift']}", timeout_ms=MS) as client:
                ids += client.get_ids(50_000)
            workers.append(at["worker"])
            process.send_signal(how)
            process.wait()
    assert len(set(ids)) == len(ids) == 200_000
    assert workers[0] != workers[1]  # killed: its number stays reserved
    assert workers[1] == workers[2]  # closed: its number was given back


def in_child(snowflake, answers):
    try:
        answers.put(("id", snowflake.next_id()))
    except Fenced as error:
        answers.put(("fenced", str(error)))


def test_a_forked_child_issues_nothing_from_its_parents_claim(tmp_path):
    """A forked child is fenced; ids repeated after a fork are the most reported bug of Python's libraries."""
    fork = multiprocessing.get_context("fork")
    with Snowflake(directory=tmp_path) as snowflake:
        before = snowflake.next_id()
        answers = fork.Queue(4)
        children = [fork.Process(target=in_child, args=(snowflake, answers)) for _ in range(4)]
        for child in children:
            child.start()
        said = [answers.get(timeout=SECONDS) for _ in children]
        for child in children:
            child.join()
        assert all(kind == "fenced" and "make a Snowflake" in text for kind, text in said), said
        assert snowflake.next_id() > before


def fresh_in_child(directory, answers):
    with Snowflake(directory=directory) as snowflake:
        answers.put((snowflake.worker_number, snowflake.next_ids(10_000)))


def test_forked_children_that_claim_for_themselves_share_no_id(tmp_path):
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue(4)
    with Snowflake(directory=tmp_path) as snowflake:
        children = [fork.Process(target=fresh_in_child, args=(tmp_path, answers)) for _ in range(4)]
        for child in children:
            child.start()
        got = [answers.get(timeout=SECONDS) for _ in children]
        for child in children:
            child.join()
        ids = snowflake.next_ids(10_000) + [id for _, some in got for id in some]
    assert len(set(ids)) == 50_000
    assert snowflake.worker_number not in {number for number, _ in got}


def test_a_parent_killed_while_its_forked_child_lives_lets_go_of_its_number(tmp_path):
    """The child closes its copy of the lock, because a fork shares flock and the dead parent would seem alive.

    When the child prints, it has already closed its copy.
    """
    script = (
        "import os, sys\n"
        "from idgen.snowflake import Snowflake\n"
        f"s = Snowflake(directory={str(tmp_path)!r})\n"
        "if os.fork() == 0:\n"
        "    print(s.worker_number, flush=True); sys.stdin.read(); os._exit(0)\n"
        "import signal; signal.pause()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert parent.stdout.readline() == "None\n"
    parent.kill()
    parent.wait()
    coordinator = DirectoryCoordinator(tmp_path)
    assert coordinator.execute(Children("/snowflake-servers")) == ()
    coordinator.close()
    parent.stdin.close()  # the child ends
    parent.stdout.close()


def test_another_layout_is_refused_at_the_start(tmp_path):
    with Snowflake(directory=tmp_path):
        with pytest.raises(LayoutMismatch, match="Set the recorded layout"):
            Snowflake(directory=tmp_path, config=IdgenConfig(ids_time_bits=42, ids_datacenter_bits=4))
