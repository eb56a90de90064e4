"""Packages of PyPI that make ids. Each runs in a separate process, because three of them have a module of one name.

`make bench` installs them to build/id-packages/NAME, in the versions of constraints.txt. `python -m
benchmarks.id_packages` prints their names. With NAME and SECONDS it prints the ids per second, and how many of the
first ids were duplicates.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Figures

ROOT = Path(__file__).parent.parent
INSTALLED = ROOT / "build" / "id-packages"
CHUNK = 1000
BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)
SAMPLE_CHUNKS = 300  # searched for duplicates


class Package(NamedTuple):
    """`make` takes the module and returns a function that makes one id; `key` maps an id to its identity. `flaw` says
    why the ids are not unique; the table shows it, because such a rate is not comparable."""

    module: str
    make: Callable[[Any], Callable[[], object]]
    key: Callable[[Any], object] = lambda id: id
    flaw: str | None = None


PACKAGES = {
    "snowflake-id": Package("snowflake", lambda module: module.SnowflakeGenerator(1).__next__),
    "pysnowflake": Package("snowflake.server.generator", lambda module: module.Generator(1, 1).get_next_id),
    "sonyflake-py": Package("sonyflake", lambda module: module.SonyFlake(machine_id=lambda: 1).next_id),
    "sonyflake": Package("sonyflake", lambda module: module.Sonyflake(machine_id=1, start_time=BEGINNING).next_id),
    "uuid-utils": Package("uuid_utils", lambda module: module.uuid7),
    "python-ulid": Package("ulid", lambda module: module.ULID, bytes),
    "snowflake.py": Package("snowflake", lambda module: module.Generator().generate, int, "the same after a restart"),
    "tsidpy": Package("tsidpy", lambda module: module.TSID.create, lambda id: id.number, "the same after a restart"),
    "simpleflake": Package("simpleflake", lambda module: module.simpleflake, flaw="23 bits are left to chance"),
}
ABOUT = {"uuid-utils": "uuid-utils uuid7 (128 bits, Rust)", "python-ulid": "python-ulid (128 bits)"}


def contender(name: str) -> str:
    """Return the name of a package in the table."""
    flaw = PACKAGES[name].flaw
    return f"{name}, repeats ids: {flaw}" if flaw else ABOUT.get(name, name)


def installed() -> list[str]:
    """Return the names of the installed packages."""
    return [name for name in PACKAGES if (INSTALLED / name).is_dir()]


def run(name: str, seconds: float) -> Figures:
    """Measure a package in a separate process. RuntimeError has the process's message when it fails."""
    argv = [sys.executable, "-m", "benchmarks.id_packages", name, str(seconds)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=seconds * 5 + 60)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.strip()}")
    ids, repeated = map(float, done.stdout.split())
    return {"ids/s": ids, "repeated": repeated}


def _measured(name: str, seconds: float) -> tuple[float, int]:
    """Return the ids per second, and how many of the first ids were duplicates or None."""
    sys.path.insert(0, str(INSTALLED / name))
    package = PACKAGES[name]
    make = package.make(import_module(package.module))
    sample: list[Any] = []
    rounds = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        ids = [make() for _ in range(CHUNK)]
        if rounds < SAMPLE_CHUNKS:
            sample += ids
        rounds += 1
    per_second = rounds * CHUNK / (time.perf_counter() - start)
    return per_second, len(sample) - len({package.key(id) for id in sample if id is not None})


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(*PACKAGES)
    else:
        print(*_measured(sys.argv[1], float(sys.argv[2])))
