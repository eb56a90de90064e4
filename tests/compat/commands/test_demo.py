"""The demo on fewer flights: its replay agrees, and it leaves no process behind, even when it is interrupted."""

import os
import signal
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from urllib.request import urlopen

import pytest

from broker.client.blocking import Client
from broker.client.core import LATEST
from tests.compat.clean_environment import environment_with, required_by
from tests.compat.server_process import ServerProcess
from tests.patience import PROGRAM_SECONDS, SECONDS, until

FLIGHTS = 12_000
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment that has what `make demo` installs, and nothing that only tests need."""
    needed = required_by({"flakelog": distribution("flakelog").requires}, ("spark", "demo"))
    return environment_with(tmp_path_factory.mktemp("demo"), needed)


@pytest.fixture
def start(python, tmp_path):
    return lambda *options: start_with(python, tmp_path, *options)


def start_with(python, tmp_path, *options):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "80"}
    command = [python, "-m", "flakelog", "demo", "--out", "out", "--flights", str(FLIGHTS), *options]
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )


def processes_naming(path):
    """Return the command lines of processes that name a path. All of the demo's children work in its directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(path) in line and entry.parent.name != str(os.getpid()):
            found.append(line)
    return found


def test_the_demo_agrees_to_the_last_digit_and_writes_its_report(start, tmp_path):
    demo = start()
    output, _ = demo.communicate(timeout=PROGRAM_SECONDS)
    last = output.strip().splitlines()[-1]
    assert demo.returncode == 0 and last.startswith("replay agrees:"), output
    assert f"{FLIGHTS:,} flights" in last
    assert max(map(len, output.replace(str(tmp_path.parent), ".").splitlines())) <= 80, output
    assert " 0 in 0 partitions" not in output, "the span holds messages"
    assert "WARN" not in output, "Java's warnings are nothing that a user has to change"
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"manifest.json", "delays.parquet", "delays.png", "report.html"} <= written
    until(lambda: not processes_naming(tmp_path), "the end of its processes")
    assert "re-delivered, counted before" in output and "fails its first attempt on purpose" in output
    assert "report:  out/report.html\n" in output
    report = (tmp_path / "out" / "report.html").read_text()
    assert report.count("127.0.0.1") == 1 and "<td>http://127.0.0.1:8609/</td>" in report, "the demo's server has ended"
    assert "server --data-dir out/data</td>" in report and "fails its first attempt on purpose" in report
    assert "console: http://127.0.0.1:8609/ after\n" in output
    assert "flakelog server --data-dir out/data\n" in output
    with ServerProcess(tmp_path / "out" / "data") as server, Client(server.address) as client:
        ends = [client.find_offset("flights", partition, LATEST) for partition in range(4)]
        assert sum(ends) == FLIGHTS + 3, "the flights, and three messages that are none"


@pytest.mark.soak
def test_on_request_the_demo_serves_its_console_until_ctrl_c(start, tmp_path):
    demo = start("--stay")
    address = next(line.split()[1] for line in demo.stdout if line.startswith("console: "))
    assert next(demo.stdout).startswith("replay agrees:")
    with urlopen(f"{address}console/topics", timeout=SECONDS) as answer:
        assert b"flights" in answer.read()
    os.killpg(demo.pid, signal.SIGINT)
    demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0
    until(lambda: not processes_naming(tmp_path), "the end of its processes")


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_ctrl_c_leaves_no_process_behind(start, tmp_path):
    demo = start()
    for line in demo.stdout:
        if line.startswith("2."):  # the broker runs, and the topology is about to start
            break
    os.killpg(demo.pid, signal.SIGINT)
    demo.communicate(timeout=SECONDS)
    assert demo.returncode != 0
    until(lambda: not processes_naming(tmp_path), "the end of its processes")
