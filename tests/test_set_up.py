"""`make` shows how far its set-up is, and never uses an environment of another Python in silence."""

import io
import re
import sys
import venv

import pytest

import set_up
from set_up import Progress, Screen, check, difference, packages_in, this_python

COLLECTING = (
    "Collecting pyspark==4.2.0 (from -c constraints.txt (line 120))",
    "  Downloading pyspark-4.2.0.tar.gz (434.2 MB)",
    "Requirement already satisfied: six in ./.venv (1.17.0)",
    "Collecting pyarrow==26.0.1",
)
INSTALLING = "Installing collected packages: py4j, pyspark, pyarrow"


def test_it_names_the_newest_package_and_its_size_while_pip_fetches():
    progress = Progress()
    for line in COLLECTING[:2]:
        progress.feed(line)
    assert progress.text(0) == "fetching: 1 packages so far; pyspark (434.2 MB)"
    for line in COLLECTING[2:]:
        progress.feed(line)
    assert progress.text(0) == "fetching: 2 packages so far; pyarrow==26.0.1"


def test_it_counts_the_installed_packages_once_pip_has_all():
    progress = Progress()
    for line in (*COLLECTING, INSTALLING):
        progress.feed(line)
    assert progress.text(2) == "installing: 2 of 3 packages"
    assert progress.text(7) == "installing: 3 of 3 packages", "pip may replace packages of its own"


def test_a_file_gets_a_line_every_ten_seconds_and_a_terminal_one_line():
    file, terminal = io.StringIO(), io.StringIO()
    terminal.isatty = lambda: True
    for stream in (file, terminal):
        screen = Screen(stream, now=0.0)
        for second in range(25):
            screen.show(f"package {second}", float(second))
        screen.close()
    assert file.getvalue() == "  0:10  package 10\n  0:20  package 20\n"
    assert terminal.getvalue().count("\r") == 26 and "\n" not in terminal.getvalue()
    assert "  0:24  package 24" in terminal.getvalue()


@pytest.fixture
def environment(tmp_path):
    venv.create(tmp_path / ".venv", symlinks=True)
    return tmp_path / ".venv"


def of_another_python(environment):
    program = environment / "bin" / "python"
    program.unlink()
    program.write_text("#!/bin/sh\necho 3.99.1 /opt\n")
    program.chmod(0o755)


def test_an_environment_of_this_python_is_used_without_a_word(environment, capfd):
    assert check(str(environment), named=True) == 0
    assert check(str(environment.with_name("none")), named=True) == 0
    assert capfd.readouterr() == ("", "")


def test_an_environment_of_another_python_than_the_named_one_is_refused_with_two_ways_out(environment, capfd):
    of_another_python(environment)
    assert check(str(environment), named=True) == 1
    error = capfd.readouterr().err
    version, prefix = this_python().split(" ", 1)
    assert f"was made with Python 3.99.1 of /opt, and not with Python {version} of {prefix}" in error
    assert "make clean" in error and "leave out PYTHON=" in error


def test_without_a_named_python_it_is_kept_with_a_note(environment, capfd):
    of_another_python(environment)
    assert check(str(environment), named=False) == 0
    assert re.match("note: .* was made with Python 3.99.1 of /opt.*; it is kept", capfd.readouterr().err)


def test_an_environment_whose_python_is_gone_is_named(environment):
    (environment / "bin" / "python").unlink()
    present = set_up.python_of(str(environment))
    assert present == "" and "a Python that does not start" in difference(".venv", present, this_python())


def test_a_python_that_is_too_old_says_so(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    assert check(str(tmp_path), named=False) == 1
    assert "Flakelog needs Python 3.11 or later" in capfd.readouterr().err


def test_packages_are_counted_by_their_metadata(environment):
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in ("one-1.0.dist-info", "two-2.0.dist-info", "two"):
        (packages / name).mkdir()
    assert packages_in(str(environment)) == 2
