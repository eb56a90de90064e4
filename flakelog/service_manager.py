"""Messages to systemd about the state of this process (sd_notify(3)), where systemd started it with `Type=notify`.

With `WatchdogSec=` systemd ends a process whose reactor has hung (sd_watchdog_enabled(3)).
"""

import os
import socket
from collections.abc import Callable, Mapping

VARIABLE = "NOTIFY_SOCKET"
US_PER_SECOND = 1_000_000


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


def watchdog_seconds(environment: Mapping[str, str], process: int) -> float | None:
    """Return how often to send WATCHDOG=1: half of what systemd allows. None if it wants none from this process."""
    allowed, of_process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(process))
    if not (allowed.isascii() and allowed.isdigit() and int(allowed)) or of_process != str(process):
        return None
    return int(allowed) / US_PER_SECOND / 2
