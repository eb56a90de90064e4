"""A program that issues ids and writes each to a file, for tests that stop, kill and mislead it.

    python id_writer_program.py '{"file": ..., "zookeeper": "a:1" or "directory": ..., "worker": null, "clock": []}'

Ids are appended to `file`, 8 bytes each. `lead_ms` is the time for which ids are issued without a coordinator. `clock`
steps the wall clock: [[after seconds, by ms], ...]. The program prints "ready" when it has claimed a worker number.
Times are short (a lead of 2 s), so that tests see high-water marks pass.
"""

import functools
import json
import os
import struct
import sys
import threading
import time

import idgen.snowflake
from coordination.access import Access
from coordination.port import CoordinatorUnavailable
from idgen.clock import IdClock
from idgen.config import IdgenConfig
from idgen.errors import IdError

LEAD_MS = 2_000
CONFIG = {"ids_raise_interval_ms": 500, "ids_retry_ms": 100}
SESSION_MS, REQUEST_MS = 1_000, 1_000
BATCH = 20
PACE_S = 0.005


def connect(directory, zookeeper, config, connect_timeout_ms):
    if directory is not None:
        from coordination.directory import DirectoryCoordinator

        return DirectoryCoordinator(directory)
    from coordination.zookeeper import ZooKeeperCoordinator

    return ZooKeeperCoordinator(zookeeper, Access(SESSION_MS), request_timeout_ms=REQUEST_MS)


def stepped_wall_ns(steps):
    begin = time.monotonic()

    def wall_ns():
        elapsed = time.monotonic() - begin
        return time.time_ns() + sum(ms for after, ms in steps if elapsed >= after) * 1_000_000

    return wall_ns


def made(task):
    """Return a Snowflake; retry while its coordinator is away."""
    config = IdgenConfig(ids_worker=task.get("worker"), ids_lead_ms=task.get("lead_ms", LEAD_MS), **CONFIG)
    while True:
        try:
            return idgen.snowflake.Snowflake(
                directory=task.get("directory"), zookeeper=task.get("zookeeper"), config=config
            )
        except (CoordinatorUnavailable, IdError) as error:
            print(error, file=sys.stderr, flush=True)


def main(task):
    idgen.snowflake.connect = connect
    idgen.snowflake.IdClock = functools.partial(IdClock, stepped_wall_ns(task.get("clock", [])))
    file = os.open(task["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    snowflake = made(task)
    print("ready", flush=True)
    pace = threading.Event()
    while True:
        try:
            ids = snowflake.next_ids(BATCH)
        except IdError:
            ids = []
        os.write(file, struct.pack(f"<{len(ids)}q", *ids))
        pace.wait(PACE_S)


main(json.loads(sys.argv[1]))
