"""Flakelog's packages have common names. A file of the user's with such a name is reported when `flakelog` is
imported."""

import os
import subprocess
import sys

import pytest

from tests.test_tidy import ROOT


def imported_in(directory):
    """Import flakelog with `directory` first on the path, as for a program there; return the last line it prints."""
    environment = os.environ | {"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}
    argv = [sys.executable, "-c", "import flakelog; print('imported')"]
    done = subprocess.run(argv, cwd=directory, env=environment, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize("package", ["broker", "spout"])
def test_a_module_that_hides_a_package_is_named(tmp_path, package):
    (tmp_path / f"{package}.py").write_text("")
    error = imported_in(tmp_path)
    assert error.startswith("ImportError") and str(tmp_path / f"{package}.py") in error and "rename it" in error


def test_a_package_that_hides_ours_is_named(tmp_path):
    (tmp_path / "idgen").mkdir()
    (tmp_path / "idgen" / "__init__.py").write_text("")
    error = imported_in(tmp_path)
    assert error.startswith("ImportError") and str(tmp_path / "idgen") in error


def test_other_files_of_the_users_hide_nothing(tmp_path):
    (tmp_path / "brokers.py").write_text("")
    assert imported_in(tmp_path) == "imported"
