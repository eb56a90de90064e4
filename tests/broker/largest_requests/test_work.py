"""No request holds up the others: its work grows with its items only in proportion, and no slice grows with them.

The work is counted in bytecodes. Slices are small here, and requests have some dozens of items, so that a test is
quick.
"""

import pytest

from broker import steps
from broker.engine import request_handler
from broker.engine.api_table import APIS
from broker.handlers import produce
from broker.produce import validate
from broker.wire import cold_writer
from tests.broker.largest_requests.measured import Execution
from tests.broker.largest_requests.requests import ATOMIC, CASES, FLAT
from tests.broker.work import steps_of

SIZE = 12
NOISE = 1_500
"""Bytecodes of what is remembered at its first use."""
GROWTH = 60
"""The bytecodes that a slice may grow by, for each item of the request: 50,000 items then take some 50 ms."""


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(steps, "ITEMS_AT_ONCE", 4)
    monkeypatch.setattr(cold_writer, "ITEMS_AT_ONCE", 4)
    monkeypatch.setattr(request_handler, "BYTES_AT_ONCE", 40)
    for module in (request_handler, produce, validate):
        monkeypatch.setattr(module, "PARTITIONS_AT_ONCE", 4)


@pytest.fixture(scope="module")
def turns():
    """The bytecodes of each turn, by case and number of items, measured once."""
    measured_turns = {}

    def measured(case, number):
        if (case, number) not in measured_turns:
            execution = Execution(case, number)
            execution.run(steps_of)
            measured_turns[case, number] = execution.turns
        return measured_turns[case, number]

    return measured


@pytest.mark.parametrize("name", CASES)
def test_work_grows_in_proportion_to_the_items(turns, name):
    case = CASES[name]
    turns(case, 2)  # the first request of an API makes what is remembered of its schema
    once, twice, fourfold = (sum(turns(case, SIZE * factor)) for factor in (1, 2, 4))
    assert fourfold - twice < 2.5 * (twice - once) + NOISE


@pytest.mark.parametrize("name", CASES)
def test_no_slice_grows_with_the_items(turns, name):
    case = CASES[name]
    turns(case, 2)
    once, fourfold = (max(turns(case, SIZE * factor)) for factor in (1, 4))
    assert (fourfold - once) / (3 * SIZE) < ATOMIC.get(name, GROWTH)


def test_each_api_with_arrays_has_its_largest_request():
    assert {case.api for case in CASES.values()} == {api.name for api in APIS.values()} - FLAT
