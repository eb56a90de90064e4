"""Errors of format "flakelog" as Spark prints them: the reason first, then the traceback."""

import pickle
import sys
import traceback

import pytest

from spark_bridge.selection.option_table import OptionError
from spark_bridge.source.one_line import SparkError, one_line


@one_line()
def refuse(error):
    raise error


def printed(error, *, simplified):
    with pytest.raises(SparkError) as raised:
        refuse(error)
    if simplified:
        raised.value.__cause__ = None  # as Spark does in tasks
    return "".join(traceback.format_exception(raised.value)).splitlines()


@pytest.mark.parametrize("simplified", [False, True])
def test_the_first_line_is_the_reason_and_the_traceback_has_the_origin(simplified):
    lines = printed(OptionError("option x\nis not known"), simplified=simplified)
    assert lines[0] == "flakelog: option x is not known"
    assert any("in refuse" in line for line in lines)


def test_the_type_of_an_error_that_is_not_ours_is_part_of_the_reason():
    assert printed(KeyError("x"), simplified=False)[0] == "flakelog: KeyError: 'x'"


def test_an_error_is_wrapped_once_and_crosses_processes():
    with pytest.raises(SparkError, match="^once$") as raised:
        with one_line():
            refuse(OptionError("once"))
    assert str(pickle.loads(pickle.dumps(raised.value))) == "once"
    assert sys.exc_info() == (None, None, None)
