"""Runs `flakelog load` in forked processes, and kills each before a step, or after a time, that the test chooses.

A step is a call of the operating system on a path of the destination, seen by an audit hook: open, link, rename,
remove, list. The libraries of tables write without such calls, so there a timer kills. Each line of stdin is a JSON
list of runs that start at once, {"args": [...], "kill_at": 17 or null, "kill_after_s": 0.2 or null}. The answer is a
line with a list of {"code": exit code, or -9 or -14 if it was killed, "steps": number of steps, or null, "took_s"}.
"""

import json
import os
import signal
import sys
import threading
import time

import pyarrow.parquet  # noqa: F401  (the processes are forked with all that a load imports)

import flakelog.commands.load  # noqa: F401
import spark_bridge.load.job  # noqa: F401
from flakelog.cli import main


def run(args, kill_at, kill_after_s, report):
    """Run the command in this process and write the number of its steps to the file descriptor `report`."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process at once, as SIGKILL does
    signal.setitimer(signal.ITIMER_REAL, kill_after_s or 0)
    target = args[args.index("--to") + 1]
    steps = 0
    lock = threading.RLock()

    def hook(event, event_args):
        nonlocal steps
        if event.startswith(("open", "os.", "shutil.")) and any(target in str(arg) for arg in event_args[:2]):
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


def start(request):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.dup2(2, 1)  # stdout is for the answers
        run(request["args"], request.get("kill_at"), request.get("kill_after_s"), writer)
    os.close(writer)
    return pid, reader, time.monotonic()


def finish(pid, reader, began):
    steps = os.read(reader, 20)
    os.close(reader)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"code": code, "steps": int(steps) if steps else None, "took_s": time.monotonic() - began}


for line in sys.stdin:
    started = [start(request) for request in json.loads(line)]
    print(json.dumps([finish(*child) for child in started]), flush=True)
