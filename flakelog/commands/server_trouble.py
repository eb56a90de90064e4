"""Why a server acknowledges no messages, in words for the user of `flakelog produce`."""

from broker.client.blocking import Client
from broker.client.errors import ClientError, Unreachable
from broker.settings.config import BrokerConfig
from flakelog.operations.cluster import log_dirs

ASK_SECONDS = 0.8  # so that the reason comes within 5 s of the last acknowledgement


def why_not_acknowledged(servers: str) -> tuple[str, bool]:
    """Return why no acknowledgement comes, and whether no server answers."""
    try:
        with Client(servers, ASK_SECONDS, connect_timeout=ASK_SECONDS) as client:
            disk = full_disk(client)
    except Unreachable as error:
        return f"no broker answers at {error.address} ({error.reason})", True
    except ClientError as error:
        return str(error), False
    return disk or "the server answers, but acknowledges nothing; its log says why", False


def full_disk(client: Client) -> str:
    """Return which disk of a server is full, "" if none is."""
    full = BrokerConfig().disk_full_bytes
    for disk in log_dirs(client):
        if disk.error or (disk.usable_bytes is not None and disk.usable_bytes < full):
            return f"the disk of the server is full: {disk.path}"
    return ""
