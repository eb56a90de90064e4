"""A wait for an event ends with the event, with its time, and with its task."""

import asyncio

from broker.client.timed_wait import wait_for_event


async def waiting(event, seconds):
    """Start a wait, and let it come to its event."""
    task = asyncio.ensure_future(wait_for_event(event, seconds))
    await asyncio.sleep(0)
    return task


def test_a_task_that_is_cancelled_in_the_moment_of_its_event_ends():
    async def run():
        event = asyncio.Event()
        task = await waiting(event, 60.0)
        event.set()
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(run())


def test_a_wait_ends_with_its_event():
    async def run():
        event = asyncio.Event()
        task = await waiting(event, None)
        event.set()
        await task

    asyncio.run(run())


def test_a_wait_ends_with_its_time():
    asyncio.run(wait_for_event(asyncio.Event(), 0.001))


def test_a_set_event_is_not_waited_for_although_there_is_no_time():
    async def run():
        event = asyncio.Event()
        event.set()
        await wait_for_event(event, 0.0)

    asyncio.run(run())
