"""SHELL (files or the network, in what it opens): a session with whichever coordinator is named.

Each kind is loaded when it is asked for: who keeps worker numbers in a directory never imports kazoo.
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
) -> Coordinator:
    """A session in a directory, or with ZooKeeper (host:port,host:port/chroot) spoken to as `access` says.

    With `wait` off nothing blocks: `wait_until_connected` is called before anything else, in a thread to spare.
    `allow_network`: the directory may be on a network file system. ValueError unless one of both is named;
    CoordinatorUnavailable.
    """
    if (directory is None) == (zookeeper is None):
        raise ValueError("a coordinator is a directory or a ZooKeeper: name one of both")
    if zookeeper is not None:
        from coordination.zookeeper import ZooKeeperCoordinator

        return ZooKeeperCoordinator(zookeeper, access, wait=wait)
    from coordination.directory import DirectoryCoordinator

    assert directory is not None
    return DirectoryCoordinator(directory, allow_network=allow_network)
