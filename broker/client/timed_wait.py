"""SHELL (asyncio): a wait for an event that ends with the event, with its time, or with the task."""

import asyncio


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> None:
    """Return once the event is set, or after `seconds`; None waits for the event alone.

    Before Python 3.12, `asyncio.wait_for` returns as if nothing had happened where the task is cancelled in the moment
    that the event is set. A task that waits in a loop would never end.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
