"""Storm's side of the pipe, for tests: handshakes, commands, and one task's core or process with what it answers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from select import select

from spout.config import TopologyConfig
from spout.multilang.bolt_task import BoltTask
from spout.multilang.config import StormConfig
from spout.multilang.context import TaskSetup
from spout.multilang.frames import FrameDecoder
from spout.multilang.handshake import handshake_of
from spout.multilang.spout_task import SpoutTask
from spout.multilang.streams import storm_streams
from spout.work import NoBackground
from tests.compat.server_process import PYTHONPATH
from tests.patience import SECONDS

ROOT = Path(__file__).resolve().parents[3]
CONF = {"topology.max.spout.pending": 1000, "topology.message.timeout.secs": 30}


def handshake(plan, component, index=0, conf=None, pid_dir="/pids"):
    """Return Storm's first message to a task, as JSON has it. Tasks are numbered from 1, in the order of the plan."""
    tasks, streams, inputs = {}, {}, {}
    for node in plan.nodes:
        for _ in range(node.parallelism):
            tasks[str(len(tasks) + 1)] = node.name
        streams[node.name] = {name: list(stream.fields) for name, stream in storm_streams(node).items()}
    for bolt in plan.bolts:
        if bolt.name == component:
            for source, stream, _ in bolt.inputs:
                inputs.setdefault(source, {})[stream] = streams[source][stream]
    own = [int(number) for number, name in tasks.items() if name == component]
    context = {
        "componentid": component,
        "taskid": own[index],
        "task->component": tasks,
        "streams": list(streams[component]),
        "stream->outputfields": streams[component],
        "source->stream->fields": inputs,
    }
    return {"pidDir": str(pid_dir), "context": context, "conf": {**CONF, **(conf or {})}}


def written(message):
    """Return a message as Storm writes it: slashes escaped, text beyond ASCII as UTF-8."""
    return json.dumps(message, ensure_ascii=False).replace("/", "\\/").encode() + b"\nend\n"


def frames_of(data):
    return FrameDecoder(1 << 30).receive(data) if data else []


class Pipe:
    """The pipe of a core: `answers` are what Storm sends when an emit waits."""

    def __init__(self):
        self.written = []
        self.answers = []

    def exchange(self, data):
        self.written += frames_of(data)
        return self.answers.pop(0)


class CoreDriver:
    """A task's core, driven as Storm does. `world` has the ports of a LogSpout."""

    def __init__(self, topology, component, index=0, conf=None, world=None, background=NoBackground()):
        plan = topology.plan()
        self.pipe = Pipe()
        self.wakes = 0
        self.now_ms = 1_000
        shaken = handshake_of(json.loads(json.dumps(handshake(plan, component, index, conf))))
        self.setup = TaskSetup(
            plan,
            shaken,
            shaken.config(TopologyConfig),
            shaken.config(StormConfig),
            world,
            "run-1",
            self.pipe,
            self._wake,
        )
        is_spout = component in [node.name for node in plan.spouts]
        self.task = SpoutTask(self.setup) if is_spout else BoltTask(self.setup, background)
        self.instance = self.task.task.instance
        self.task.open(self.now_ms)

    def _wake(self):
        self.wakes += 1

    def send(self, *messages):
        """Send messages through JSON and return the answers."""
        more = self.task.receive([json.loads(json.dumps(message)) for message in messages], self.now_ms)
        while more:
            more = self.task.work(self.now_ms)
        return self.answers()

    def work(self, after_ms=0):
        """Let time pass and return the answers."""
        self.now_ms += after_ms
        while self.task.work(self.now_ms):
            pass
        return self.answers()

    def answers(self):
        frames = self.pipe.written + frames_of(self.task.take())
        self.pipe.written = []
        return frames

    # a spout's commands

    def next(self):
        return self.send({"id": "", "command": "next"})

    def activate(self):
        return self.send({"id": "", "command": "activate"})

    def deactivate(self):
        return self.send({"id": "", "command": "deactivate"})

    def ack(self, emit):
        return self.send({"id": emit["id"], "command": "ack"})

    def fail(self, emit):
        return self.send({"id": emit["id"], "command": "fail"})


def storm_tuple(id, row, component="lines", stream="default", task=1):
    """Return a tuple as Storm brings it to a bolt."""
    return {"comp": component, "tuple": row, "task": task, "stream": stream, "id": id}


HEARTBEAT = {"comp": None, "task": -1, "stream": "__heartbeat", "tuple": [], "id": "-77"}
TICK = {"comp": "__system", "task": -1, "stream": "__tick", "tuple": [1], "id": "-78"}
SYNC = {"command": "sync"}


def emits(answers):
    return [answer for answer in answers if answer["command"] == "emit"]


def commands(answers):
    return [answer["command"] for answer in answers]


def memory_world(partitions=1):
    from tests.spout.worlds import SpoutWorld

    return SpoutWorld(partitions)


class ProcessDriver:
    """The command as Storm starts it: a process with a handshake and commands on its pipes."""

    def __init__(self, folder, name, plan, component, conf=None, index=0, environment=None):
        self.folder = Path(folder)
        self.pids = self.folder / "pids"
        self.pids.mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "spout.multilang", name, component]
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, **(environment or {})}
        self.process = subprocess.Popen(
            argv,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._decoder = FrameDecoder(1 << 30)
        self._messages = []
        self.write(handshake(plan, component, index, conf, self.pids))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(SECONDS)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()

    def write(self, message):
        self.process.stdin.write(written(message))
        self.process.stdin.flush()

    def read(self):
        """Return the next message of the process; EOFError if it has closed the pipe."""
        fd = self.process.stdout.fileno()
        while not self._messages:
            assert select([fd], [], [], SECONDS)[0], f"silent: {self.process.poll()}"
            data = os.read(fd, 1 << 16)
            if not data:
                raise EOFError
            self._messages = self._decoder.receive(data)
        return self._messages.pop(0)

    def command(self, command, id=""):
        """Send a spout's command and return its answers, without the sync."""
        self.write({"id": id, "command": command})
        return self.until_sync()

    def until_sync(self):
        messages = []
        while (message := self.read()) != SYNC:
            messages.append(message)
        return messages

    def rest(self):
        """Return the messages until the process closes the pipe."""
        messages = []
        try:
            while True:
                messages.append(self.read())
        except EOFError:
            return messages

    def ended(self):
        """Wait for the end of the process; return its exit code and standard error."""
        self.process.stdin.close()
        stderr = self.process.stderr.read().decode()
        return self.process.wait(SECONDS), stderr
