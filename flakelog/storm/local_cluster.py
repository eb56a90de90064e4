"""A local Storm cluster in a Java process, driven by lines: see local/LocalStorm.java for the commands.

    with LocalCluster(storm, "topology.yaml", directory="work") as cluster:
        cluster.start()
        cluster.ask("deactivate")
        cluster.stop(seconds=2)
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

from flakelog.storm.jars import Storm

KILL_SECONDS = 10.0  # in which a Java that was asked to end must have ended


class ClusterEnded(RuntimeError):
    """The Java process has ended; `exit_code` is its own."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"the local Storm cluster ended with exit code {exit_code}")
        self.exit_code = exit_code


class CommandFailed(RuntimeError):
    """The cluster refused a command; the message is Storm's."""


class LocalCluster:
    """A cluster that runs the topology of one Flux file.

    Several can run at once, because each has its own ZooKeeper at a free port of the loopback interface and its own
    temporary directory.
    """

    def __init__(
        self,
        storm: Storm,
        topology: Path | str,
        *,
        directory: Path | str = ".",
        environment: Mapping[str, str] | None = None,
        log: IO[str] | None = None,
    ) -> None:
        """Prepare to start in `directory`, where the components' processes start too; `log` takes Storm's log."""
        self._storm = storm
        self._topology = Path(topology).resolve()
        self._directory = directory
        self._environment = {**os.environ, **(environment or {})}
        self._log = log
        self._work = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Return the process id of the Java process."""
        return self._running.pid

    def start(self) -> str:
        """Start, and return Storm's first line when the topology is submitted. Raise ClusterEnded if that fails."""
        self._work = tempfile.mkdtemp(prefix="flakelog-storm-")
        self._process = subprocess.Popen(
            self._storm.command(self._work, self._topology),
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C comes to the caller, who stops the cluster in order
        )
        return self._answer()

    def ask(self, command: str) -> None:
        """Send a command and wait for its answer. Raise CommandFailed or ClusterEnded."""
        self._say(command)
        answer = self._answer()
        if answer != "ok":
            raise CommandFailed(f"{command}: {answer.removeprefix('error: ')}")

    def stop(self, seconds: int = 0) -> None:
        """End the topology after `seconds` for tuples in flight, and then the cluster. Raise ClusterEnded."""
        self.ask(f"stop {seconds}")
        self._running.wait()

    @property
    def ended(self) -> bool:
        """Return True if the process has ended."""
        return self._running.poll() is not None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end, and return its exit code. Raise TimeoutError after `timeout` seconds."""
        try:
            return self._running.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the local Storm cluster still runs after {timeout} s") from None

    def close(self) -> None:
        """End the process if it still runs, by force if it has to be, and remove its files."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                try:
                    self._process.wait(KILL_SECONDS)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            with suppress(BrokenPipeError):  # what it did not read is of no use now
                cast(IO[str], self._process.stdin).close()
            cast(IO[str], self._process.stdout).close()
        if self._work:
            shutil.rmtree(self._work, ignore_errors=True)

    @property
    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None:
            raise RuntimeError("the cluster has not been started")
        return self._process

    def _say(self, line: str) -> None:
        stdin = cast(IO[str], self._running.stdin)
        try:
            stdin.write(f"{line}\n")
            stdin.flush()
        except BrokenPipeError:
            raise ClusterEnded(self._running.wait()) from None

    def _answer(self) -> str:
        """Return the next answer; libraries inside Java may print other lines, which are passed over."""
        for line in cast(IO[str], self._running.stdout):
            if line.startswith(("ready: ", "ok", "error: ")):
                return line.rstrip("\n")
        raise ClusterEnded(self._running.wait())
