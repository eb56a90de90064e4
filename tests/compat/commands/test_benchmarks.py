"""Each row of `make bench` runs next to its peer and prints machine-readable figures. Speed is not checked here."""

import json
import shutil
import subprocess
import sys

import pytest

from benchmarks import compaction, ids, mirrors, multilang
from benchmarks.__main__ import ROWS
from benchmarks.spark_messages import CONSTANT, VARIED
from idgen.errors import SequenceExhausted
from idgen.worker import MAX_AHEAD_MS
from tests.compat.server_process import ROOT
from tests.patience import PROGRAM_SECONDS
from tests.test_tidy import PACKAGES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the benchmarks read /proc")


# Rows whose only peer is Apache Kafka, which takes too long to start here.
ALONE = {
    "fetch-1k", "fetch-default", "trickle-1000", "list-offsets", "fetch-small", "java-consumer", "spark-connector",
    "turn-10p", "turn-50p", "turn-100p", "two-partitions", "idempotent-5", "produce-and-fetch",
    "replicas-produce-100", "replicas-produce-100-3p", "replicas-produce-1k", "replicas-produce-1k-3p",
    "replicas-100-50p", "replicas-sync-100", "replicas-stop",
    *(row.name for row in compaction.ROWS), *(row.name for row in mirrors.ROWS),
}  # fmt: skip
BROUGHT_BY_MAVEN = {
    "multilang-storm",
    "java-consumer", "spark-connector", "spark-one-task", "spark-two-tasks", "spark-stream", "spark-write",
}  # fmt: skip
ALL_ROWS_SECONDS = 4 * PROGRAM_SECONDS
MAY_BE_NOTHING = {"repeated", "flood answered/s", "resumed %"}


def may_be_nothing(unit):
    """Return True for a unit that a quick run may have 0 of: a CPU time has the resolution of a clock tick."""
    return unit in MAY_BE_NOTHING or "CPU" in unit and "/CPU s" not in unit


def run_bench(*arguments, seconds=PROGRAM_SECONDS):
    argv = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=seconds)


def bench(*arguments, **limit):
    done = run_bench(*arguments, **limit)
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(*rows, **limit):
    """Run the rows with these names, or all rows. Return the report; each contender has figures above 0."""
    report = json.loads(bench("--quick", "--json", *rows, **limit))
    for row, contenders in report["rows"].items():
        assert (len(contenders) == 1) == (row in ALONE), f"{row} has {list(contenders)}"
        for who, units in contenders.items():
            rates = [spread for unit, spread in units.items() if not may_be_nothing(unit)]
            assert rates and all(0 < spread["least"] <= spread["median"] <= spread["most"] for spread in rates), who
    return report


def test_rows_of_the_log_ids_and_topologies_give_figures_for_each_contender():
    rows = {"produce-1k", "fetch-1k", "ids-http", "topology"}
    assert figures(*rows)["rows"].keys() == rows


def test_a_worker_whose_lead_is_used_up_gives_only_the_ids_of_a_millisecond():
    """So a run of `ids-process` shows at most the layout's 4.096 M/s, however short it is."""
    now_ms = 1_700_000_000_000
    worker = ids._worker(now_ms, MAX_AHEAD_MS)
    for _ in range(3):
        made = 0
        with pytest.raises(SequenceExhausted):
            while True:
                worker.next_id(now_ms)
                made += 1
        assert made == 4_096
        now_ms += 1


def test_multilang_says_that_streamparse_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(multilang, "INSTALLED", tmp_path / "nothing")
    assert multilang.STREAMPARSE not in multilang._names()
    assert capsys.readouterr().err == "streamparse is not measured: `make bench` installs it\n"


def test_spark_reads_messages_of_one_size_and_of_many_with_keys():
    assert {(each.key, len(each.value)) for each in CONSTANT.batch()} == {(None, 100)}
    for part in ("key", "value"):
        sizes = [len(getattr(each, part)) for each in VARIED.batch()]
        assert (min(sizes), max(sizes)) == (20, 180) and len(set(sizes)) == 161
    assert CONSTANT.value_bytes(2_000) == 200_000
    assert VARIED.value_bytes(2_000) == 2 * sum(len(each.value) for each in VARIED.batch())


@pytest.mark.soak
def test_every_row_gives_figures_for_each_contender():
    """It takes more time than any other test of this folder: 7 minutes beside other work."""
    report = figures(seconds=ALL_ROWS_SECONDS)
    assert report["rows"].keys() | report["skipped"].keys() == ROWS.keys()
    if report["skipped"].keys() - BROUGHT_BY_MAVEN:
        pytest.skip(str(report["skipped"]))  # with the reason: no C compiler here


def test_one_row_can_be_asked_for_and_is_printed_as_a_table():
    printed = bench("--quick", "startup")
    assert "RSS MiB" in printed and "flakelog server" in printed and "produce" not in printed


def test_another_checkout_is_measured_in_pairs_and_runs_its_own_code(tmp_path):
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    done = run_bench("--quick", "--json", "--against", tmp_path, "list-offsets")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report["rows"]["list-offsets"]) == {"flakelog", f"flakelog at {tmp_path}", "flakelog: ratio of pairs"}
    assert report["trees"][f"flakelog at {tmp_path}"] == {"directory": str(tmp_path), "commit": "no commit"}
    assert f"flakelog: {ROOT}/broker/__init__.py" in done.stderr
    assert f"flakelog at {tmp_path}: {tmp_path}/broker/__init__.py, no commit" in done.stderr


def test_a_checkout_whose_server_would_run_other_code_is_refused(tmp_path):
    """An empty directory: Python finds the packages where they are installed, if anywhere."""
    done = run_bench("--quick", "--against", tmp_path, "list-offsets")
    assert done.returncode != 0
    assert f"which is not below {tmp_path}" in done.stderr or "No module named flakelog" in done.stderr
