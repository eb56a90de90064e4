"""idgen.client.twisted: the lock of the calls that wait for one connection or one fetch."""

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from idgen.client.twisted import _Lock


def test_thousands_of_waiters_go_on_in_their_order_behind_the_holder():
    clock, connected, order = Clock(), Deferred(), []
    lock = _Lock(clock)

    async def call(number):
        async with lock:
            await connected
        order.append(number)

    calls = [Deferred.fromCoroutine(call(number)) for number in range(5_000)]
    connected.callback(None)
    calls.append(Deferred.fromCoroutine(call(5_000)))
    clock.advance(0)
    assert order == [*range(5_001)] and not lock.locked and not clock.getDelayedCalls()


def test_a_waiter_that_is_cancelled_leaves_the_lock_to_the_others():
    clock = Clock()
    lock = _Lock(clock)
    lock.acquire()
    given_up = lock.acquire().addErrback(lambda failure: None)
    outcome = lock.acquire()
    given_up.cancel()
    lock.release()
    clock.advance(0)
    assert outcome.called and lock.locked
    lock.release()
    assert not lock.locked
