"""Jobs of the console run in threads: limited, each to its end, changes one after the other."""

import socket
from queue import SimpleQueue
from threading import Event, Thread

import pytest
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock

from broker.client.address import Address
from broker.client.api_versions import ENVELOPE, METADATA
from broker.client.errors import NotAuthenticated, Unreachable
from broker.client.exchange import Exchange
from broker.wire import cold
from broker.wire.errors import ErrorCode
from flakelog.console.own_client import (
    CHANGE_SECONDS,
    CHANGES_MAX,
    GRACE_SECONDS,
    JOBS_MAX,
    THREADS_MAX,
    OwnBroker,
    OwnClient,
)
from flakelog.console.own_place import OtherBrokers, OwnPlace
from flakelog.console.security import RequestRefused
from flakelog.console.visit import PageTimeout
from tests.patience import SECONDS, until

PAGE_SECONDS = 5.0


class Reactor(Clock):
    """Calls from threads wait until the test carries them out."""

    def __init__(self):
        super().__init__()
        self._calls = SimpleQueue()

    def addSystemEventTrigger(self, *_):
        """The fixture stops the jobs."""

    def callFromThread(self, call, *arguments):
        self._calls.put((call, arguments))

    def step(self, times=1):
        for _ in range(times):
            call, arguments = self._calls.get(timeout=SECONDS)
            call(*arguments)


@pytest.fixture
def reactor():
    return Reactor()


