"""Messages to systemd about the state of this process (sd_notify(3)), where systemd started it with `Type=notify`."""

import os
import socket
from collections.abc import Callable

VARIABLE = "NOTIFY_SOCKET"


def notify(report: Callable[[str], None], *states: str) -> None:
    """Send states such as `READY=1`; do nothing if no service manager asked for them.

    `report` gets a line if the socket cannot be reached: systemd does not learn the state, and waits for it.
    """
    address = os.environ.get(VARIABLE)
    if not address:
        return
    abstract = address.startswith("@")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.connect("\0" + address[1:] if abstract else address)
            manager.sendall("\n".join(states).encode())
    except OSError as error:
        report(f"systemd was not notified of {states[0]}: {VARIABLE}={address}: {error.strerror or error}")
