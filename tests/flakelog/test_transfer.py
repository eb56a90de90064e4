"""The exit codes of replays and loads: a cause has one, whoever reads."""

import click
import pytest

from flakelog.commands.transfer import failure_of_task, failures
from spark_bridge.load.target_check import OtherTarget
from spark_bridge.output.storage import CannotWrite
from spark_bridge.reading.cluster import Unreachable
from spark_bridge.reading.range_fetch import ReadFailed, Unanswered
from spark_bridge.selection.option_table import OptionError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ReadFailed("t-0: TOPIC_AUTHORIZATION_FAILED"), 1),
        (OptionError("columns colour asked for"), 2),
        (Unreachable("no broker answers"), 3),
        (Unanswered("no broker answers"), 3),
        (OtherTarget("the place has files"), 5),
        (CannotWrite("cannot write /proc/x"), 8),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_cause_has_its_exit_code(error, code):
    with pytest.raises(click.ClickException, match=str(error)) as raised, failures():
        raise error
    assert raised.value.exit_code == code


def test_a_task_of_spark_without_an_answer_has_the_code_of_a_thread_without_one():
    text = "org.apache.spark.api.python.PythonException\nspark_bridge.reading.range_fetch.Unanswered: no broker answers"
    assert failure_of_task(text).exit_code == 3
