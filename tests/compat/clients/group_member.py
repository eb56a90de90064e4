"""A group member in a separate process, for tests to kill. Arguments: CLIENT ADDRESS GROUP TOPIC SESSION_MS."""

import sys

from tests.compat.stock_clients import CLIENTS

if __name__ == "__main__":
    name, address, group, topic, session_ms = sys.argv[1:]
    with CLIENTS[name].member(address, group, topic, int(session_ms)) as member:
        while True:
            member.poll()
