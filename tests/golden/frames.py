"""Frames between real clients and a real broker, recorded by tests/compat/capture_frames.py: one text file per client.

    # confluent-kafka 2.16.1
    1 18 3 req 0000002d0012...      connection, API key, version, and the request as hex without its length field
    1 18 3 ans 00000001...          its answer; absent if the client wanted no answer
"""

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
SUFFIX = ".frames"
"""Suffix of the golden files, which are named after their clients."""


class Exchange(NamedTuple):
    """A request and its answer (None if the client wanted no answer), both without their length fields."""

    connection: int
    request: bytes
    answer: bytes | None

    @property
    def api_key(self):
        return int.from_bytes(self.request[:2], "big")

    @property
    def version(self):
        return int.from_bytes(self.request[2:4], "big")

    @property
    def correlation_id(self):
        return self.request[4:8]


def write(path, title, exchanges):
    lines = [f"# {title}"]
    for each in exchanges:
        where = f"{each.connection} {each.api_key} {each.version}"
        lines.append(f"{where} req {each.request.hex()}")
        if each.answer is not None:
            lines.append(f"{where} ans {each.answer.hex()}")
    path.write_text("\n".join(lines) + "\n")


def read(path):
    exchanges = []
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        connection, _, _, kind, data = line.split()
        if kind == "req":
            exchanges.append(Exchange(int(connection), bytes.fromhex(data), None))
        else:
            exchanges[-1] = exchanges[-1]._replace(answer=bytes.fromhex(data))
    return exchanges


def asked():
    """Return {API key: set of its versions} over all golden files."""
    found = {}
    for path in HERE.glob(f"*{SUFFIX}"):
        for each in read(path):
            found.setdefault(each.api_key, set()).add(each.version)
    return found
