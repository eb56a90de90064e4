"""Runs `flakelog load` in forked processes, and kills each with SIGKILL before a step that the test chooses.

A step is a call of the operating system on a path of the destination, seen by an audit hook: open, link, rename,
remove, list. Each line of stdin is a JSON list of runs that start at once, {"args": [...], "kill_at": 17 or null}. The
answer is a line with a list of {"code": exit code, or -9 if it was killed, "steps": number of steps, or null}.
"""

import json
import os
import signal
import sys
import threading

import pyarrow.parquet  # noqa: F401  (the processes are forked with all that a load imports)

import flakelog.commands.load  # noqa: F401
import spark_bridge.load.job  # noqa: F401
from flakelog.cli import main


def run(args, kill_at, report):
    """Run the command in this process and write the number of its steps to the file descriptor `report`."""
    place = args[args.index("--to") + 1]
    steps = 0
    lock = threading.RLock()

    def hook(event, found):
        nonlocal steps
        if event.startswith(("open", "os.", "shutil.")) and any(place in str(each) for each in found[:2]):
            with lock:
                steps += 1
                if steps == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        main(args, standalone_mode=True)
    except SystemExit as error:
        os.write(report, str(steps).encode())
        os._exit(error.code or 0)
    finally:
        os._exit(99)


def start(each):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.dup2(2, 1)  # stdout is for the answers
        run(each["args"], each["kill_at"], writer)
    os.close(writer)
    return pid, reader


def finish(pid, reader):
    steps = os.read(reader, 20)
    os.close(reader)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"code": code, "steps": int(steps) if steps else None}


for line in sys.stdin:
    started = [start(each) for each in json.loads(line)]
    print(json.dumps([finish(*each) for each in started]), flush=True)
