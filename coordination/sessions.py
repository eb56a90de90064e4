"""SHELL (files or the network, in what it opens): a session with the named coordinator.

Each kind of coordinator is imported when it is first used, so a program that keeps worker numbers in a directory never
imports kazoo.
"""

import os

from coordination.access import Access
from coordination.port import Coordinator


def open_session(
    *,
    directory: str | os.PathLike[str] | None = None,
    zookeeper: str | None = None,
    access: Access = Access(),
    allow_network: bool = False,
    wait: bool = True,
    connect_timeout_ms: int | None = None,
) -> Coordinator:
    """Open a session in a directory, or with ZooKeeper (host:port,host:port/chroot) with the settings of `access`.

    With `wait` the call takes at most 15 s, and at most `connect_timeout_ms`. With `wait` off nothing blocks; the
    caller then calls `wait_until_connected` before anything else, in a thread that may block. `allow_network` accepts a
    directory on a network file system. Raises ValueError unless exactly one of `directory` and `zookeeper` is given,
    and CoordinatorUnavailable if the session cannot be opened.
    """
    if (directory is None) == (zookeeper is None):
        raise ValueError("a coordinator is a directory or a ZooKeeper: name one of both")
    if zookeeper is not None:
        from coordination.zookeeper import CONNECT_TIMEOUT_MS, ZooKeeperCoordinator

        timeout_ms = CONNECT_TIMEOUT_MS if connect_timeout_ms is None else min(connect_timeout_ms, CONNECT_TIMEOUT_MS)
        return ZooKeeperCoordinator(zookeeper, access, connect_timeout_ms=timeout_ms, wait=wait)
    from coordination.directory import DirectoryCoordinator

    assert directory is not None
    return DirectoryCoordinator(directory, allow_network=allow_network)
