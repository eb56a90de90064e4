"""Bolts whose work outlasts a step: coroutines on Deferreds, and threads."""

import asyncio
import threading
from functools import partial

import pytest
from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks

from flakelog.testing import TopologyDriver, run_bolt
from spout.api import Bolt, Spout, Unavailable
from spout.background import TwistedBackground
from spout.bolts import BatchBolt
from spout.config import TopologyConfig
from spout.executor import Executor
from spout.topology import Topology, TopologyError
from spout.work import NoBackground
from tests.spout.test_executor import Numbers, driver_of, seen, spout_of
from tests.spout.worlds import Collect


class Answers(Bolt):
    """An async bolt that emits a number when the test answers its request."""

    output_fields = ("n",)

    def __init__(self, max_concurrent=None):
        self.max_concurrent = max_concurrent
        self.requests = {}
        self.cancelled = []

    async def execute(self, tup):
        answer = self.requests[tup["n"]] = Deferred()
        try:
            self.emit((await answer,))
        except (CancelledError, asyncio.CancelledError):
            self.cancelled.append(tup["n"])
            raise


def answers_driver(count=3, max_concurrent=None, **config):
    def connect(topology):
        topology.bolt("answers", Answers(max_concurrent)).shuffle("numbers")
        topology.bolt("collect", Collect()).shuffle("answers")

    driver = driver_of(connect, Numbers(count), **config).run()
    return driver, driver.tasks("answers")[0].requests


# --- coroutines


def test_a_tuple_is_acked_when_its_coroutine_returns():
    driver, requests = answers_driver()
    assert spout_of(driver).acked == [] and driver.executor.in_flight == 6
    requests[1].callback("one")
    driver.run()
    assert seen(driver) == [["one"]] and spout_of(driver).acked == [1]


def test_what_a_coroutine_emits_is_anchored_to_its_own_tuple_in_whatever_order_they_end():
    def connect(topology):
        topology.bolt("answers", Answers()).shuffle("numbers")
        topology.bolt("collect", Collect(lambda tup, again: tup["n"] == "zero")).shuffle("answers")

    driver = driver_of(connect, Numbers(3)).run()
    (answers,) = driver.tasks("answers")
    for n, answer in ((2, "two"), (0, "zero"), (1, "one")):
        answers.requests[n].callback(answer)
    driver.run()
    assert spout_of(driver).acked == [2, 1] and [id for id, _ in spout_of(driver).failed] == [0]


@pytest.mark.parametrize("error, unavailable", [(KeyError("x"), False), (Unavailable("down"), True)])
def test_a_tuple_fails_when_its_coroutine_raises(error, unavailable):
    driver, requests = answers_driver(1)
    requests[0].errback(error)
    driver.run()
    ((id, failure),) = spout_of(driver).failed
    assert (id, failure) == (0, f"{type(error).__name__}: {error}, in answers")
    assert spout_of(driver).context.unavailable is unavailable
    assert driver.reports == [("answers[0]", f"{type(error).__name__}: {error}")]


def test_a_task_works_on_max_concurrent_tuples_at_once():
    driver, requests = answers_driver(10, max_concurrent=3)
    assert list(requests) == [0, 1, 2]
    requests[1].callback("one")
    driver.run()
    assert list(requests) == [0, 1, 2, 3]
    assert list(answers_driver(10, bolt_max_concurrent=4)[1]) == [0, 1, 2, 3]


def test_a_coroutine_is_cancelled_after_the_message_timeout_and_frees_its_place():
    driver, requests = answers_driver(3, max_concurrent=2, topology_message_timeout_secs=5)
    assert list(requests) == [0, 1]
    driver.advance(5_000)
    assert list(requests) == [0, 1, 2]
    assert [id for id, _ in spout_of(driver).failed] == [0, 1, 2]
    assert driver.reports[0] == (
        "answers[0]", "TimeoutError: its coroutine took longer than 5000 ms and is cancelled"
    )  # fmt: skip


def test_a_stop_cancels_the_coroutines_that_still_run_and_reports_nothing():
    driver, requests = answers_driver(1)
    driver.stop()
    assert driver.tasks("answers")[0].cancelled == [0] and driver.reports == []


@pytest.mark.parametrize("seconds", [0, 1])
def test_awaiting_asyncio_without_its_loop_fails_and_says_what_to_install(seconds):
    async def sleeps():
        await asyncio.sleep(seconds)

    errors = []
    TwistedBackground().run_coroutine("bolt", sleeps(), errors.append)
    (error,) = errors
    assert "'bolt' awaits an asyncio future" in str(error) and "asyncioreactor.install()" in str(error)


def test_a_batch_may_be_processed_by_a_coroutine():
    class Batches(BatchBolt):
        output_fields = ("sum",)
        batch_size = 2
        max_concurrent = 1

        def __init__(self):
            self.requests = []

        async def process_batch(self, batch):
            self.requests.append(Deferred())
            await self.requests[-1]
            self.emit((sum(tup["n"] for tup in batch),))

    def connect(topology):
        topology.bolt("batches", Batches()).shuffle("numbers")
        topology.bolt("collect", Collect(lambda tup, again: tup["sum"] == 5)).shuffle("batches")

    driver = driver_of(connect, Numbers(6)).advance(1_000)
    (batches,) = driver.tasks("batches")
    for n in range(3):
        assert len(batches.requests) == n + 1
        batches.requests[n].callback(None)
        driver.advance(1_000)
    assert seen(driver) == [[1, 5, 9]]
    assert spout_of(driver).acked == [0, 1, 4, 5] and [id for id, _ in spout_of(driver).failed] == [2, 3]


# --- threads


