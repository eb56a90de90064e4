"""Each row of `make bench` runs next to its peer and prints machine-readable figures. Speed is not checked here."""

import json
import subprocess
import sys

import pytest

from benchmarks.__main__ import ROWS
from tests.compat.server_process import ROOT
from tests.patience import PROGRAM_SECONDS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the benchmarks read /proc")


# Rows whose peer is Apache Kafka, which takes too long to start here.
ALONE = {"fetch-1k", "single-100-50p", "list-offsets", "fetch-small", "java-consumer", "spark-connector"}
BROUGHT_BY_MAVEN = {"java-consumer", "spark-connector"}


def bench(*arguments):
    argv = [sys.executable, "-m", "benchmarks", *arguments]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_row_gives_figures_for_each_contender():
    report = json.loads(bench("--quick", "--json"))
    assert report["rows"].keys() | report["skipped"].keys() == ROWS.keys()
    for row, contenders in report["rows"].items():
        assert len(contenders) > 1 or row in ALONE, f"{row} stands alone"
        for who, units in contenders.items():
            rates = [spread for unit, spread in units.items() if "CPU" not in unit and unit != "repeated"]
            assert rates and all(0 < spread["least"] <= spread["median"] <= spread["most"] for spread in rates), who
    if report["skipped"].keys() - BROUGHT_BY_MAVEN:
        pytest.skip(str(report["skipped"]))  # with the reason: no C compiler here


def test_one_row_can_be_asked_for_and_is_printed_as_a_table():
    printed = bench("--quick", "startup")
    assert "RSS MiB" in printed and "flakelog server" in printed and "produce" not in printed
