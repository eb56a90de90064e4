"""The command that runs this program's `flakelog` in another process."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import flakelog


def own_command(*arguments: str) -> list[str]:
    """Return the command of `flakelog` with these arguments.

    -P: a directory of the user's with the name of one of our packages must not be imported in its place.
    """
    return [sys.executable, "-P", "-m", "flakelog", *arguments]


def with_own_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the path to this program's packages, if they are a checkout that is not installed."""
    home = Path(flakelog.__file__).resolve().parent.parent
    if home.name in ("site-packages", "dist-packages"):
        return dict(environment)
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, [str(home), environment.get("PYTHONPATH")]))}