class HeldThreads(NoBackground):
    """A background whose calls run when the test says so."""

    def __init__(self):
        self.calls = []

    def run_in_thread(self, pool, threads, call, done):
        self.calls.append((call, done))

    def run(self, index):
        """Make a call in a new thread, then report its end to the engine."""
        call, done = self.calls.pop(index)
        errors = []

        def work():
            try:
                call()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        done(errors[0] if errors else None)


class Blocks(Bolt):
    output_fields = ("n",)
    threads = 2

    def execute(self, tup):
        if tup["n"] == 1:
            raise KeyError("x")
        self.context.counter("executed").add()
        self.receivers = self.emit((tup["n"],))


def held_executor(bolt, count=4):
    topology = Topology("t")
    topology.spout("numbers", Numbers(count))
    topology.bolt("blocks", bolt).shuffle("numbers")
    topology.bolt("collect", Collect()).shuffle("blocks")
    held, plan, edges = HeldThreads(), topology.plan(), iter(range(1, 99)).__next__
    executor = Executor(plan, TopologyConfig(), None, run_id="r", random_bits=edges, background=held)
    executor.start(0)
    work = partial(step_all, executor)
    work()
    return executor, held, work


def step_all(executor):
    while executor.step(0):
        pass


def test_a_blocking_bolt_executes_as_many_tuples_at_once_as_it_has_threads():
    executor, held, work = held_executor(Blocks())
    assert len(held.calls) == 2
    held.run(0)
    work()
    assert len(held.calls) == 2


def test_what_a_thread_emits_and_counts_takes_effect_when_its_execute_has_returned():
    executor, held, work = held_executor(Blocks(), count=1)
    (blocks,), (collect,), (spout,) = map(executor.instances_of, ("blocks", "collect", "numbers"))
    call, done = held.calls[0]
    call()
    work()
    assert collect.seen == [] and blocks.receivers == [] and executor.metrics()["blocks"] == {"executed": 0}
    done(None)
    work()
    assert collect.seen == [(0,)] and spout.acked == [0] and executor.metrics()["blocks"] == {"executed": 1}


def test_a_tuple_fails_when_its_thread_raises():
    executor, held, work = held_executor(Blocks(), count=2)
    held.run(1)
    held.run(0)
    work()
    (spout,) = executor.instances_of("numbers")
    assert spout.acked == [0] and spout.failed == [(1, "KeyError: 'x', in blocks")]


def test_a_wrong_emit_in_a_thread_raises_where_it_is_made():
    class Wrong(Bolt):
        output_fields = ("n",)
        threads = 1

        def execute(self, tup):
            with pytest.raises(ValueError, match="has the fields"):
                self.emit((1, 2))

    result = run_bolt(Wrong(), [(1,)], fields=("n",))
    assert result.acked == [(1,)] and result.errors == []


def test_the_test_driver_runs_blocking_bolts_at_once():
    result = run_bolt(Blocks(), [(0,), (1,), (2,)], fields=("n",))
    assert result.emitted == [(0,), (2,)] and result.failed == [(1,)]


# --- refusals


def generator(self, tup):
    yield tup


async def asynchronous(self, *args):
    pass


async def asynchronous_generator(self, *args):
    yield None


@pytest.mark.parametrize(
    "kind, members, reason",
    [
        (Bolt, {"execute": generator}, "'x': execute is a generator function, which the engine would never run: call"),
        (Bolt, {"execute": asynchronous_generator}, "'x': execute is a generator function"),
        (Bolt, {"prepare": asynchronous}, "'x': prepare is async: of this bolt's methods, only execute may be"),
        (Bolt, {"tick": asynchronous}, "'x': tick is async: of this bolt's methods, only execute may be"),
        (BatchBolt, {"execute": asynchronous}, "'x': execute is async: of this bolt's methods, only process_batch"),
        (Bolt, {"execute": asynchronous, "threads": 2}, "'x': execute is async and `threads` is 2: choose one"),
        (Bolt, {"threads": -1}, "'x': threads is -1: give the number"),
        (Bolt, {"max_concurrent": 0}, "'x': max_concurrent is 0: give at least 1"),
        (Spout, {"next_tuple": asynchronous}, "'x': next_tuple is async, and spouts are not: start requests in poll"),
        (Spout, {"poll": lambda self: None}, "'x': the engine calls poll only on a spout.engine_spout.EngineSpout"),
        (Spout, {"open": generator}, "'x': open is a generator function"),
    ],
)
def test_a_method_that_would_never_run_is_refused_by_name(kind, members, reason):
    topology = Topology("t")
    add = topology.spout if kind is Spout else topology.bolt
    with pytest.raises(TopologyError) as refused:
        add("x", type("X", (kind,), members)())
    assert str(refused.value).startswith(reason)


@pytest.mark.parametrize(
    "execute, reason",
    [
        (inlineCallbacks(generator), "execute returned a Deferred, which the engine does not wait for: make it"),
        (lambda self, tup: iter([tup]), "execute returned a list_iterator, which the engine would never run: call"),
    ],
)
def test_returned_work_that_nobody_would_do_fails_the_tuple(execute, reason):
    execute.__name__ = "execute"
    result = run_bolt(type("X", (Bolt,), {"execute": execute})(), [(1,)], fields=("n",))
    assert result.failed == [(1,)] and reason in result.errors[0]


def test_more_threads_than_allowed_are_refused():
    topology = Topology("t")
    topology.spout("numbers", Numbers())
    topology.bolt("blocks", Blocks()).shuffle("numbers")
    with pytest.raises(TopologyError, match="'blocks' asks for 2 threads; flakelog.bolt.threads.max allows 1"):
        TopologyDriver(topology, config=TopologyConfig(bolt_threads_max=1))