@pytest.fixture
def silent():
    """A socket that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def broker(reactor, silent):
    made = OwnBroker(reactor, OwnPlace(*silent.getsockname()), PAGE_SECONDS)
    yield made
    made.stop()


def outcome(deferred):
    """Return what a Deferred fired with, an empty list if it has not."""
    results = []
    deferred.addBoth(results.append)
    return results


def test_visitors_who_come_and_go_cannot_make_more_jobs_wait(broker, reactor):
    """A browser that loads a page again and again cancels the earlier loads."""
    go, ran = Event(), []
    for number in range(JOBS_MAX):
        job = broker.run(lambda client, number=number: (go.wait(SECONDS), ran.append(number)))
        job.addErrback(lambda failure: failure.trap(CancelledError))
        if number >= THREADS_MAX:
            job.cancel()
    with pytest.raises(RequestRefused, match="too many pages"):
        broker.run(lambda client: None)
    go.set()
    reactor.step(JOBS_MAX)
    assert sorted(ran) == list(range(THREADS_MAX)), "jobs that nobody waits for are skipped"
    results = outcome(broker.run(lambda client: "read"))
    reactor.step()
    assert results == ["read"]


def test_changes_are_made_one_after_the_other(broker, reactor):
    made = []

    def change(client):
        made.append(len(made))
        return len(made)

    results = [outcome(broker.change(change, lambda number: f"done {number}")) for _ in range(3)]
    assert reactor._calls.qsize() <= 1, "the second one waits"
    reactor.step(3)
    assert results == [["done 1"], ["done 2"], ["done 3"]]


def test_a_change_whose_visitor_has_left_ends_and_is_told(broker, reactor):
    outcomes = []
    visit = broker.change(lambda client: "changed", outcomes.append)
    visit.addErrback(lambda failure: failure.trap(CancelledError))
    visit.cancel()
    reactor.step()
    assert outcomes == ["changed"]


def test_a_change_that_fails_lets_the_next_one_begin(broker, reactor):
    def fail(client):
        raise ValueError("no")

    first, second = (outcome(broker.change(job, lambda result: result)) for job in (fail, lambda client: "changed"))
    reactor.step(2)
    assert first[0].check(ValueError) and second == ["changed"]


def test_changes_that_wait_are_limited(broker, reactor):
    go = Event()
    for _ in range(1 + CHANGES_MAX):
        broker.change(lambda client: go.wait(SECONDS), bool)
    with pytest.raises(RequestRefused, match="too many changes"):
        broker.change(lambda client: None, bool)
    go.set()
    reactor.step(1 + CHANGES_MAX)


def test_a_stop_ends_a_job_that_waits_for_the_broker(broker, reactor, silent):
    """The broker cannot answer while the reactor's thread waits for the job's thread."""
    results = outcome(broker.run(lambda client: client.topics()))
    connection, _ = silent.accept()
    assert connection.recv(1), "the job has sent its request, and waits"
    broker.stop()
    reactor.step()
    assert results[0].check(Unreachable) and "no answer within" not in str(results[0].value)
    connection.close()


# --- the deadline of a page ------------------------------------------------------------------------------------------


def waiting(silent):
    """Return the connection of a job that has sent its request, and waits for the answer."""
    connection, _ = silent.accept()
    assert connection.recv(1)
    return connection


def test_a_job_ends_at_its_pages_deadline(broker, reactor, silent):
    results = outcome(broker.run(lambda client: client.topics()))
    connection = waiting(silent)
    reactor.advance(PAGE_SECONDS)
    reactor.step()
    assert results[0].check(PageTimeout) and "longer than 5 s" in str(results[0].value)
    assert not reactor.getDelayedCalls()
    connection.close()


def test_a_page_shows_what_its_job_has_read_by_the_deadline(broker, reactor, silent):
    def read(client):
        try:
            return client.topics()
        except PageTimeout:
            return "a part"

    results = outcome(broker.run(read))
    connection = waiting(silent)
    reactor.advance(PAGE_SECONDS)
    reactor.step()
    assert results == ["a part"]
    connection.close()


def test_a_page_whose_job_computes_on_is_answered_soon_after_the_deadline(broker, reactor):
    go = Event()
    results = outcome(broker.run(lambda client: go.wait(SECONDS)))
    reactor.advance(PAGE_SECONDS)
    assert results == []
    reactor.advance(GRACE_SECONDS)
    assert results[0].check(PageTimeout)
    go.set()
    reactor.step()
    assert not reactor.getDelayedCalls()


def test_a_job_ends_with_its_browser(broker, reactor, silent):
    """It used to read on for minutes, and no other page was read meanwhile."""
    ended = []

    def read(client):
        try:
            client.topics()
        except BaseException as error:
            ended.append(type(error))
            raise

    page = broker.run(read)
    results = outcome(page)
    connection = waiting(silent)
    page.cancel()
    reactor.step()
    assert ended == [CancelledError] and results[0].check(CancelledError)
    connection.close()


def test_a_stop_does_not_wait_for_a_job_that_computes(broker):
    begun, go, ran = Event(), Event(), []
    broker.run(lambda client: (begun.set(), go.wait(SECONDS), ran.append("to its end")))
    assert begun.wait(SECONDS)
    broker.stop()
    assert ran == []
    go.set()


def test_a_change_is_not_ended_by_a_deadline_but_its_page_is_answered(broker, reactor):
    go, outcomes = Event(), []
    results = outcome(broker.change(lambda client: go.wait(SECONDS) and "changed", outcomes.append))
    reactor.advance(CHANGE_SECONDS)
    assert results[0].check(PageTimeout) and "the server's log will say" in str(results[0].value) and outcomes == []
    go.set()
    reactor.step()
    assert outcomes == ["changed"]


# --- other brokers ---------------------------------------------------------------------------------------------------


class OtherBroker(Thread):
    """A broker that answers each request with one error code, and keeps the API keys of the requests."""

    def __init__(self, code):
        super().__init__(daemon=True)
        self.api_keys = []
        self._code = code
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listening.getsockname())

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._listening.close()

    def run(self):
        connection, _ = self._listening.accept()
        with connection:
            while head := connection.recv(4):
                request = connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
                self.api_keys.append(int.from_bytes(request[:2], "big"))
                body = cold.encode(ENVELOPE, 0, "response", {"response_data": None, "error_code": self._code})
                answer = request[4:8] + b"\0" + body
                connection.sendall(len(answer).to_bytes(4, "big") + answer)


def client_beside(other, silent):
    own = Address("this-broker", 9092)
    others = OtherBrokers(own, None, lambda: None, "User:console")
    return OwnClient(Address(*silent.getsockname()), own, others=others)


def test_a_connection_to_another_broker_is_not_used_if_that_lets_it_act_for_nobody(silent):
    """With the rights of its own broker, the console could do everything there."""
    with OtherBroker(ErrorCode.CLUSTER_AUTHORIZATION_FAILED) as other, client_beside(other, silent) as client:
        with pytest.raises(NotAuthenticated) as refused:
            client.run(client.core.version(other.address, METADATA))
        assert "does not let this broker act for User:console: CLUSTER_AUTHORIZATION_FAILED" in str(refused.value)
        assert "make their user a super user" in str(refused.value)
        other.join(SECONDS)
        assert other.api_keys == [ENVELOPE], "its connection was closed"


def test_a_connection_to_another_broker_begins_with_the_principal_it_acts_for(silent):
    with OtherBroker(ErrorCode.NONE) as other, client_beside(other, silent) as client:
        client.send(Exchange(other.address, METADATA, 12, True, b""))
        until(lambda: other.api_keys == [ENVELOPE, METADATA], "both requests")
