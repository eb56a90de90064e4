"""A release of Flakelog, and clean environments outside the checkout that it is installed in.

Nothing is downloaded: the distributions that the release requires are copied from the environment of the tests, because
the release is tested and not a package index.
"""

import email
import os
import runpy
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement

from tests.patience import SECONDS

ROOT = Path(__file__).resolve().parents[2]
INTERPRETERS = runpy.run_path(str(ROOT / ".ci" / "pythons.py"))["interpreters"]  # as .ci/run finds them
NOT_SOURCES = (
    ".git", ".venv", "__pycache__", "build", "dist", "*.egg-info", "target", "node_modules", "demo-out", ".*_cache",
    ".hypothesis",
)  # fmt: skip


def build(directory):
    """Build the sdist, and the wheel from it, as a release does; return where they are.

    They are built from a copy of the sources, because a build leaves files in the source tree.
    """
    source, made = directory / "flakelog", directory / "made"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*NOT_SOURCES))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", made, source, cwd="/")
    return made


def clean_environment(directory, wheel, extras=(), others=()):
    """Install a wheel in a new environment, with what it and its extras require, and the `others`.

    Return the environment's interpreter. The installation fails if a requirement is missing.
    """
    needed = required_by(requirements_of(wheel), extras).union(others)
    for name in others:
        needed |= required_by({name: distribution(name).requires or ()})
    python = environment_with(directory, needed - {"flakelog"})
    wanted = f"{wheel}[{','.join(extras)}]" if extras else wheel
    pip("--python", python, "install", "--no-index", wanted)
    return python


def environment_with(directory, names):
    """Create an environment with the distributions of these names, and none else; return its interpreter."""
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    for name in names:
        copy_to(packages, name)
    return directory / "bin" / "python"


def requirements_of(wheel):
    """Return the requirements in a wheel's metadata, by its name, as `required_by` takes them."""
    with ZipFile(wheel) as files:
        (metadata,) = [name for name in files.namelist() if name.endswith("METADATA")]
        distribution_metadata = email.message_from_bytes(files.read(metadata))
    return {distribution_metadata["Name"]: distribution_metadata.get_all("Requires-Dist")}


def required_by(declared, extras=()):
    """Return the names of the distributions that a distribution with these extras requires, directly or indirectly.

    `declared` is {its name: its requirements}. This environment has the others installed, so their metadata is read
    here.
    """
    (first,) = declared
    seen, pending = {(first, frozenset(extras))}, [(first, frozenset(extras))]
    while pending:
        name, wanted = pending.pop()
        for requirement in map(Requirement, declared[name] if name in declared else distribution(name).requires or ()):
            marker = requirement.marker
            pair = requirement.name, frozenset(requirement.extras)
            if pair not in seen and (marker is None or any(marker.evaluate({"extra": e}) for e in ("", *wanted))):
                seen.add(pair)
                pending.append(pair)
    return {name for name, _ in seen} - {first}


def copy_to(packages, name):
    """Copy an installed distribution, by hard links where the file system has them."""
    for file in distribution(name).files:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file.locate(), packages / file)
            except FileExistsError:
                pass  # a directory that two distributions share
            except OSError:
                shutil.copy(file.locate(), packages / file)


def pip(*arguments):
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, cwd="/")


def clean():
    """Return the environment variables of a user, who has no checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(python, *arguments, **more):
    """Return the output of a program, which must succeed."""
    command = [str(python), *map(str, arguments)]
    more = {"env": clean(), "timeout": SECONDS} | more
    done = subprocess.run(command, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def interpreter(version):
    """Return the first program of a Python version that can make environments, None without one."""
    return next(iter(INTERPRETERS(version).values()), None)
