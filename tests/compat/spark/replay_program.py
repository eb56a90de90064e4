"""`flakelog replay` that kills itself with SIGKILL at a step: python replay_program.py STEP replay ARGUMENTS..."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from flakelog.cli import main
from spark_bridge.output import range_file
from spark_bridge.output.storage import LocalStorage
from spark_bridge.replay import arrow_job, publication


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_file(storage: Any, within: Any, columns: Any, read: Any, on_batch: Any) -> Any:
    """Write the first batch of a file, and die."""
    return range_file.write_range(storage, within, columns, read, die)


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    def run_and_die(*arguments: Any, **named: Any) -> Any:
        function(*arguments, **named)
        die()

    return run_and_die


STEPS: dict[str, Callable[[], None]] = {
    "before the first file": lambda: setattr(arrow_job, "_write", die),
    "in a file": lambda: setattr(arrow_job, "write_range", in_a_file),
    "after a file": lambda: setattr(arrow_job, "write_range", after(range_file.write_range)),
    "after all files": lambda: setattr(arrow_job, "prove_files", die),
    "before the receipt": lambda: setattr(publication, "_verify_files", after(publication._verify_files)),
    "before the rename": lambda: setattr(LocalStorage, "rename", die),
    "after the result": lambda: setattr(publication._LocalRun, "publish", after(publication._LocalRun.publish)),
    "after the receipt": lambda: setattr(publication._ObjectRun, "publish", after(publication._ObjectRun.publish)),
}

if __name__ == "__main__":
    STEPS[sys.argv[1]]()
    main(sys.argv[2:])
