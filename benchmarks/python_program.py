"""Programs in Python that the rows run in separate processes: they get a plan as JSON and print a line of JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import Figures

PROGRAM_SECONDS = 600


def run_program(program: Path, root: Path, plan: Mapping[str, Any]) -> Any:
    """Run a program, which imports Flakelog from the checkout at `root`. Return the JSON of the last line it prints.

    Raise RuntimeError with its stderr if it fails or prints nothing.
    """
    with TemporaryDirectory() as directory:
        argv = [sys.executable, str(program), json.dumps(plan)]
        environment = os.environ | {"PYTHONPATH": str(root)}
        done = subprocess.run(
            argv, cwd=directory, env=environment, capture_output=True, text=True, timeout=PROGRAM_SECONDS
        )
    if done.returncode or not done.stdout:
        raise RuntimeError(f"{program.name} {json.dumps(plan)}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def per_message(messages: int, measured: Mapping[str, float]) -> Figures:
    """Return the figures of a program that printed the `seconds` and the CPU seconds (`cpu`) of all messages."""
    return {"msg/s": messages / measured["seconds"], "CPU us/msg": measured["cpu"] / messages * 1e6}
