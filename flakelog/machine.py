"""The machine's limits, and defaults that fit them: connections, and memory for requests that have begun.

Kafka has no such bounds by default. Each connection takes a descriptor, so without a bound a flood of connections takes
those that files need; each request that has begun takes memory, so without a bound peers that stop in the middle of
requests fill it. The numbers are the lowest layer of the settings: every other source goes before them.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from flakelog.settings import Given

ORIGIN = "this machine"
CONNECTION_BYTES = 64 << 10  # of memory for a connection, with its buffers
MEMORY_PART = 8  # requests that have begun may fill an eighth of the memory
LEAST_REQUEST_BYTES = 16 << 20
BROKER_PART, ID_PART = 2, 8  # of the descriptors: a half is for clients of the log, an eighth each for ids and HTTP
FILES_PART = 5  # a fifth is for files of partitions, and the rest for all else
ID_CONNECTIONS_MAX = 10_000
LEAST_CONNECTIONS = 16
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

FILES_UNLIMITED = 1 << 30


def fitting_settings(memory_bytes: int | None, open_files: int) -> dict[str, str]:
    """Return the settings that fit a machine; `memory_bytes` is None if it is not known."""
    for_log, for_ids = open_files // BROKER_PART, min(open_files // ID_PART, ID_CONNECTIONS_MAX)
    fitting = {}
    if memory_bytes is not None:
        for_log = min(for_log, memory_bytes // CONNECTION_BYTES)
        fitting["queued.max.request.bytes"] = str(max(memory_bytes // MEMORY_PART, LEAST_REQUEST_BYTES))
    fitting["max.connections"] = str(max(for_log, LEAST_CONNECTIONS))
    for name in ("flakelog.ids.max.connections", "flakelog.http.max.connections"):
        fitting[name] = str(max(for_ids, LEAST_CONNECTIONS))
    return fitting


def machine_defaults(open_files: int) -> tuple[Given, ...]:
    """Return the settings that fit this machine and process, below all other sources."""
    fitting = fitting_settings(own_memory_bytes(), open_files)
    return tuple(Given(name, text, ORIGIN) for name, text in fitting.items())


def own_memory_bytes() -> int | None:
    """Return the memory of this machine or container; None if the system does not tell."""
    return memory_bytes(_CGROUP_LIMITS)


def memory_bytes(limits: Iterable[Path] = ()) -> int | None:
    """Return the memory of the machine or of the container, whichever is smaller; None if the system does not tell."""
    try:
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (ValueError, OSError, AttributeError):
        sizes = []
    for path in limits:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # cgroup v2 says "max" if there is no limit
            sizes.append(int(text))
    return min((size for size in sizes if size > 0), default=None)


def boot_id(path: Path = BOOT_ID) -> str:
    """Return the id of this boot of the kernel; "" if the system does not tell."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def usable_cores() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def raise_file_limit() -> None:
    """Raise the limit of open files to the system's maximum: each partition in use takes four, each connection one."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ImportError, ValueError, OSError):
        return


def partition_files(open_files: int) -> int:
    """Return how many files of partitions may be open in a process that may have `open_files` descriptors."""
    return max(open_files // FILES_PART, LEAST_CONNECTIONS)


def file_limit() -> int:
    """Return how many files this process may have open."""
    try:
        import resource
    except ImportError:
        return FILES_UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_UNLIMITED if soft == resource.RLIM_INFINITY else soft
