"""Hold Flakelog to the Pythons that it names, from the oldest on.

    pythons.py resolve    constraints.txt fits each version, for the demo and for the tests; needs the package index
    pythons.py unit       `make unit` passes with each supported interpreter of this machine, beside the one of .venv

`resolve` needs none of these interpreters: uv evaluates versions and markers for a Python that is not here.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESOLVED = ("3.11.0", "3.11.2", "3.12", "3.13", "3.14")
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = {"the demo": ("spark", "demo"), "the tests": ("all", "test")}  # as the Makefile installs them
IDENTITY = "import sys, venv, ensurepip; print(sys.version.split()[0], sys.base_prefix)"


def pins(lines: str) -> set[str]:
    """Return the `name==version` of each line, with names as PyPI compares them (PEP 503)."""
    pinned = re.findall(r"^([\w.-]+)==([^\s;]+)", lines, re.MULTILINE)
    return {f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}" for name, version in pinned}


def resolve() -> int:
    constraints = ROOT / "constraints.txt"
    fixed, failures = pins(constraints.read_text()), 0
    for version in RESOLVED:
        for purpose, extras in EXTRAS.items():
            command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "setup.cfg", "--quiet"]
            command += ["--no-header", "--no-annotate", "--python-version", version, "--constraint", str(constraints)]
            command += [word for extra in extras for word in ("--extra", extra)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            loose = pins(done.stdout) - fixed
            if done.returncode or loose:
                failures += 1
                reason = done.stderr.strip() or f"constraints.txt does not name {', '.join(sorted(loose))}"
                print(f"constraints.txt does not fit Python {version} for {purpose}: {reason}")
            else:
                print(f"constraints.txt fits Python {version} for {purpose}: {len(pins(done.stdout))} packages")
    return failures


def identity(program: str) -> str:
    """Return version and prefix of an interpreter that can make environments, '' of any other program."""
    done = subprocess.run([program, "-c", IDENTITY], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def candidates(version: str) -> Iterator[str]:
    """Yield the places where an interpreter of a version may be: PATH, Debian's own, pyenv's."""
    yield from filter(None, (shutil.which(f"python{version}"), shutil.which(f"python{version}", path="/usr/bin")))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(map(str, pyenv.glob(f"{version}*/bin/python{version}")))


def interpreters(version: str) -> dict[str, str]:
    """Return the programs of a version that can make environments, by their identity; PATH's own come first."""
    found: dict[str, str] = {}
    for program in candidates(version):
        found.setdefault(identity(program), program)
    found.pop("", None)
    return found


def unit() -> int:
    failures, seen = 0, {identity(sys.executable)}
    for version in SUPPORTED:
        others = interpreters(version)
        if not others:
            print(f"no Python {version} on this machine: `make unit` is not run with it")
        for name in sorted(others.keys() - seen):
            seen.add(name)
            failures += unit_with(others[name], name)
    return failures


def unit_with(program: str, name: str) -> int:
    """Run `make unit` in a new clone of this checkout; return 1 if it fails, else 0."""
    print(f"make unit with Python {name.replace(' ', ' of ')}", flush=True)
    with tempfile.TemporaryDirectory(prefix="flakelog-python-") as directory:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), directory], check=True)
        done = subprocess.run(["make", "unit", f"PYTHON={program}"], cwd=directory)
    if done.returncode:
        print(f"make unit fails with Python {name}")
    return int(done.returncode != 0)


if __name__ == "__main__":
    verbs = {"resolve": resolve, "unit": unit}
    if len(sys.argv) != 2 or sys.argv[1] not in verbs:
        sys.exit(__doc__)
    sys.exit(1 if verbs[sys.argv[1]]() else 0)
