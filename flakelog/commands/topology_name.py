"""The argument MODULE:TOPOLOGY of the commands that run a topology: errors of the user's own code are one line."""

import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from spout.topology import Topology

TOPOLOGY = "MODULE:TOPOLOGY"
OURS = Path(__file__).parent.parent.parent


def load_topology(name: str) -> "Topology":
    """Return the topology at MODULE:TOPOLOGY; BadParameter if there is none, or the module's own code fails."""
    from spout.topology_source import NoTopology, find_topology

    try:
        return find_topology(name)
    except NoTopology as error:
        raise click.BadParameter(str(error), param_hint=TOPOLOGY) from None
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise click.BadParameter(f"{_line_of(error)}{reason}", param_hint=TOPOLOGY) from error


def _line_of(error: Exception) -> str:
    """Return the file and line of the user's code that failed: where it called others, if the error is theirs."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: "
    here = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f"{here[-1].filename}:{here[-1].lineno}: " if here else ""


def _is_users(file: str) -> bool:
    """Return True for a file that is neither ours nor a package's nor Python's."""
    packages = sysconfig.get_paths()
    path = Path(file)
    return not (
        file.startswith("<")
        or any(path.is_relative_to(packages[path_name]) for path_name in ("stdlib", "purelib", "platlib"))
        or any(path.is_relative_to(OURS / package) for package in ("flakelog", "spout"))
    )
