"""Run the fenced blocks of a document in order, as a reader would.

```console     `$ command`, then its output. A command whose output begins with `ready:` is a server or a topology: it
               keeps running until the document ends or starts another one, before which it gets a Ctrl-C. A page that
               needs a server starts it. While a topology runs, a command that only looks is repeated until it shows
               what the document does, because a reader looks again, too.
```python      a program; the ```text block after it shows its output. A program that calls run(...) is stopped with
               Ctrl-C after that output. A program that defines tests is run by pytest, and the tests must pass. A
               program that begins with a comment such as `# billing.py` is also saved under that name.
```properties  settings of a server; a server must be able to start with them. They become server.properties.

Output to stdout is compared line by line, after times, durations, addresses and ids are replaced by placeholders. HOME
stands for the reader's directory. An id in the document stands for the real id printed in its place, so that a later
block can use it. After a block fails, no further block runs, because later blocks depend on its results.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import NamedTuple

from tests.compat.server_process import FREE_PORTS
from tests.patience import PROGRAM_SECONDS, SECONDS, until

BIN = Path(sys.executable).parent
ADDRESSES = {"broker": "127.0.0.1:9092", "ids": "127.0.0.1:7609", "http": "127.0.0.1:8609"}
OF_TOPOLOGIES = {"http": "127.0.0.1:8080"}
PORTS = {"server": tuple(FREE_PORTS), "idgen": ("flakelog.ids.listener", "flakelog.http.listener")}
REPEATED = re.compile(r"flakelog consume|flakelog spout dead list|curl -s http")
FILE_NAME = re.compile(r"# (\w+\.py)\n")
HOME = "/home/ada"
ID = re.compile(r"\d{18,19}")
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "TIME"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"in \d+\.\d s"), "in SECONDS"),
    (ID, "ID"),
)
# A replacement for curl on machines without it; it does only what the README needs.
CURL = """#!/bin/sh
exec "{python}" -c 'import sys, urllib.request as u; print(u.urlopen(u.Request(sys.argv[-1], method="POST"))
.read().decode(), end="")' "$@"
"""


class Block(NamedTuple):
    """A fenced block: its language, its text, and the text of the ```text block right after it, if any."""

    line: int
    language: str
    text: str
    prints: str | None


def blocks_of(path):
    """Return all blocks of a document. A ```text block becomes part of the block before it."""
    blocks = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
        line = path.read_text()[: match.start()].count("\n") + 1
        if match[1] == "text":
            blocks[-1] = blocks[-1]._replace(prints=match[2])
        else:
            blocks.append(Block(line, match[1], match[2], None))
    return blocks


def commands_of(block):
    """Return the (command, output) pairs of a console block."""
    commands = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        commands.append((command, output))
    return commands


class Tour:
    """A simulated reader: runs the blocks of a document in a separate directory, with the programs in `bin`."""

    def __init__(self, directory, bin=BIN):
        self.directory = directory
        self.real = {}  # text in the document -> real text in its place
        self.broken = None
        self._bin = bin
        self._running = {}  # "server" or "topology" -> its process
        tools = directory / "tools"
        tools.mkdir()
        if shutil.which("curl") is None:
            (tools / "curl").write_text(CURL.format(python=sys.executable))
            (tools / "curl").chmod(0o755)
        self.env = {**os.environ, "PATH": f"{bin}:{tools}:{os.environ['PATH']}", "COLUMNS": "200"}

    def close(self):
        for kind in ("topology", "server"):
            self._stop(kind)

    def _stop(self, kind):
        process = self._running.pop(kind, None)
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=SECONDS)

    def do(self, block):
        assert not self.broken, f"not run, as the block at line {self.broken} went wrong"
        self.broken = block.line
        self._do(block)
        self.broken = None

    def _do(self, block):
        if block.language == "console":
            for command, output in commands_of(block):
                if output.startswith("ready:"):
                    self.serve(command, output)
                elif "topology" in self._running and REPEATED.match(command):
                    self.repeat(command, output)
                else:
                    self.check(f"$ {command}", output, self.shell(command))
        elif block.language == "properties":
            (self.directory / "server.properties").write_text(block.text)
            self.shell("flakelog server --check-config server.properties")
        else:
            assert block.language == "python", f"a block of {block.language!r} at line {block.line} is run by nobody"
            if name := FILE_NAME.match(block.text):
                (self.directory / name[1]).write_text(self._here(block.text))
            if re.search(r"^def test_", block.text, re.MULTILINE):
                self.pytest(block)
                return
            self.check(f"the program at line {block.line}", block.prints or "", self.python(block))

    def serve(self, command, output):
        """Start a server or a topology as the document does, but on free ports, and check its `ready:` line."""
        words = command.split()
        kind = "server" if words[1] in PORTS else "topology"
        self._stop(kind)
        if kind == "server":
            words += [f"--set={name}={value}" for name, value in FREE_PORTS.items() if name in PORTS[words[1]]]
        else:
            words[words.index("--http-port") + 1] = "0"
        with (self.directory / f"{kind}.log").open("a") as log:
            process = self._running[kind] = subprocess.Popen(
                words, cwd=self.directory, env=self.env, stdout=subprocess.PIPE, stderr=log, text=True
            )
        ready = process.stdout.readline()
        self.check(f"$ {command}", output, ready)
        parts = [word.partition("=") for word in ready.split()]
        shown = ADDRESSES if kind == "server" else OF_TOPOLOGIES
        self.real |= {shown[name]: address for name, _, address in parts if address and name in shown}
        if kind == "server":
            for variable, name in (("FLAKELOG_SERVERS", "broker"), ("FLAKELOG_IDS", "ids")):
                self.env[variable] = self.real.get(ADDRESSES[name], "")

    def repeat(self, command, output):
        """Repeat a command until its output is the document's. Then check it."""
        until(lambda: _even(self._run(command).stdout) == _even(output), f"$ {command} shows {output}")
        self.check(f"$ {command}", output, self.shell(command))

    def _run(self, command):
        return subprocess.run(
            self._here(command), shell=True, cwd=self.directory, env=self.env, capture_output=True, text=True,
            timeout=PROGRAM_SECONDS,
        )  # fmt: skip

    def shell(self, command):
        done = self._run(command)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def python(self, block):
        """Return the program's output. A program that calls run(...) is stopped after the expected lines."""
        forever = re.search(r"^run\(", block.text, re.MULTILINE)
        process = subprocess.Popen(
            [self._bin / "python", "-c", self._here(block.text)],
            cwd=self.directory,
            env=self.env,
            stdout=subprocess.PIPE,
            text=True,
        )
        printed = _interrupted(process, block.prints) if forever else process.communicate(timeout=PROGRAM_SECONDS)[0]
        assert process.returncode == 0, f"the program at line {block.line} ended with {process.returncode}: {printed}"
        return printed

    def pytest(self, block):
        """Run the block's tests with only our plugin, loaded by name because its installation is not tested here."""
        file = self.directory / f"test_line_{block.line}.py"
        file.write_text(self._here(block.text))
        (self.directory / "pytest.ini").write_text("[pytest]\n")
        command = [str(self._bin / "python"), "-m", "pytest", "-q", "-p", "flakelog.pytest_plugin", str(file)]
        env = self.env | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        done = subprocess.run(
            command, cwd=self.directory, env=env, capture_output=True, text=True, timeout=PROGRAM_SECONDS
        )
        assert done.returncode == 0, f"the tests at line {block.line}: {done.stdout}{done.stderr}"

    def check(self, source, shown, printed):
        """Compare real output with the document's, and record which real id stands for each id shown."""
        printed = printed.replace(str(self.directory), HOME)
        assert _even(printed) == _even(shown), f"{source} printed\n{printed}"
        self.real |= dict(zip(ID.findall(shown), ID.findall(printed), strict=True))

    def _here(self, text):
        for shown, real in self.real.items():
            text = text.replace(shown, real)
        return text


def _interrupted(process, shown):
    """Send Ctrl-C after as many lines as the document shows, and return the output.

    Lines of several partitions arrive in any order, so the same lines in another order are returned as shown.
    """
    late = Timer(PROGRAM_SECONDS, process.kill)
    late.start()
    lines = [process.stdout.readline() for _ in shown.splitlines()]
    late.cancel()
    process.send_signal(signal.SIGINT)
    lines += process.communicate(timeout=PROGRAM_SECONDS)[0].splitlines(keepends=True)
    return shown if sorted(lines) == sorted(shown.splitlines(keepends=True)) else "".join(lines)


def _even(text):
    for varying, name in VARYING:
        text = varying.sub(name, text)
    return [line.rstrip() for line in text.rstrip().splitlines()]
