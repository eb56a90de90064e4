"""Storm's jars and the compiled LocalStorm: brought by Maven and Java once, and kept in a cache directory.

    storm = find_storm()          # raises StormNotFound, which names the missing program
    storm.command("/tmp/x", "topology.yaml")
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from coordination.java import JavaNotFound, find_java

MAVEN_SECONDS_MAX = 900  # 170 MB at the first use; a registry that answers no more must not block for ever
JAVAC_SECONDS_MAX = 120
HEAP = "-Xmx1g"  # of Storm's daemons and one worker: 250 MB are in use, and tuples on the way need room

SOURCES = ("LocalStorm.java", "pom.xml", "flux.pom", "log4j2.xml")
_FLUX_PARENT = Path("repository", "org", "apache", "storm", "flux", "2.8.3", "flux-2.8.3.pom")


class StormNotFound(RuntimeError):
    """A local cluster needs a program that is not installed; the message names it in one line."""


class Storm(NamedTuple):
    """The parts of a local cluster: a Java, and the directory with the classes and the list of jars."""

    java: Path
    directory: Path

    def command(self, work: Path | str, topology: Path | str) -> list[str]:
        """Return the command line of a local cluster that runs a Flux file; it keeps its files in `work`."""
        jars = (self.directory / "classpath").read_text().strip()
        return [
            str(self.java),
            HEAP,
            f"-Djava.io.tmpdir={work}",
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.xml'}",
            "-cp",
            f"{self.directory / 'classes'}{os.pathsep}{jars}",
            "LocalStorm",
            str(topology),
        ]


def cache_directory() -> Path:
    """Return $XDG_CACHE_HOME/flakelog, or ~/.cache/flakelog."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "flakelog"


def find_storm(*, fetch: bool = True, say: Callable[[str], object] = lambda text: None) -> Storm:
    """Return the Storm of the cache directory. At first use Maven brings the jars, and Java compiles LocalStorm.

    `say` gets a line before a long step. Raise StormNotFound, with `fetch` False also if Maven would be needed.
    """
    try:
        java = find_java()
    except JavaNotFound as error:
        raise StormNotFound(f"a local Storm cluster needs Java: {error}") from None
    here = files("flakelog.storm") / "local"
    texts = {name: (here / name).read_bytes() for name in SOURCES}
    digest = hashlib.sha256(b"".join(texts.values())).hexdigest()[:12]
    directory = cache_directory() / f"storm-{digest}-java{java.version}"
    if not _is_complete(directory):
        if not fetch:
            raise StormNotFound("Storm's jars are not there: `make stock` brings them where Maven (mvn) is installed")
        if "jdk.compiler" not in java.modules:
            raise StormNotFound(f"a local Storm cluster needs a JDK, and {java.launcher} has no compiler")
        _make(directory, texts, java.launcher, say)
    return Storm(java.launcher, directory)


def _is_complete(directory: Path) -> bool:
    """Return True if all is there. Maven's own cache holds the jars, and may have been emptied since."""
    classpath = directory / "classpath"
    return classpath.is_file() and all(Path(jar).exists() for jar in classpath.read_text().strip().split(os.pathsep))


def _make(directory: Path, texts: dict[str, bytes], java: Path, say: Callable[[str], object]) -> None:
    """Fill a directory beside the wanted one and rename it, so that two first uses at once do not meet."""
    maven = shutil.which("mvn")
    if maven is None:
        raise StormNotFound("a local Storm cluster needs Maven (mvn), which brings Storm's jars at first use")
    directory.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="storm-new-", dir=directory.parent))
    try:
        for name, text in texts.items():
            (made / name).write_bytes(text)
        (made / _FLUX_PARENT).parent.mkdir(parents=True)
        (made / "flux.pom").rename(made / _FLUX_PARENT)
        say(f"fetching Apache Storm by Maven, and keeping it in {directory}: once, 170 MB")
        goal = ["dependency:build-classpath", "-Dmdep.outputFile=classpath"]
        _run([maven, "-q", "-B", *goal], made, MAVEN_SECONDS_MAX)
        compiler = [str(java), "--module", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-d", "classes"]
        jars = (made / "classpath").read_text().strip()
        _run([*compiler, "-cp", jars, "LocalStorm.java"], made, JAVAC_SECONDS_MAX)
        shutil.rmtree(directory, ignore_errors=True)  # one whose jars are gone
        try:
            made.rename(directory)
        except OSError:
            if not _is_complete(directory):
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _run(command: list[str], directory: Path, seconds: float) -> None:
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise StormNotFound(f"{Path(command[0]).name} has not ended within {seconds} s: {' '.join(command)}") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        error_line = next(
            (line for line in lines if "ERROR" in line or "error" in line), lines[-1] if lines else "no reason"
        )
        raise StormNotFound(f"{Path(command[0]).name} failed with exit code {done.returncode}: {error_line}")


if __name__ == "__main__":  # for `make stock`
    try:
        find_storm(say=print)
    except StormNotFound as error:
        print(f"Apache Storm is not tested: {error}")
