"""The outcomes of an AsyncProducer's messages: a loss is reported once, by the future or by the flush."""

import asyncio

import pytest

from broker.client.async_outcomes import Acknowledgement, AsyncOutcomes
from broker.client.errors import ProduceError
from broker.client.producer_outcomes import Delivered

LOST = ProduceError("t: not acknowledged")


async def failed(outcomes, number):
    """Return the futures of messages that are lost in one burst, as when a broker is away."""
    futures = [Acknowledgement() for _ in range(number)]
    for future in futures:
        outcomes.report(future, LOST)
    return futures


@pytest.mark.parametrize("number", [1, 2_500])
def test_failures_that_the_program_has_read_are_not_reported_again(number):
    async def program():
        outcomes = AsyncOutcomes()
        errors = await asyncio.gather(*await failed(outcomes, number), return_exceptions=True)
        assert errors == [LOST] * number
        outcomes.raise_failures()

    asyncio.run(program())


def test_failures_read_one_after_the_other_are_not_reported_again():
    async def program():
        outcomes = AsyncOutcomes()
        for future in await failed(outcomes, 1_500):
            with pytest.raises(ProduceError):
                await future
        outcomes.raise_failures()

    asyncio.run(program())


def test_failures_that_no_task_reads_are_reported_once():
    async def program():
        outcomes = AsyncOutcomes()
        await failed(outcomes, 3)
        with pytest.raises(ProduceError, match="3 messages were not acknowledged; the first: t: not acknowledged"):
            outcomes.raise_failures()
        outcomes.raise_failures()

    asyncio.run(program())


def test_the_loss_of_a_message_whose_wait_was_cancelled_is_reported():
    async def program():
        outcomes = AsyncOutcomes()
        future = Acknowledgement()
        waiter = asyncio.ensure_future(asyncio.wait_for(future, 0))
        with pytest.raises(TimeoutError):
            await waiter
        outcomes.report(future, LOST)
        with pytest.raises(ProduceError, match="a message was not acknowledged: t: not acknowledged"):
            outcomes.raise_failures()

    asyncio.run(program())


def test_an_acknowledgement_after_a_cancelled_wait_changes_nothing():
    async def program():
        outcomes = AsyncOutcomes()
        future = Acknowledgement()
        future.cancel()
        outcomes.report(future, Delivered("t", 0, 1))
        outcomes.raise_failures()

    asyncio.run(program())


def test_an_outcome_that_comes_while_others_are_delivered_wakes_the_loop_again():
    async def program():
        outcomes = AsyncOutcomes()
        first, second = Acknowledgement(), Acknowledgement()
        first.add_done_callback(lambda _: outcomes.report(second, Delivered("t", 0, 2)))
        outcomes.report(first, Delivered("t", 0, 1))
        assert await asyncio.wait_for(second, 5) == ("t", 0, 2)

    asyncio.run(program())
