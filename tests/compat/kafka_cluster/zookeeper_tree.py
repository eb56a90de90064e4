"""The nodes of a cluster in ZooKeeper, without what differs from run to run: times, ports, and random ids.

What only our brokers write is left out too: the key `flakelog`, and the nodes of worker numbers.
"""

import json
import re

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

_DIFFERS = (
    (re.compile(r'"timestamp":"\d+"'), '"timestamp":"T"'),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r'"port":\d+'), '"port":PORT'),
    (re.compile(r'"topic_id":"[\w-]{22}"'), '"topic_id":"ID"'),
    (re.compile(r'"id":"[\w-]{22}"'), '"id":"ID"'),
)
OWN_KEY = "flakelog"
OWN_PATHS = "/snowflake-servers"


class ZooKeeperTree:
    """A reader of all nodes below a chroot. A context manager."""

    def __init__(self, hosts):
        self._client = KazooClient(hosts)

    def __enter__(self):
        self._client.start()
        return self

    def __exit__(self, *_):
        self._client.stop()
        self._client.close()

    def read(self):
        """Return {path: (data, whether the node is ephemeral, its version)}."""
        nodes = {}
        self._read("/", nodes)
        return nodes

    def data(self, path):
        """Return the JSON of a node."""
        return json.loads(self._client.get(path)[0])

    def children(self, path):
        return self._client.get_children(path)

    def _read(self, path, nodes):
        try:
            data, status = self._client.get(path)
            names = self._client.get_children(path)
        except NoNodeError:
            return  # deleted meanwhile
        nodes[path] = (_alike(data), bool(status.ephemeralOwner), status.version)
        for name in sorted(names):
            child = f"{path.rstrip('/')}/{name}"
            if not child.startswith(OWN_PATHS):
                self._read(child, nodes)


def create_chroots(hosts, *names):
    """Make the nodes below which clusters live."""
    client = KazooClient(hosts)
    client.start()
    for name in names:
        client.create(f"/{name}")
    client.stop()
    client.close()


def differences(ours, kafkas):
    """Return a line for each node that differs."""
    return [
        f"{path}: ours {ours.get(path)}, Kafka's {kafkas.get(path)}"
        for path in sorted(ours.keys() | kafkas.keys())
        if ours.get(path) != kafkas.get(path)
    ]


def _alike(data):
    """Return the text of a node. JSON keeps its spaces and its order, but for settings, which Kafka has in none."""
    text = (data or b"").decode()
    document = json.loads(text) if text.startswith("{") else {}
    if OWN_KEY in document or "config" in document:
        document.pop(OWN_KEY, None)
        if "config" in document:
            document["config"] = dict(sorted(document["config"].items()))
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    for pattern, replacement in _DIFFERS:
        text = pattern.sub(replacement, text)
    return text
